"""Estimators in the manner of scikit-learn, whose rows lie on the ranks of a cluster.

The names below are loaded when they are first used: what computes on a block needs no Dask.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.ml.comparing import compare_engines
    from workbench.ml.decomposition import PCA, TruncatedSVD
    from workbench.ml.kmeans import KMeans
    from workbench.ml.linear import LinearRegression, Ridge
    from workbench.ml.logistic import LogisticRegression
    from workbench.ml.neighbors import NearestNeighbors
    from workbench.ml.recipe import Recipe
    from workbench.ml.recipe_steps import Bucketise, Impute, Keep, OneHot, Scale, TargetMean
    from workbench.ml.scaler import StandardScaler

_HOME = {
    "Bucketise": "workbench.ml.recipe_steps",
    "Impute": "workbench.ml.recipe_steps",
    "KMeans": "workbench.ml.kmeans",
    "Keep": "workbench.ml.recipe_steps",
    "LinearRegression": "workbench.ml.linear",
    "LogisticRegression": "workbench.ml.logistic",
    "NearestNeighbors": "workbench.ml.neighbors",
    "OneHot": "workbench.ml.recipe_steps",
    "PCA": "workbench.ml.decomposition",
    "Recipe": "workbench.ml.recipe",
    "Ridge": "workbench.ml.linear",
    "Scale": "workbench.ml.recipe_steps",
    "StandardScaler": "workbench.ml.scaler",
    "TargetMean": "workbench.ml.recipe_steps",
    "TruncatedSVD": "workbench.ml.decomposition",
    "compare_engines": "workbench.ml.comparing",
}

__all__ = [
    "PCA",
    "Bucketise",
    "Impute",
    "KMeans",
    "Keep",
    "LinearRegression",
    "LogisticRegression",
    "NearestNeighbors",
    "OneHot",
    "Recipe",
    "Ridge",
    "Scale",
    "StandardScaler",
    "TargetMean",
    "TruncatedSVD",
    "compare_engines",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'workbench.ml' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
