"""Estimators with the interface of scikit-learn, whose rows are on the ranks of a cluster.

The names below are loaded at their first use, because a computation on a block does not need Dask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench import lazy

if TYPE_CHECKING:
    from workbench.ml.decomposition.estimators import PCA as PCA
    from workbench.ml.decomposition.estimators import TruncatedSVD as TruncatedSVD
    from workbench.ml.kmeans.estimator import KMeans as KMeans
    from workbench.ml.linear.estimators import LinearRegression as LinearRegression
    from workbench.ml.linear.estimators import Ridge as Ridge
    from workbench.ml.logistic.estimator import LogisticRegression as LogisticRegression
    from workbench.ml.neighbors.estimator import NearestNeighbors as NearestNeighbors
    from workbench.ml.recipe.estimator import Recipe as Recipe
    from workbench.ml.scaler.estimator import StandardScaler as StandardScaler

_HOMES = {
    "workbench.ml.decomposition.estimators": "PCA TruncatedSVD",
    "workbench.ml.kmeans.estimator": "KMeans",
    "workbench.ml.linear.estimators": "LinearRegression Ridge",
    "workbench.ml.logistic.estimator": "LogisticRegression",
    "workbench.ml.neighbors.estimator": "NearestNeighbors",
    "workbench.ml.recipe.estimator": "Recipe",
    "workbench.ml.scaler.estimator": "StandardScaler",
}
__getattr__, __dir__, __all__ = lazy.names(__name__, _HOMES)

PRELOAD = (
    *_HOMES,
    "workbench.ml.decomposition.fit", "workbench.ml.engine.kept_arrays", "workbench.ml.engine.dask_parts",
    "workbench.ml.engine.mpi_parts", "workbench.ml.kmeans.fit", "workbench.ml.linear.fit", "workbench.ml.logistic.fit",
    "workbench.ml.neighbors.search", "workbench.ml.recipe.fitted", "dask.array",
    "distributed.protocol.numpy", "scipy.optimize", "scipy.stats",
)  # fmt: skip
"""Modules that the first fits and predictions import on each rank."""
