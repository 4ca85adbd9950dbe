"""Estimators with the interface of scikit-learn, whose rows are on the ranks of a cluster.

The names below are loaded at their first use, because a computation on a block does not need Dask.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.ml.decomposition.estimators import PCA, TruncatedSVD
    from workbench.ml.kmeans.estimator import KMeans
    from workbench.ml.linear.estimators import LinearRegression, Ridge
    from workbench.ml.logistic.estimator import LogisticRegression
    from workbench.ml.neighbors.estimator import NearestNeighbors
    from workbench.ml.recipe.estimator import Recipe
    from workbench.ml.scaler.estimator import StandardScaler

_HOME = {
    "KMeans": "workbench.ml.kmeans.estimator",
    "LinearRegression": "workbench.ml.linear.estimators",
    "LogisticRegression": "workbench.ml.logistic.estimator",
    "NearestNeighbors": "workbench.ml.neighbors.estimator",
    "PCA": "workbench.ml.decomposition.estimators",
    "Recipe": "workbench.ml.recipe.estimator",
    "Ridge": "workbench.ml.linear.estimators",
    "StandardScaler": "workbench.ml.scaler.estimator",
    "TruncatedSVD": "workbench.ml.decomposition.estimators",
}

PRELOAD = (
    *dict.fromkeys(_HOME.values()),
    "workbench.ml.decomposition.fit", "workbench.ml.engine.kept_arrays", "workbench.ml.engine.dask_parts",
    "workbench.ml.engine.mpi_parts", "workbench.ml.kmeans.fit", "workbench.ml.linear.fit", "workbench.ml.logistic.fit",
    "workbench.ml.neighbors.search", "workbench.ml.recipe.fitted", "dask.array",
    "distributed.protocol.numpy", "scipy.optimize", "scipy.stats",
)  # fmt: skip
"""Modules that the first fits and predictions import on each rank."""

__all__ = [
    "PCA",
    "KMeans",
    "LinearRegression",
    "LogisticRegression",
    "NearestNeighbors",
    "Recipe",
    "Ridge",
    "StandardScaler",
    "TruncatedSVD",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'workbench.ml' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
