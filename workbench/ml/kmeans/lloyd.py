"""K-means from given first centres: Lloyd's iterations on parts."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.ml.engine.parts import Parts
from workbench.ml.kmeans.part import join_least

_Array = NDArray[Any]

# How well the inertia is to be known, and how well sums of squares are.
_SURE, _ROUNDING = 1e-10, 2e-14
# By what share an inertia has to be smaller to be another one: runs that find the same clusters differ by rounding.
_BETTER = 1e-9


@dataclass(frozen=True)
class Fitted:
    """What a fit has found."""

    centers: _Array
    """Shape (clusters, features)."""
    inertia: float
    """NaN where it was not wanted."""
    iterations: int
    converged: bool
    distinct: int
    """Clusters that have rows."""

    def better(self, other: Fitted) -> bool:
        """Return whether the inertia is smaller, by more than rounding: the choice does not depend on the parts."""
        return self.inertia < (1 - _BETTER) * other.inertia


def lloyd(parts: Parts, centers: _Array, max_iter: int, tol: float, *, assign: bool = True) -> Fitted:
    """Move centres until they stay.

    Parameters
    ----------
    parts
        `KMeansPart` objects.
    centers
        Shape (clusters, features): the first centres.
    max_iter, tol
        As of the estimator.
    assign
        Whether the rows are assigned to the last centres, and the inertia is computed. Where no row has moved in the
        last iteration this costs nothing, else one pass.

    Returns
    -------
    Fitted
        What was found.

    Notes
    -----
    Lloyd, IEEE Transactions on Information Theory 28 (1982). A cluster that becomes empty gets the row that is farthest
    from its centre. This, the tolerance and the last assignment are scikit-learn's: the same first centres lead to the
    same result.
    """
    iterations, shift, moved, threshold, squares = 0, np.inf, 1.0, 0.0, np.nan
    while iterations < max_iter and moved and shift > threshold:
        iterations += 1
        sums, counts, scores, moved = parts.sum("step", centers, iterations == 1)
        if iterations == 1:
            variance, squares = _spread(parts)
            threshold = tol * variance
        before, centers = centers, _means(parts, centers, sums.copy(), counts.copy())
        shift = float(np.square(centers - before).sum())
        parts.report({"iteration": iterations, "score": scores, "shift": shift, "moved": moved})
    converged = not moved or shift <= threshold
    # Empty clusters have been moved since, and have rows now.
    settled = bool(counts.all())
    if not settled or (moved and assign):
        counts, scores = parts.sum("assign", centers)
    distinct = int(np.count_nonzero(counts))
    inertia = _inertia(parts, centers, squares, scores) if assign else np.nan
    return Fitted(centers, inertia, iterations, converged=converged, distinct=distinct)


def _spread(parts: Parts) -> tuple[float, float]:
    """Return the variance of the features, on average, and the weighted sum of squared norms, after the first step."""
    rows, total, squares, weighted = parts.sum("spread")
    return float(max(0.0, squares - total @ total / rows) / (rows * len(total))), weighted


def _inertia(parts: Parts, centers: _Array, squares: float, scores: float) -> float:
    """Return the inertia of the last assignment: by the scores, unless their sum hides how small it is."""
    inertia = squares - scores
    doubt = max(_ROUNDING, np.finfo(np.float64).eps * 2 * len(centers)) * (squares + abs(scores))
    return inertia if doubt < _SURE * inertia else float(parts.sum("inertia", centers))


def _means(parts: Parts, before: _Array, sums: _Array, counts: _Array) -> _Array:
    """Return the centres of the clusters; empty ones are moved to rows far from their centres, if there are such."""
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
