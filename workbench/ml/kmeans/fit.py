"""Fit of K-means on parts: the best of several runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.ml.algebra import moments
from workbench.ml.algebra.moments import Moments
from workbench.ml.engine.parts import Parts, weighed
from workbench.ml.kmeans import first_centers
from workbench.ml.kmeans.lloyd import Fitted, lloyd

_Array = NDArray[Any]


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
    return left[0] + right[0], moments.join(left[1], right[1])


def _run(parts: Parts, settings: Settings, run: int) -> Fitted:
    assign = settings.compute_labels or settings.n_init > 1
    return lloyd(parts, first(parts, settings, run), settings.max_iter, settings.tol, assign=assign)


def first(parts: Parts, settings: Settings, run: int) -> _Array:
    """Return the first centers of a run, shape (clusters, features)."""
    if not isinstance(settings.init, str):
        return settings.init.astype(np.float64)
    draw = first_centers.drawn if settings.init == "random" else first_centers.spread_out
    return draw(parts, settings.n_clusters, (settings.seed, run))


def _rounded(mean: _Array, spread: _Array) -> _Array:
    """Round a point to some bits of the spread, so that the rounding of other parts does not change the point."""
    grid = np.exp2(np.floor(np.log2(np.where(spread > 0, spread, 1.0))) - 4)
    return np.where(spread > 0, np.round(mean / grid) * grid, mean)
