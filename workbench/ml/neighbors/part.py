"""What a search for neighbours computes on one block: those of its rows that are nearest to each query."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from workbench.ml.checks import Checks, FindsNonFinite
from workbench.ml.engine.kept_arrays import Keeps
from workbench.ml.engine.parts import Parts
from workbench.ml.engine.pass_counter import Passes
from workbench.ml.neighbors.distances import measure

_Array = NDArray[Any]

Found = tuple[_Array, NDArray[np.int64]]
"""Distances and numbers of rows, both of shape (queries, neighbours), the nearest first."""

# Numbers of queries, their distances, and numbers of rows.
_Pairs = tuple[_Array, _Array, _Array]

# Queries, pairs and numbers that are looked at together: matrices of 2 MiB.
_QUERIES, _SCORES, _NUMBERS = 256, 1 << 18, 1 << 18
# Rows of a slice at least, also where there are many features.
_ROWS = 32
# If more rows may be among the nearest than in this multiple of their number, it pays to look for a closer bound.
_MANY = 4
_NONE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Search:
    """What is looked for."""

    queries: Any
    """Shape (queries, features): an array, or a matrix in CSR format."""
    n_neighbors: int
    metric: Any
    """Name of a metric, or a function, as scikit-learn's ``pairwise_distances`` takes them."""
    keywords: Mapping[str, Any]
    """More arguments of the metric."""
    step: int = 0
    """Of `find_each`: how many queries are searched for at a time."""


def count(parts: Parts, settings: None) -> int:  # noqa: ARG001  (an algorithm has both)
    """Return the number of all rows."""
    return int(Passes(parts).sum("rows"))


def find(parts: Parts, search: Search) -> Found:
    """Return the nearest of all rows: as many as wanted, or all if there are fewer."""
    result: Found = Passes(parts).fold(functools.partial(join, search.n_neighbors), "nearest", search)
    return result


def find_each(parts: Parts, search: Search) -> None:
    """Find the nearest rows for the queries of each part, and have the part keep these.

    Notes
    -----
    Some queries at a time go from the part where they lie to all others, and what is found for them goes back.
    """
    for part, queries in parts.each("asks"):
        for start in range(0, queries, search.step):
            request = replace(search, queries=parts.fold(_either, "queries", part, start, start + search.step))
            result = parts.fold(functools.partial(join, search.n_neighbors), "nearest", request)
            parts.each("keep", part, start, result)


def _either(left: Any, right: Any) -> Any:
    return right if left is None else left


def join(number: int, left: Found, right: Found) -> Found:
    """Return the nearest of two sets of rows; where distances agree, those of the left one come first."""
    distances, rows = (np.concatenate(both, axis=1) for both in zip(left, right, strict=True))
    order = np.argsort(distances, axis=1, kind="stable")[:, :number]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(rows, order, axis=1)


@dataclass(frozen=True)
class QueryChecks(Checks):
    """Checks of queries, which take the place of targets; the rows were checked and converted in the fit."""

    def apply(self, X: Any, y: Any, weight: Any) -> tuple[Any, Any, Any]:
        """See `Checks.apply`."""
        return X, None if y is None else super().apply(y, None, None)[0], weight


class NeighborsPart(Keeps, FindsNonFinite):
    """A block, whose rows are also what a search by `find_each` is for: none is found as a neighbour of its own.

    Parameters
    ----------
    X
        Shape (rows, features): an array, or a matrix in CSR format.
    y, weight
        Are not used.
    start
        Number of its first row in all of the data.

    Notes
    -----
    Work space: some slices of 2 MiB (of 32 rows and one query at least, where there are many features), up to 20 MiB
    where many rows are as far from a query, and what is found.
    """

    def __init__(self, X: Any, y: None, weight: None, start: int) -> None:
        self._X, self._queries, self._start = X, X, start
        self._found: list[Found] = []

    def rows(self) -> float:
        """Return their number, once they are checked: a search does not check them again."""
        if not sparse.issparse(self._X) and not np.isfinite(self._X.sum()):
            self.refuse_non_finite()
        return float(self._X.shape[0])

    def asks(self) -> tuple[int, int]:
        """Return the number of its first row, by which `queries` and `keep` know it, and how many queries it has."""
        return self._start, int(self._queries.shape[0])

    def queries(self, part: int, start: int, stop: int) -> Any:
        """Return some queries; None if these are wanted of another part."""
        return self._queries[start:stop] if part == self._start else None

    def keep(self, part: int, start: int, result: Found) -> None:
        """Keep what was found for queries from a number on, if these are its own."""
        if part == self._start:
            self._found.append(self._neighbours(result, start))

    def kept(self) -> Found:
        """See `Keeps.kept`: what was found for all queries of this part."""
        distances, rows = (np.concatenate(each) for each in zip(*self._found, strict=True))
        return distances, rows

    def _neighbours(self, result: Found, start: int) -> Found:
        return others(*result, self._start + start)

    def nearest(self, search: Search) -> Found:
        """Return the nearest of the rows; where distances agree, those of lower numbers come first."""
        queries = search.queries
        step = min(_QUERIES, max(_NUMBERS // queries.shape[1], 1))
        results = [self._nearest(queries[start : start + step], search) for start in range(0, queries.shape[0], step)]
        distances, rows = (np.concatenate(each) for each in zip(*results, strict=True))
        return distances, rows + self._start

    def _nearest(self, queries: Any, search: Search) -> Found:
        by = measure(queries, search.metric, search.keywords)
        shape = queries.shape[0], min(search.n_neighbors, self._X.shape[0])
        best: Found = np.full(shape, np.inf), np.full(shape, _NONE)
        step = _SCORES // shape[0]
        if not sparse.issparse(self._X):
            step = min(step, max(_NUMBERS // self._X.shape[1], _ROWS))
        pairs: list[_Pairs] = []
        for start in range(0, self._X.shape[0], step):
            X = self._X[start : start + step]
            scores, off = by.scores(X)
            queries_of, rows = _near(scores, off, best[0][:, -1], shape[1])
            pairs.append((queries_of, by.exact(X, scores, queries_of, rows), rows + start))
            # Sorting is dear: not for a few.
            if sum(len(rows) for _, _, rows in pairs) >= best[0].size:
                best, pairs = _better(best, pairs), []
        best = _better(best, pairs)
        return by.distances(best[0]), best[1]


class RowsPart(NeighborsPart):
    """A block whose rows are checked and converted once, and kept for all searches."""

    def kept(self) -> tuple[Any, ...]:
        """See `Keeps.kept`: the rows."""
        return (self._X,)


class QueriesPart(NeighborsPart):
    """A block, and beside it queries that are no rows of the fit, as `QueryChecks` returns them."""

    finds_non_finite = False

    def __init__(self, X: Any, y: Any, weight: None, start: int) -> None:
        super().__init__(X, None, weight, start)
        self._queries = y

    def _neighbours(self, result: Found, start: int) -> Found:
        return result


def others(distances: _Array, rows: NDArray[np.int64], first: int) -> Found:
    """Return what was found for rows without these rows themselves; without the last where a row was not found.

    Parameters
    ----------
    distances, rows
        What was found, shape (queries, neighbours).
    first
        The number of the row that is the first query.
    """
    kept = rows != first + np.arange(len(rows))[:, None]
    kept[kept.all(axis=1), -1] = False
    shape = len(rows), rows.shape[1] - 1
    return distances[kept].reshape(shape), rows[kept].reshape(shape)


def _near(scores: _Array, off: _Array, bound: _Array, number: int) -> tuple[_Array, _Array]:
    """Return query and row of the pairs that may be among the nearest.

    Parameters
    ----------
    scores, off
        As of `Measure.scores`.
    bound
        Of each query the largest distance that is among the nearest so far.
    number
        How many are wanted.
    """
    near = scores <= (bound + off)[:, None]
    if scores.shape[1] > number and np.count_nonzero(near) > _MANY * number * len(scores):
        # As many as wanted are not above this score, so the distances of the nearest are not above it and `off`.
        last = np.partition(scores, number - 1, axis=1)[:, number - 1]
        near &= scores <= (last + 2 * off)[:, None]
    # Of one axis it is several times as fast as of two.
    return np.divmod(np.flatnonzero(near), scores.shape[1])


def _better(best: Found, pairs: Sequence[_Pairs]) -> Found:
    """Return the nearest of those found so far and of some pairs."""
    wanted, number = best[0].shape
    so_far = np.repeat(np.arange(wanted), number), best[0].ravel(), best[1].ravel()
    queries, distances, rows = (np.concatenate(each) for each in zip(so_far, *pairs, strict=True))
    order = np.lexsort((rows, distances, queries))
    first = np.searchsorted(queries[order], np.arange(wanted))
    order = order[first[:, None] + np.arange(number)]
    return distances[order], rows[order]
