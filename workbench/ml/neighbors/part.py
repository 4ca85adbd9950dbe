"""The computations of a nearest-neighbor search on one block, and distances of queries and rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from workbench.ml.checks import Checks, FindsNonFinite, checked
from workbench.ml.engine.kept_arrays import Keeps
from workbench.ml.neighbors.search import Nearest, Result, Search, Within, find_in_ring

_Array = NDArray[Any]

# Numbers in an array of differences, 2 MiB.
_NUMBERS = 1 << 18


class Measure(Protocol):
    """Distances from some queries, in any unit that increases with the distance."""

    def scores(self, X: Any) -> tuple[_Array, Any]:
        """Return the distances of all pairs, shape (queries, rows), and their maximum error for each query."""

    def exact(self, X: Any, scores: _Array, queries: _Array, rows: _Array) -> _Array:
        """Return the distances of some pairs, given by the numbers of queries and rows."""

    def score(self, distance: float) -> float:
        """Return an upper bound of the exact score of pairs with this distance, in the unit of the metric."""

    def distances(self, exact: _Array) -> _Array:
        """Convert results of `exact` to the unit of the metric."""


def measure(queries: Any, metric: Any, keywords: Mapping[str, Any]) -> Measure:
    """Return the measure of a metric of `NearestNeighbors`."""
    return Euclidean(queries) if metric == "euclidean" and not keywords else Pairwise(queries, metric, keywords)


class Euclidean:
    """Squared Euclidean distances: from a matrix product for all pairs, from differences for the nearest pairs.

    Parameters
    ----------
    queries
        Shape (queries, features): an array, or a matrix in CSR format.

    Notes
    -----
    In double precision. The mean of the queries is subtracted from rows and queries: products lose digits only for rows
    far from the mean, which are not the nearest.
    """

    def __init__(self, queries: Any) -> None:
        self._queries = _dense(queries).astype(np.float64, copy=False)
        self._middle = self._queries.mean(axis=0)

    def scores(self, X: Any) -> tuple[_Array, Any]:
        """See `Measure.scores`."""
        queries = self._queries
        if sparse.issparse(X):
            # Centered rows would not be sparse.
            X = X.astype(np.float64, copy=False)
            squares = np.asarray(X.multiply(X).sum(axis=1)).ravel()
        else:
            queries, X = queries - self._middle, X - self._middle
            squares = np.einsum("ij,ij->i", X, X)
        own = np.einsum("ij,ij->i", queries, queries)
        if not np.isfinite(own.max() + squares.max()):
            raise ValueError("Distances overflow, because the squares of the values are too large. Scale the data.")
        factors = -2.0 * queries
        scores = np.ascontiguousarray((X @ factors.T).T) if sparse.issparse(X) else factors @ X.T
        scores += squares
        scores += own[:, None]
        # Twice the bound of the rounding error of sums with one term per feature.
        precision = 4 * (queries.shape[1] + 4) * np.finfo(np.float64).eps
        return scores, precision * (own + squares.max())

    def exact(self, X: Any, scores: _Array, queries: _Array, rows: _Array) -> _Array:
        """See `Measure.exact`."""
        exact = np.empty(len(rows))
        step = max(_NUMBERS // X.shape[1], 1)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            difference = _dense(X[rows[part]]) - self._queries[queries[part]]
            exact[part] = np.einsum("ij,ij->i", difference, difference)
        return exact

    def score(self, distance: float) -> float:
        """See `Measure.score`."""
        return distance * distance * (1 + 4 * float(np.finfo(np.float64).eps))

    def distances(self, exact: _Array) -> _Array:
        """See `Measure.distances`."""
        return np.sqrt(exact)


class Pairwise:
    """Distances of `sklearn.metrics.pairwise_distances`.

    Parameters
    ----------
    queries
        Shape (queries, features): an array, or a matrix in CSR format.
    metric, keywords
        Arguments of `pairwise_distances`.
    """

    def __init__(self, queries: Any, metric: Any, keywords: Mapping[str, Any]) -> None:
        self._queries, self._metric, self._keywords = queries, metric, keywords

    def scores(self, X: Any) -> tuple[_Array, Any]:
        """See `Measure.scores`."""
        from sklearn.metrics import pairwise_distances

        # A function of the user computes with floats: small integers would overflow.
        queries, X = (rows.astype(checked(rows.dtype), copy=False) for rows in (self._queries, X))
        scores = pairwise_distances(queries, X, metric=self._metric, **self._keywords).astype(np.float64)
        # A row whose distance is NaN is the last neighbor.
        return np.nan_to_num(scores, copy=False, nan=np.inf, posinf=np.inf), np.zeros(len(scores))

    def exact(self, X: Any, scores: _Array, queries: _Array, rows: _Array) -> _Array:
        """See `Measure.exact`."""
        exact: _Array = scores[queries, rows]
        return exact

    def score(self, distance: float) -> float:
        """See `Measure.score`."""
        return distance

    def distances(self, exact: _Array) -> _Array:
        """See `Measure.distances`."""
        return exact


def _dense(rows: Any) -> _Array:
    dense: _Array = rows.toarray() if sparse.issparse(rows) else rows
    return dense


# Distances and numbers of rows, both of shape (queries, neighbors), the nearest first.
_Best = tuple[_Array, NDArray[np.int64]]
# Numbers of queries, their distances, and numbers of rows.
_Pairs = tuple[_Array, _Array, _Array]

# Maximum number of queries, pairs and numbers in one matrix, 2 MiB.
_QUERIES, _SCORES = 256, 1 << 18
# Minimum number of rows of a slice, with any number of features.
_ROWS = 32
# If more candidates remain than this multiple of the neighbors, a closer bound saves time.
_MANY = 4
_NONE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class QueryChecks(Checks):
    """Checks of queries, which take the place of targets; the rows were checked and converted in the fit."""

    def of_block(self, X: Any, y: Any, weight: Any) -> tuple[Any, Any, Any]:
        """See `Checks.of_block`."""
        return X, None if y is None else super().of_block(y, None, None)[0], weight


class NeighborsPart(Keeps, FindsNonFinite):
    """A block whose rows are also the queries of `find_each`: no row is its own neighbor.

    Parameters
    ----------
    X
        Shape (rows, features): an array, or a matrix in CSR format.
    y, weight
        Not used.
    start
        Number of the first row in all data.

    Notes
    -----
    Work space: slices of 2 MiB (at least 32 rows and one query, with many features), up to 20 MiB if many rows have the
    same distance from a query, and the results.
    """

    def __init__(self, X: Any, y: None, weight: None, start: int) -> None:
        self._X, self._queries, self._start = X, X, start
        self._results: list[tuple[_Array, _Array]] = []

    def rows(self) -> float:
        """Check the rows, and return their number."""
        with np.errstate(over="ignore", invalid="ignore"):
            if not sparse.issparse(self._X) and not np.isfinite(self._X.sum()):
                self.refuse_non_finite()
        return float(self._X.shape[0])

    def query_range(self) -> tuple[int, int]:
        """Return the number of the first row, which identifies the part, and the number of queries."""
        return self._start, int(self._queries.shape[0])

    def queries(self, part: int, start: int, stop: int) -> Any:
        """Return some queries; None if the request is for another part."""
        # A part without queries has the same first row as the next one.
        return self.own_queries(start, stop) if part == self._start and self._queries.shape[0] else None

    def own_queries(self, start: int, stop: int) -> Any:
        """Return some queries of this part."""
        return self._queries[start:stop]

    def keep(self, part: int, start: int, search: Search, result: Result) -> None:
        """Keep the result for some queries, if these are of this part."""
        if part == self._start and bool(len(result[0])) == bool(self._queries.shape[0]):
            self.add(start, search, result)

    def add(self, start: int, search: Search, result: Result) -> None:
        """Keep the result for queries of this part, from a number on."""
        self._results.append(search.arrays([self._found(search, result, start)]))

    def ring(self, search: Search) -> Callable[..., None]:
        """Return `find_in_ring` of this part, for `workbench.ml.engine.parts.ConnectedParts.together`."""
        return functools.partial(find_in_ring, self, search)

    def find(self, search: Search) -> Result:
        """Return the result for the queries of a search and the rows of this part."""
        result: Result = getattr(self, search.method)(search)
        return result

    def kept(self) -> tuple[Any, ...]:
        """See `Keeps.kept`: the results for all queries of this part."""
        distances, rows = (np.concatenate(each) for each in zip(*self._results, strict=True))
        return distances, rows

    def _found(self, search: Search, result: Result, start: int) -> Result:
        return search.without_self(result, self._start + start)

    def nearest(self, search: Nearest) -> Result:
        """Return the nearest rows; for equal distances the rows with lower numbers first."""
        results = [self._nearest(queries, search) for queries in self._queries_of(search)]
        distances, rows = (np.concatenate(each) for each in zip(*results, strict=True))
        return distances, rows + self._start

    def within(self, search: Within) -> Result:
        """Return all rows within the radius, those with lower numbers first."""
        results = [self._within(queries, search) for queries in self._queries_of(search)]
        counts, distances, rows = (np.concatenate(each) for each in zip(*results, strict=True))
        return counts, distances, rows + self._start

    def _queries_of(self, search: Search) -> Iterator[Any]:
        queries = search.queries
        step = min(_QUERIES, max(_NUMBERS // queries.shape[1], 1))
        return (queries[start : start + step] for start in range(0, queries.shape[0], step))

    def _scored(self, distances: Measure, queries: int) -> Iterator[tuple[int, Any, _Array, Any]]:
        """Return number of the first row, rows, scores and errors for each slice of the rows."""
        step = _SCORES // queries
        if not sparse.issparse(self._X):
            step = min(step, max(_NUMBERS // self._X.shape[1], _ROWS))
        for start in range(0, self._X.shape[0], step):
            X = self._X[start : start + step]
            yield start, X, *distances.scores(X)

    def _nearest(self, queries: Any, search: Nearest) -> Result:
        distances = measure(queries, search.metric, search.keywords)
        shape = queries.shape[0], min(search.n_neighbors, self._X.shape[0])
        best: _Best = np.full(shape, np.inf), np.full(shape, _NONE)
        pairs: list[_Pairs] = []
        for start, X, scores, errors in self._scored(distances, shape[0]):
            numbers, rows = _near(scores, errors, best[0][:, -1], shape[1])
            pairs.append((numbers, distances.exact(X, scores, numbers, rows), rows + start))
            # Sorting is expensive, so that many pairs are sorted together.
            if sum(len(rows) for _, _, rows in pairs) >= best[0].size:
                best, pairs = _better(best, pairs), []
        best = _better(best, pairs)
        return distances.distances(best[0]), best[1]

    def _within(self, queries: Any, search: Within) -> Result:
        distances = measure(queries, search.metric, search.keywords)
        pairs: list[_Pairs] = [(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64))]
        for start, X, scores, errors in self._scored(distances, queries.shape[0]):
            near = scores <= distances.score(search.radius) + np.asarray(errors)[:, None]
            numbers, rows = np.divmod(np.flatnonzero(near), scores.shape[1])
            exact = distances.distances(distances.exact(X, scores, numbers, rows))
            kept = exact <= search.radius
            pairs.append((numbers[kept], exact[kept], rows[kept] + start))
        numbers, exact, rows = (np.concatenate(each) for each in zip(*pairs, strict=True))
        order = np.argsort(numbers, kind="stable")
        return np.bincount(numbers, minlength=queries.shape[0]), exact[order], rows[order]


class RowsPart(NeighborsPart):
    """A block whose rows are checked and converted once, and kept for all searches."""

    def kept(self) -> tuple[Any, ...]:
        """See `Keeps.kept`: the rows."""
        return (self._X,)


class QueriesPart(NeighborsPart):
    """A block, and queries of `QueryChecks` that are no rows of the fit."""

    finds_non_finite = False

    def __init__(self, X: Any, y: Any, weight: None, start: int) -> None:
        super().__init__(X, None, weight, start)
        self._queries = y

    def _found(self, search: Search, result: Result, start: int) -> Result:
        return result


def _near(scores: _Array, errors: _Array, bound: _Array, number: int) -> tuple[_Array, _Array]:
    """Return queries and rows of the pairs that may be among the nearest.

    Parameters
    ----------
    scores, errors
        Results of `Measure.scores`.
    bound
        Shape (queries,): the largest distance of the nearest rows so far.
    number
        Number of neighbors.
    """
    near = scores <= (bound + errors)[:, None]
    if scores.shape[1] > number and np.count_nonzero(near) > _MANY * number * len(scores):
        # Enough rows have at most this score, so that the nearest rows have at most this score plus the error.
        last = np.partition(scores, number - 1, axis=1)[:, number - 1]
        near &= scores <= (last + 2 * errors)[:, None]
    # One axis is several times faster than two.
    return np.divmod(np.flatnonzero(near), scores.shape[1])


def _better(best: _Best, pairs: Sequence[_Pairs]) -> _Best:
    """Return the nearest rows of the best so far and of some pairs."""
    total, number = best[0].shape
    best_pairs = np.repeat(np.arange(total), number), best[0].ravel(), best[1].ravel()
    queries, distances, rows = (np.concatenate(each) for each in zip(best_pairs, *pairs, strict=True))
    order = np.lexsort((rows, distances, queries))
    first = np.searchsorted(queries[order], np.arange(total))
    order = order[first[:, None] + np.arange(number)]
    return distances[order], rows[order]
