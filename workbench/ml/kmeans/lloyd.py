"""K-means from given first centers: Lloyd's iterations on parts."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.ml.algebra.row_slices import refuse_overflow
from workbench.ml.engine.parts import Parts
from workbench.ml.kmeans.part import join_least

_Array = NDArray[Any]

# Required relative precision of the inertia, and the precision of sums of squares.
_PRECISION, _ROUNDING = 1e-10, 2e-14
# The relative difference of a smaller inertia: runs with the same clusters differ by rounding.
_BETTER = 1e-9


@dataclass(frozen=True)
class Fitted:
    """The result of a fit."""

    centers: _Array
    """Shape (clusters, features)."""
    inertia: float
    """NaN without `assign`."""
    iterations: int
    converged: bool
    distinct: int
    """Number of clusters that have rows."""

    def better(self, other: Fitted) -> bool:
        """Return whether the inertia is smaller by more than rounding, so that the parts do not change the choice."""
        return self.inertia < (1 - _BETTER) * other.inertia


def lloyd(parts: Parts, centers: _Array, max_iter: int, tol: float, *, assign: bool = True) -> Fitted:
    """Move centers until they converge.

    Parameters
    ----------
    parts
        `KMeansPart` objects.
    centers
        Shape (clusters, features): the first centers.
    max_iter, tol
        Parameters of the estimator.
    assign
        Whether the rows are assigned to the last centers, and the inertia is computed: another pass over the rows if a
        row changed its cluster in the last iteration.

    Notes
    -----
    Lloyd, IEEE Transactions on Information Theory 28 (1982). An empty cluster gets the row that is farthest from its
    center. This, the tolerance and the last assignment are those of scikit-learn: the same first centers lead to the
    same result.
    """
    iterations, shift, moved, threshold, squares = 0, np.inf, 1.0, 0.0, np.nan
    while iterations < max_iter and moved and shift > threshold:
        iterations += 1
        if iterations == 1:
            step, spread = parts.sum("first_step", centers)
            variance, squares = _spread(*spread)
            threshold = tol * variance
        else:
            step = parts.sum("step", centers)
        sums, counts, scores, moved = step
        before, centers = centers, _means(parts, centers, sums.copy(), counts.copy())
        shift = float(np.square(centers - before).sum())
        parts.report({"iteration": iterations, "score": scores, "shift": shift, "moved": moved})
    converged = not moved or shift <= threshold
    # Clusters that were empty have been moved since, and have rows now.
    settled = bool(counts.all())
    if not settled or (moved and assign):
        counts, scores = parts.sum("assign", centers)
    distinct = int(np.count_nonzero(counts))
    inertia = _inertia(parts, centers, squares, scores) if assign else np.nan
    return Fitted(centers, inertia, iterations, converged=converged, distinct=distinct)


def _spread(rows: float, total: _Array, squares: float, weighted: float) -> tuple[float, float]:
    """Return the variance of the features, on average, and the weighted sum of squared norms."""
    refuse_overflow(squares)
    return max(0.0, float(squares - total @ total / rows)) / (rows * len(total)), weighted


def _inertia(parts: Parts, centers: _Array, squares: float, scores: float) -> float:
    """Return the inertia of the last assignment: from the scores if these are precise, else from the rows."""
    inertia = squares - scores
    rounding = max(_ROUNDING, np.finfo(np.float64).eps * 2 * len(centers)) * (squares + abs(scores))
    return inertia if rounding < _PRECISION * inertia else float(parts.sum("inertia", centers))


def _means(parts: Parts, before: _Array, sums: _Array, counts: _Array) -> _Array:
    """Return the centers of the clusters; empty clusters are moved to rows far from their centers, if any exist."""
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        join = functools.partial(join_least, number=len(empty))
        farthest = parts.fold(join, "farthest", len(empty), before)
        for cluster, (_, _, weight, cluster_of_row, row) in zip(empty, farthest, strict=False):
            sums[cluster_of_row] -= row * weight
            counts[cluster_of_row] -= weight
            sums[cluster], counts[cluster] = row * weight, weight
    means: _Array = np.divide(sums, counts[:, None], out=before.copy(), where=counts[:, None] > 0)
    return means
