"""Estimators in the manner of scikit-learn, whose rows lie on the ranks of a cluster."""

from __future__ import annotations

from workbench.ml.kmeans import KMeans
from workbench.ml.logistic import LogisticRegression

__all__ = ["KMeans", "LogisticRegression"]
