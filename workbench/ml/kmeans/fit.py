"""Fit of K-means on parts: first centers, Lloyd's iterations, and the best of several runs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.ml.algebra import sums
from workbench.ml.algebra.row_slices import refuse_overflow
from workbench.ml.algebra.sums import Moments
from workbench.ml.engine.parts import LocalParts, Parts, weighed
from workbench.ml.kmeans.part import KMeansPart, join_least

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


# Minimum rounds of k-means||, and the expected candidates of a round as a multiple of the number of centers.
_ROUNDS, _OVERSAMPLING = 2, 2.0
# If a round leaves less than this fraction of the squared distances, clusters far from all others exist, and another
# round may find more of these.
_LEFT = 0.25
# Runs and iterations to cluster the candidates; for more than `_MANY` centers one run with fewer iterations.
_RUNS, _ITERATIONS, _MANY, _FEW = 3, 300, 300, 10


def drawn(parts: Parts, number: int, seed: Sequence[int]) -> _Array:
    """Return distinct rows, drawn by their weights, shape (number, features)."""
    join = functools.partial(join_least, number=number)
    lots = parts.fold(join, "lots", number, (*seed, _ROUNDS))
    return np.array([row for _, _, row in lots], dtype=np.float64)


def spread_out(parts: Parts, number: int, seed: Sequence[int]) -> _Array:
    """Return centers by k-means||, shape (number, features).

    Notes
    -----
    Bahmani et al., Scalable K-Means++, PVLDB 5 (2012): candidates are drawn by their squared distances to earlier
    candidates, and clustered with the weights of their nearest rows. Each row is compared once with each candidate, so
    that two rounds with about twice as many candidates as centers cost about four of Lloyd's iterations. If clusters
    are far apart, a round draws candidates from the farthest clusters only, and more rounds follow.
    """
    random = np.random.default_rng(seed)
    candidates = newest = _row_at(parts, random.random())
    cost, before, rounds = parts.sum("near", newest, 0), np.inf, 0
    while cost and (rounds < _ROUNDS or cost < _LEFT * before):
        before, rounds = cost, rounds + 1
        # With other random numbers than `drawn`.
        newest = parts.fold(_stack, "draw", _OVERSAMPLING * number / cost, (*seed, _ROUNDS + rounds))
        if len(newest):
            cost = parts.sum("near", newest, len(candidates))
            candidates = np.vstack([candidates, newest])
    weights = parts.sum("weigh", len(candidates))
    # Equal rows are one candidate.
    _, first, inverse = np.unique(candidates, axis=0, return_index=True, return_inverse=True)
    candidates, weights = candidates[first], np.bincount(inverse.ravel(), weights)
    if len(candidates) < number:
        # No row is far from a candidate, so that any rows complete the centers.
        return np.vstack([candidates, drawn(parts, number - len(candidates), seed)])
    part = KMeansPart(candidates, None, weights, 0)
    part.center(np.average(candidates, axis=0, weights=weights))
    runs, iterations = (_RUNS, _ITERATIONS) if number <= _MANY else (1, _FEW)
    starts = (plus_plus(candidates, weights, number, random) for _ in range(runs))
    fits = (lloyd(LocalParts([part]), start, iterations, 1e-4) for start in starts)
    return functools.reduce(lambda best, fitted: fitted if fitted.better(best) else best, fits).centers


def plus_plus(points: _Array, weights: _Array, number: int, random: np.random.Generator) -> _Array:
    """Return points far from each other, by k-means++, shape (number, features).

    Parameters
    ----------
    points
        Shape (points, features), float64.
    weights
        Shape (points,).
    number
        Number of points to select, at most all points.
    random
        The random number generator.

    Notes
    -----
    Arthur and Vassilvitskii, k-means++, SODA (2007), greedy as in scikit-learn: several points are drawn by their
    squared distances to the selected points, and the point with the smallest remaining sum is selected. The function of
    scikit-learn would cost a rank two seconds for the import.
    """
    centered = points - np.average(points, axis=0, weights=weights)
    norms = np.square(centered).sum(axis=1)
    chosen = np.empty(number, dtype=np.int64)
    nearest, trials = np.full(len(points), np.inf), 2 + int(np.log(number))
    probabilities = weights
    for place in range(number):
        totals = np.cumsum(probabilities)
        drawn = np.searchsorted(totals, random.random(trials if place else 1) * totals[-1], side="right")
        drawn = np.minimum(drawn, len(points) - 1)
        distances = np.maximum(norms[drawn, None] + norms - 2 * centered[drawn] @ centered.T, 0)
        np.minimum(distances, nearest, out=distances)
        best = int(np.argmin(distances @ weights))
        chosen[place], nearest = drawn[best], distances[best]
        probabilities = nearest * weights
    return points[chosen]


def _row_at(parts: Parts, fraction: float) -> _Array:
    """Return the row, shape (1, features), up to which the sum of weights is this fraction of the total."""
    weights = np.cumsum(parts.each("weight"))
    weight = fraction * weights[-1]
    part = min(int(np.searchsorted(weights, weight, side="right")), len(weights) - 1)
    row: _Array = parts.each("row_at", weight - (weights[part - 1] if part else 0.0))[part]
    return row.astype(np.float64)


def _stack(upper: _Array, lower: _Array) -> _Array:
    return np.vstack([upper, lower])


@dataclass(frozen=True)
class Settings:
    """Settings of a fit, with the names of the estimator's parameters."""

    n_clusters: int
    init: str | _Array
    n_init: int
    max_iter: int
    tol: float
    seed: int
    rows: int
    compute_labels: bool = True


def fit(parts: Parts, settings: Settings) -> Fitted:
    """Return the best of ``n_init`` fits on `KMeansPart` objects."""
    weight, (rows, mean, deviations) = parts.fold(_join, "weight_and_sample", settings.rows)
    weighed(weight)
    if np.square(mean).sum() * rows > deviations.sum():
        parts.sum("center", _rounded(mean, np.sqrt(deviations / rows)))
    best = _run(parts, settings, 0)
    for run in range(1, settings.n_init):
        if run == 1:
            parts.sum("keep")
        fitted = _run(parts, settings, run)
        if fitted.better(best):
            best = fitted
            parts.sum("keep")
    return best


def _join(left: tuple[float, Moments], right: tuple[float, Moments]) -> tuple[float, Moments]:
    """Return the weight of the rows of two parts, and the moments of their samples."""
    return left[0] + right[0], sums.join(left[1], right[1])


def _run(parts: Parts, settings: Settings, run: int) -> Fitted:
    assign = settings.compute_labels or settings.n_init > 1
    return lloyd(parts, first(parts, settings, run), settings.max_iter, settings.tol, assign=assign)


def first(parts: Parts, settings: Settings, run: int) -> _Array:
    """Return the first centers of a run, shape (clusters, features)."""
    if not isinstance(settings.init, str):
        return settings.init.astype(np.float64)
    draw = drawn if settings.init == "random" else spread_out
    return draw(parts, settings.n_clusters, (settings.seed, run))


def _rounded(mean: _Array, spread: _Array) -> _Array:
    """Round a point to some bits of the spread, so that the rounding of other parts does not change the point."""
    grid = np.exp2(np.floor(np.log2(np.where(spread > 0, spread, 1.0))) - 4)
    return np.where(spread > 0, np.round(mean / grid) * grid, mean)
