"""Estimators in the manner of scikit-learn, whose rows lie on the ranks of a cluster.

The names below are loaded when they are first used: what computes on a block needs no Dask.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.ml.comparing import compare_engines
    from workbench.ml.kmeans import KMeans
    from workbench.ml.logistic import LogisticRegression

_HOME = {
    "KMeans": "workbench.ml.kmeans",
    "LogisticRegression": "workbench.ml.logistic",
    "compare_engines": "workbench.ml.comparing",
}

__all__ = ["KMeans", "LogisticRegression", "compare_engines"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'workbench.ml' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
