"""Base classes of estimators that predict labels or numbers: the score of rows in this process, or on ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import ClassifierMixin, RegressorMixin

from workbench.ml.placed import as_array, computed


class Classifier(ClassifierMixin):  # type: ignore[misc]
    """Replaces the mixin of scikit-learn, whose ``score`` needs the lengths of Dask collections."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of the predictions.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.
        y : array-like, or Dask array or series of shape (rows,)
            The labels.
        sample_weight : array-like, or Dask array or series of shape (rows,), default=None
            Weights of the rows; None: all 1.

        Returns
        -------
        float
            The weighted fraction of the rows whose label is predicted.

        Notes
        -----
        The predictions for a Dask collection are computed on the ranks, and sent to this process with labels and
        weights. Dataframes that are not placed are computed once for each of the three.
        """
        from sklearn.metrics import accuracy_score

        labels, weight, predicted = _gathered(self, X, y, sample_weight)
        return float(accuracy_score(labels, predicted, sample_weight=weight))


class Regressor(RegressorMixin):  # type: ignore[misc]
    """Replaces the mixin of scikit-learn, whose ``score`` needs the lengths of Dask collections."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination of the predictions.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.
        y : array-like, or Dask array, series or dataframe of shape (rows,) or (rows, targets)
            The targets.
        sample_weight : array-like, or Dask array or series of shape (rows,), default=None
            Weights of the rows; None: all 1.

        Returns
        -------
        float
            R², at most 1; the mean of all targets.

        Notes
        -----
        The predictions for a Dask collection are computed on the ranks, and sent to this process with the targets.
        """
        from sklearn.metrics import r2_score

        targets, weight, predicted = _gathered(self, X, y, sample_weight)
        return float(r2_score(targets, predicted, sample_weight=weight))


def _gathered(model: Any, X: Any, *columns: Any) -> list[Any]:
    """Return columns and predictions in this process; Dask collections are computed together."""
    # Predictions are arrays, and Dask computes arrays and dataframes together only with a warning.
    collections = [*map(as_array, columns), model.predict(X)]
    found = computed(*collections)
    if isinstance(found[0], np.ndarray) and found[0].dtype.hasobject:
        # Categories may be numbers, which the metadata of a collection do not show.
        frame = pd.Series if found[0].ndim == 1 else pd.DataFrame
        found[0] = frame(found[0]).infer_objects().to_numpy()
    return found
