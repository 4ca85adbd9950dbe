"""First centers of K-means on parts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.ml.engine.parts import LocalParts, Parts
from workbench.ml.kmeans.lloyd import lloyd
from workbench.ml.kmeans.part import KMeansPart, join_least

_Array = NDArray[Any]

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
