"""The computations of K-means on one block: the nearest centers of the rows, and the sums of the clusters."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from workbench.ml.algebra.row_slices import refuse_overflow
from workbench.ml.algebra.sums import Moments
from workbench.ml.checks import FindsNonFinite, checked
from workbench.ml.engine.kept_arrays import Keeps

_Array = NDArray[Any]
Ranked = TypeVar("Ranked", bound=tuple[Any, ...])
Lot = tuple[float, int, _Array]
"""The lot of a row, its number, and the row."""

# Rows of a slice: scores and rows stay in the cache of a core. With a power of two the scores of one row would compete
# for the same lines of the cache, and take twice as long.
_SLICE = 6000
# Maximum numbers, of rows or of scores, in a slice, and its minimum number of rows.
_NUMBERS, _LEAST = 32 * _SLICE, 250
# Minimum number of rows of a sample.
_SAMPLE = 1000
# Steps after which the sums are computed from all rows, not from changed rows only, which limits rounding.
_RECOUNT_STEPS = 20
# Squared distances below this multiple of the squared norm of the row are rounding: of the norm of a difference, and of
# a difference of squares.
_AT_CENTER, _AT_CENTER_SPARSE = 1e-24, 1e-13


class KMeansPart(Keeps, FindsNonFinite):
    """A block.

    Parameters
    ----------
    X
        Shape (rows, features): an array, or a matrix in CSR format.
    y
        Not used.
    weight
        Shape (rows,): weights of the rows; None: all 1.
    start
        Number of the first row in all data.

    Notes
    -----
    Work space: 4 bytes per row for the labels, at most 11 during a step, 12 while the first centers are drawn, 4 more
    with several runs, and slices of 8 MiB, or of 250 rows if these and their distances to all centers are larger.
    """

    def __init__(self, X: Any, y: None, weight: _Array | None, start: int) -> None:
        self._X, self._weight, self._start = X, weight, start
        self._dtype = checked(X.dtype)
        self._middle: _Array | None = None
        self._labels: NDArray[np.int32] | None = None
        self._sums, self._counts, self._members = np.empty(0), np.empty(0), np.empty(0)
        self._steps = 0
        self._distances = np.empty(0)
        self._sum, self._squares, self._weighted = np.empty(0), 0.0, 0.0
        self._kept: NDArray[np.int32] | None = None

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `workbench.ml.engine.journaled_part.HasState.state`."""
        rows = {
            "labels": self._labels,
            "kept": self._kept,
            "distances": self._distances if len(self._distances) else None,
        }
        sums = {"sums": self._sums, "counts": self._counts, "members": self._members}
        return rows, {**sums, "steps": self._steps, "middle": self._middle}

    def restore(self, rows: dict[str, Any], values: dict[str, Any], *, same: bool) -> None:
        """See `workbench.ml.engine.journaled_part.HasState.restore`."""
        self._labels, self._kept = rows.get("labels"), rows.get("kept")
        self._distances, self._middle = rows.get("distances", np.empty(0)), values.get("middle")
        if same:
            self._sums, self._counts, self._members = values["sums"], values["counts"], values["members"]
        # Otherwise the next step computes the sums from all rows.
        self._steps = int(values["steps"]) if same else 0

    @np.errstate(over="ignore", invalid="ignore")
    def sample(self, total: int) -> Moments:
        """Return the moments of a sample that does not depend on the parts; of no rows for a matrix in CSR format."""
        if sparse.issparse(self._X):
            nothing = np.zeros(self._X.shape[1])
            return 0.0, nothing, nothing
        every = max(1, total // _SAMPLE)
        rows = self._X[-self._start % every :: every].astype(np.float64)
        if not np.isfinite(rows).all():
            self.refuse_non_finite()
        mean = rows.mean(axis=0) if len(rows) else np.zeros(rows.shape[1])
        deviations = np.square(rows - mean).sum(axis=0)
        refuse_overflow(deviations)
        return float(len(rows)), mean, deviations

    def weight_and_sample(self, total: int) -> tuple[float, Moments]:
        """Return the results of `weight` and `sample`, in one request."""
        return self.weight(), self.sample(total)

    def spread(self) -> tuple[float, _Array, float, float]:
        """Return the number of rows, and the sums of the centered rows and of their squared norms, from the first step.

        The last number is the weighted sum of the squared norms, NaN if the scores are less precise.
        """
        exact = self._dtype == np.float64 and not sparse.issparse(self._X)
        return float(self._X.shape[0]), self._sum, self._squares, self._weighted if exact else np.nan

    def center(self, middle: _Array) -> float:
        """Subtract a point in the middle of the rows: products of rows far from 0 lose digits."""
        if not sparse.issparse(self._X):
            self._middle = middle
        return 0.0

    def lots(self, number: int, seed: Sequence[int]) -> list[Lot]:
        """Return the rows with the smallest lots, sorted: a draw by weights without replacement.

        Notes
        -----
        Efraimidis and Spirakis, Information Processing Letters 97 (2006). The random number of a row is that of `draw`.
        """
        drawn: list[tuple[float, int]] = []
        for part, _ in self._slices():
            lots = -np.log1p(-_uniform(seed, self._start + part.start, part.stop - part.start))
            if self._weight is not None:
                weight = self._weight[part].astype(np.float64)
                lots = np.divide(lots, weight, out=np.full(len(lots), np.inf), where=weight > 0)
            first = np.argsort(lots, kind="stable")[:number]
            drawn = heapq.nsmallest(number, [*drawn, *((float(lots[row]), part.start + int(row)) for row in first)])
        return [(lot, self._start + row, _dense(self._rows(slice(row, row + 1)))[0]) for lot, row in drawn]

    def weight(self) -> float:
        """Return the weight of all rows."""
        return float(self._X.shape[0]) if self._weight is None else float(self._weight.sum(dtype=np.float64))

    def row_at(self, weight: float) -> _Array:
        """Return the first row, shape (1, features), up to which the sum of weights exceeds a weight."""
        if self._weight is None:
            row = int(weight)
        else:
            row = int(np.searchsorted(np.cumsum(self._weight, dtype=np.float64), weight, side="right"))
        row = min(row, self._X.shape[0] - 1)
        return _dense(self._rows(slice(row, row + 1)))

    @np.errstate(over="ignore", invalid="ignore")
    def step(self, centers: _Array, first: bool = False) -> tuple[_Array, _Array, float, float]:
        """Assign the rows to their nearest centers.

        Parameters
        ----------
        centers
            Shape (clusters, features).
        first
            Whether this is the first step of a run, which gathers what `spread` returns.

        Returns
        -------
        sums : ndarray of shape (clusters, features)
            The weighted sum of the rows of each cluster.
        counts : ndarray of shape (clusters,)
            Weight of the rows of each cluster.
        scores : float
            The weighted sum of the squared norms less the inertia.
        moved : float
            Number of rows that changed their cluster.
        """
        if first:
            self._labels = None
        before = self._labels
        labels, scores = self._nearest(centers)
        changed = None if before is None else labels != before
        moved = len(labels) if changed is None else int(np.count_nonzero(changed))
        if changed is None or moved > len(labels) // 4 or self._steps % _RECOUNT_STEPS == 0:
            self._sums, self._counts, self._members = self._totals(labels, None, len(centers), gather=first)
        elif moved:
            sums, counts, members = self._totals(labels, np.flatnonzero(changed), len(centers), before)
            self._sums += sums
            self._counts += counts
            self._members += members
            # Added and subtracted weights leave a rounding error in a cluster without rows.
            empty = self._members == 0
            self._sums[empty] = self._counts[empty] = 0
        self._labels = labels
        self._steps += 1
        return self._sums, self._counts, scores, float(moved)

    def first_step(self, centers: _Array) -> tuple[Any, Any]:
        """Return the results of the first `step` of a run and of `spread`, in one request."""
        return self.step(centers, True), self.spread()

    def assign(self, centers: _Array) -> tuple[_Array, float]:
        """Assign the rows to the last centers; return the number of rows of each cluster, and the scores."""
        self._labels = None
        self._labels, scores = self._nearest(centers)
        return self._counted(len(centers), None), scores

    def keep(self) -> float:
        """Keep the labels while other runs are made."""
        self._kept = self._labels
        return 0.0

    def kept(self) -> tuple[_Array, ...]:
        """Return the labels of `keep`, else the last labels; see `Keeps.kept`."""
        return (self._label(slice(0, self._X.shape[0])) if self._kept is None else self._kept,)

    def labels(self, centers: _Array) -> NDArray[np.int32]:
        """Return the nearest center of each row, shape (rows,)."""
        self.center(centers.mean(axis=0, dtype=np.float64))
        return self._nearest(centers)[0]

    def farthest(self, number: int, centers: _Array) -> list[tuple[float, int, float, int, _Array]]:
        """Return the rows farthest from their centers, sorted: negative squared distance, number, weight, cluster, row.

        Rows at their center, apart from rounding, and rows of weight 0 are left out, since they make no cluster.
        """
        nearest_first: list[tuple[float, int]] = []
        for part, distances in self._squared_distances(centers):
            X = self._rows(part)
            apart = distances > _squared_norms(X) * (_AT_CENTER_SPARSE if sparse.issparse(X) else _AT_CENTER)
            rows = np.flatnonzero(apart if self._weight is None else apart & (self._weight[part] > 0))
            first = rows[np.argsort(-distances[rows], kind="stable")[:number]]
            nearest_first += [(-float(distances[row]), part.start + int(row)) for row in first]
            nearest_first = heapq.nsmallest(number, nearest_first)
        return [
            (
                below,
                self._start + row,
                1.0 if self._weight is None else float(self._weight[row]),
                int(self._label(slice(row, row + 1))[0]),
                _dense(self._rows(slice(row, row + 1)))[0],
            )
            for below, row in nearest_first
        ]

    def inertia(self, centers: _Array) -> float:
        """Return the weighted sum of the squared distances of the rows to their assigned centers."""
        return sum(self._weighed(part, distances) for part, distances in self._squared_distances(centers))

    def distances(self, centers: _Array) -> _Array:
        """Return the squared distance of each row to its nearest center, shape (rows,)."""
        self._labels = self.labels(centers)
        return np.concatenate([distances for _, distances in self._squared_distances(centers)])

    @np.errstate(over="ignore", invalid="ignore")
    def near(self, candidates: _Array, before: int) -> float:
        """Add candidates; return the weighted sum of the squared distances to the nearest candidates.

        Parameters
        ----------
        candidates
            Shape (candidates, features).
        before
            Number of candidates before these.
        """
        if not before:
            self._distances = np.full(self._X.shape[0], np.inf)
            self._labels = np.zeros(self._X.shape[0], dtype=np.int32)
        cost = 0.0
        for part, labels, best, rows, centers in self._scored(candidates):
            distances = self._apart(rows, best, labels, centers)
            nearest = self._distances[part]
            nearer = distances < nearest
            np.copyto(nearest, distances, where=nearer)
            np.copyto(self._label(part), labels + before, where=nearer, casting="same_kind")
            cost += self._weighed(part, nearest)
        if not np.isfinite(cost):
            self.refuse_non_finite()
            refuse_overflow(cost)
        return cost

    def _apart(self, rows: Any, best: _Array, labels: _Array, centers: _Array) -> _Array:
        """Return the squared distances of rows to the centers of their labels; `best` are the scores of the centers."""
        if sparse.issparse(rows):
            distances: _Array = np.maximum(_squared_norms(rows) - best, 0)
            return distances
        return _squared_norms(rows - centers.take(labels, axis=0))

    def draw(self, factor: float, seed: Sequence[int]) -> _Array:
        """Return rows, each drawn independently with a probability of `factor` times its weighted squared distance.

        Notes
        -----
        The random number of a row depends on the seed and on the number of the row, not on its block.
        """
        drawn = [np.empty(0, np.intp)]
        for part, _ in self._slices():
            probabilities = self._distances[part] * factor
            if self._weight is not None:
                probabilities *= self._weight[part]
            numbers = _uniform(seed, self._start + part.start, len(probabilities))
            drawn.append(part.start + np.flatnonzero(numbers < probabilities))
        return _dense(self._rows(np.concatenate(drawn)))

    def weigh(self, candidates: int) -> _Array:
        """Return the weight of the rows nearest to each candidate, shape (candidates,); release the distances."""
        weights = self._counted(candidates, self._weight)
        self._distances, self._labels = np.empty(0), None
        return weights

    def _counted(self, clusters: int, weight: _Array | None) -> _Array:
        """Return the number of rows of each cluster, or their weight."""
        counts = np.zeros(clusters)
        for start in range(0, self._X.shape[0], _SLICE):
            part = slice(start, min(start + _SLICE, self._X.shape[0]))
            counts += np.bincount(self._label(part), None if weight is None else weight[part], minlength=clusters)
        return counts

    def _slices(self, clusters: int = 1) -> Iterator[tuple[slice, Any]]:
        """Yield slices of rows with room in the cache for their distances to so many centers."""
        for start in range(0, self._X.shape[0], rows := self._at_once(clusters)):
            part = slice(start, min(start + rows, self._X.shape[0]))
            yield part, self._rows(part)

    def _rows(self, part: Any) -> Any:
        """Return some rows as floats."""
        return self._X[part].astype(self._dtype, copy=False)

    def _at_once(self, clusters: int) -> int:
        rows, features = self._X.shape
        numbers = clusters if sparse.issparse(self._X) else max(clusters, features)
        return int(min(max(1, rows), _SLICE, max(_LEAST, _NUMBERS // numbers)))

    @np.errstate(over="ignore", invalid="ignore")
    def _nearest(self, centers: _Array) -> tuple[NDArray[np.int32], float]:
        """Return the nearest center of each row, and the weighted sum of the scores.

        Raises
        ------
        ValueError
            If a row is not finite, or the scores overflow.
        """
        labels, total = np.empty(self._X.shape[0], dtype=np.int32), 0.0
        for part, nearest, best, _, _ in self._scored(centers):
            labels[part] = nearest
            total += self._weighed(part, best)
        if not np.isfinite(total):
            self.refuse_non_finite()
            refuse_overflow(total)
        return labels, total

    def _scored(self, centers: _Array) -> Iterator[tuple[slice, _Array, _Array, Any, _Array]]:
        """Yield a slice, its nearest centers and their scores, and the rows and centers minus the middle.

        Notes
        -----
        The score of a row x and a center c is ``2 x.c - c.c``; the nearest center has the largest score. The number of
        the center replaces the last bits of the score, so that one pass finds both. Scores that agree in all other
        bits, 48 bits with 16 centers, count as equal.
        """
        middle = self._middle
        if middle is not None:
            centers, middle = centers - middle, middle.astype(self._dtype)
        factors, norms = (2 * centers).astype(self._dtype), np.square(centers).sum(axis=1)[:, None]
        low = (1 << (len(centers) - 1).bit_length()) - 1
        numbers, mask = np.arange(len(centers))[:, None], np.int64(~low)
        products = np.empty((len(centers), self._at_once(len(centers))), dtype=factors.dtype)
        scores = products if factors.dtype == np.float64 else np.empty(products.shape)
        for part, rows in self._slices(len(centers)):
            X = rows if middle is None else rows - middle
            product, score = products[:, : X.shape[0]], scores[:, : X.shape[0]]
            _multiply(factors, X, out=product)
            np.subtract(product, norms, out=score)
            bits = score.view(np.int64)
            bits &= mask
            bits |= numbers
            best = score.max(axis=0)
            yield part, best.view(np.int64) & low, best, X, centers

    def _totals(
        self,
        labels: _Array,
        changed: _Array | None,
        clusters: int,
        before: _Array | None = None,
        *,
        gather: bool = False,
    ) -> tuple[_Array, _Array, _Array]:
        """Return sums, weights and numbers of rows of each cluster, of all rows; or the changes, of changed rows.

        Rows of weight 0 are not counted.
        """
        sums, counts = np.zeros((clusters, self._X.shape[1])), np.zeros(clusters)
        members = np.zeros(clusters)
        if gather:
            self._sum, self._squares, self._weighted = np.zeros(self._X.shape[1]), 0.0, 0.0
        # Each slice needs memory for its sums: with many clusters a slice has more rows.
        rows, at_once = len(labels) if changed is None else len(changed), max(self._at_once(1), clusters)
        for start in range(0, rows, at_once):
            part: Any = slice(start, min(start + at_once, rows))
            part = part if changed is None else changed[part]
            X, clusters_of = self._rows(part), labels[part]
            if gather:
                self._gather(part, X)
            weight = np.ones(len(clusters_of)) if self._weight is None else self._weight[part].astype(np.float64)
            if before is not None:
                # Each row is added to its new cluster and subtracted from its old cluster.
                clusters_of, weight = np.ravel((clusters_of, before[part]), "F"), np.ravel((weight, -weight), "F")
            ends = np.arange(0, len(clusters_of) + 1, len(clusters_of) // X.shape[0])
            sums += _dense(sparse.csc_array((weight, clusters_of, ends), shape=(clusters, X.shape[0])) @ X)
            counts += np.bincount(clusters_of, weight, minlength=clusters)
            if self._weight is not None:
                members += np.bincount(clusters_of, np.sign(weight), minlength=clusters)
        return sums, counts, counts.copy() if self._weight is None else members

    def _gather(self, part: slice, X: Any) -> None:
        """Add rows to the results of `spread`."""
        if sparse.issparse(X):
            self._sum += np.ravel(X.sum(axis=0))
            self._squares += float(_squared_norms(X).sum())
            return
        apart = (X if self._middle is None else X - self._middle).astype(np.float64, copy=False)
        self._sum += np.ones(len(apart)) @ apart
        squares = float(np.vdot(apart, apart))
        self._squares += squares
        self._weighted += squares if self._weight is None else self._weighed(part, _squared_norms(apart))

    def _squared_distances(self, centers: _Array) -> Iterator[tuple[slice, _Array]]:
        """Yield the squared distances of slices of rows to the centers of their clusters, from differences."""
        for part, X in self._slices():
            labels = self._label(part)
            if sparse.issparse(X):
                # From products: differences would not be sparse.
                products = (X @ centers.T)[np.arange(len(labels)), labels]
                norms = _squared_norms(X) + np.square(centers).sum(axis=1)[labels]
                yield part, np.maximum(norms - 2 * products, 0)
            else:
                yield part, _squared_norms(X - centers[labels])

    def _label(self, part: slice) -> _Array:
        """Return the clusters of some rows; before the first step cluster 0."""
        return np.zeros(part.stop - part.start, dtype=np.int32) if self._labels is None else self._labels[part]

    def _weighed(self, part: slice, values: _Array) -> float:
        """Return the weighted sum of a value per row, of some rows."""
        return float(values.sum() if self._weight is None else values @ self._weight[part])


def join_least(upper: list[Ranked], lower: list[Ranked], number: int) -> list[Ranked]:
    """Return the first rows of two sorted lists, ordered by the value and then the number of a row."""
    return list(itertools.islice(heapq.merge(upper, lower, key=lambda row: row[:2]), number))


def _multiply(factors: _Array, X: Any, out: _Array) -> None:
    """Multiply factors and rows into an array of shape (centers, rows)."""
    if sparse.issparse(X):
        out[...] = _dense(X @ factors.T).T
    else:
        np.matmul(factors, X.T, out=out)


def _uniform(seed: Sequence[int], start: int, number: int) -> _Array:
    """Return the random numbers of some rows, in [0, 1)."""
    # Philox generates, and skips, four numbers at a time.
    generator = np.random.Philox(np.random.SeedSequence(seed)).advance(start // 4)
    return np.random.Generator(generator).random(start % 4 + number)[start % 4 :]


def _squared_norms(X: Any) -> _Array:
    """Return the squared norms of rows."""
    if sparse.issparse(X):
        X = X.astype(np.float64)
        norms: _Array = np.ravel(X.multiply(X).sum(axis=1))
    else:
        norms = np.einsum("ij,ij->i", X, X)
    return norms


def _dense(rows: Any) -> _Array:
    dense: _Array = rows.toarray() if sparse.issparse(rows) else rows
    return dense
