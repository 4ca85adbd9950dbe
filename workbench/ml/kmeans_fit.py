"""K-means fitted on parts: the choice of the first centres, and Lloyd's iterations."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.ml import moments
from workbench.ml.kmeans_part import join_least
from workbench.ml.parts import Parts, weighed

_Array = NDArray[Any]

# Rounds of k-means||, and how many centres are drawn in each, in multiples of those wanted: Bahmani et al., section 5.
_ROUNDS, _OVERSAMPLING = 5, 2.0


@dataclass(frozen=True)
class Settings:
    """How a fit is made; the names are those of the estimator."""

    n_clusters: int
    init: str | _Array
    n_init: int
    max_iter: int
    tol: float
    seed: int
    rows: int


@dataclass(frozen=True)
class Fitted:
    """What a fit has found."""

    centers: _Array
    """Shape (clusters, features)."""
    inertia: float
    iterations: int
    converged: bool
    distinct: int
    """Clusters that have rows."""


def fit(parts: Parts, settings: Settings) -> Fitted:
    """Fit a model.

    Parameters
    ----------
    parts
        `KMeansPart` objects.
    settings
        How.

    Returns
    -------
    Fitted
        The best of ``n_init`` fits.

    Notes
    -----
    Lloyd, IEEE Transactions on Information Theory 28 (1982). The first centres are those of k-means||: Bahmani et al.,
    Scalable K-Means++, PVLDB 5 (2012). A cluster that becomes empty gets the row that is farthest from its centre. All
    of this, and the tolerance, as scikit-learn has it: from the same first centres it comes to the same ones.
    """
    weighed(parts.sum("weight"))
    rows, mean, deviations = parts.fold(moments.join, "sample", settings.rows)
    if np.square(mean).sum() * rows > deviations.sum():
        parts.sum("center", _rounded(mean, np.sqrt(deviations / rows)))
    return min((_fit(parts, settings, run) for run in range(settings.n_init)), key=lambda fit: fit.inertia)


def _fit(parts: Parts, settings: Settings, run: int) -> Fitted:
    centers = _first(parts, settings, run)
    iterations, shift, moved, threshold = 0, np.inf, 1.0, 0.0
    while iterations < settings.max_iter and moved and shift > threshold:
        iterations += 1
        wanted = iterations == 1 and settings.tol > 0
        sums, counts, scores, moved = parts.sum("step", centers, wanted)
        if wanted:
            threshold = settings.tol * _variance(parts)
        before, centers = centers, _means(parts, centers, sums.copy(), counts.copy())
        shift = float(np.square(centers - before).sum())
        parts.report({"iteration": iterations, "score": scores, "shift": shift, "moved": moved})
    inertia = parts.sum("inertia", centers)
    if not counts.all():
        # Those that had none have been moved since.
        counts = parts.sum("weigh", centers)
    distinct = int(np.count_nonzero(counts))
    return Fitted(centers, inertia, iterations, converged=not moved or shift <= threshold, distinct=distinct)


def _rounded(mean: _Array, spread: _Array) -> _Array:
    """Round a point to some bits of the spread: joined of other parts it is apart by rounding, and now the same."""
    grid = np.exp2(np.floor(np.log2(np.where(spread > 0, spread, 1.0))) - 4)
    return np.where(spread > 0, np.round(mean / grid) * grid, mean)


def _variance(parts: Parts) -> float:
    """Return the variance of the features, on average, after the first step."""
    rows, total, squares = parts.sum("spread")
    return float(max(0.0, squares - total @ total / rows) / (rows * len(total)))


def _means(parts: Parts, before: _Array, sums: _Array, counts: _Array) -> _Array:
    """Return the centres of the clusters; empty ones are moved to where rows are far from their centres."""
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        join = functools.partial(join_least, number=len(empty))
        farthest = parts.fold(join, "farthest", len(empty), before)
        for cluster, (_, _, weight, of, row) in zip(empty, farthest, strict=False):
            sums[of] -= row * weight
            counts[of] -= weight
            sums[cluster], counts[cluster] = row * weight, weight
    means: _Array = np.divide(sums, counts[:, None], out=before.copy(), where=counts[:, None] > 0)
    return means


def _first(parts: Parts, settings: Settings, run: int) -> _Array:
    """Return the first centres, shape (clusters, features)."""
    if not isinstance(settings.init, str):
        return settings.init.astype(np.float64)
    random = np.random.default_rng([settings.seed, run])
    if settings.init == "random":
        return _drawn(parts, settings, run, settings.n_clusters)
    centers = newest = _one(parts, random.random())
    cost = parts.sum("cost", newest)
    for number in range(_ROUNDS):
        if not cost:
            break
        factor = _OVERSAMPLING * settings.n_clusters / cost
        newest = parts.fold(_stack, "draw", factor, (settings.seed, run, number))
        if len(newest):
            centers = np.vstack([centers, newest])
            cost = parts.sum("cost", newest)
    _, different = np.unique(centers, axis=0, return_index=True)
    centers = centers[np.sort(different)]
    if len(centers) < settings.n_clusters:
        # Rows that agree count once; whatever else is added is as good.
        missing = settings.n_clusters - len(centers)
        return np.vstack([centers, _drawn(parts, settings, run, missing)])
    from sklearn.cluster import KMeans as LocalKMeans

    local = LocalKMeans(settings.n_clusters, n_init=3, random_state=int(random.integers(2**31)))
    chosen: _Array = local.fit(centers, sample_weight=parts.sum("weigh", centers)).cluster_centers_
    return chosen.astype(np.float64)


def _one(parts: Parts, share: float) -> _Array:
    """Return the row, shape (1, features), where this share of all weight is reached."""
    weights = np.cumsum(parts.each("weight"))
    weight = share * weights[-1]
    part = min(int(np.searchsorted(weights, weight, side="right")), len(weights) - 1)
    row: _Array = parts.each("row_at", weight - (weights[part - 1] if part else 0.0))[part]
    return row.astype(np.float64)


def _drawn(parts: Parts, settings: Settings, run: int, number: int) -> _Array:
    """Return different rows, drawn by their weights, shape (number, features)."""
    join, seed = functools.partial(join_least, number=number), (settings.seed, run, _ROUNDS)
    lots = parts.fold(join, "lots", number, seed)
    return np.array([row for _, _, row in lots], dtype=np.float64)


def _stack(upper: _Array, lower: _Array) -> _Array:
    return np.vstack([upper, lower])
