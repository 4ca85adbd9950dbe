"""Comparison of the engines by the same fit, from a notebook of a clone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from workbench.ml.placed import placed

if TYPE_CHECKING:
    from workbench.ml.estimator import Estimator


def compare_engines(estimator: Estimator, X: Any, y: Any = None, sample_weight: Any = None) -> pd.DataFrame:
    """Fit an estimator on both engines; print and return the times, and the differences of the results.

    Parameters
    ----------
    estimator : Estimator
        An estimator of `workbench.ml`, fitted or not; the estimator is not changed.
    X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
        The rows. Rows, labels and weights are placed once, before the time of a fit begins.
    y : array-like, or Dask array or series of shape (rows,) or (rows, targets), default=None
        Labels or targets.
    sample_weight : float, array-like, or Dask array or series of shape (rows,), default=None
        Weights of the rows; None: all 1.

    Returns
    -------
    pandas.DataFrame
        Index: the engines. Columns: ``seconds``; ``iterations`` of iterative estimators; for each fitted array or
        number the largest difference between the engines, relative to the largest value.
    """
    arguments = dict(zip(("X", "y", "sample_weight"), placed((X, y, sample_weight)), strict=True))
    arguments = {name: value for name, value in arguments.items() if value is not None}
    # Both fits need the same random numbers.
    same = {"random_state": 0} if estimator.get_params().get("random_state", 0) is None else {}
    fitted: dict[str, Any] = {}
    rows: dict[str, dict[str, float]] = {}
    for engine in ("dask", "mpi"):
        model = fitted[engine] = clone(estimator).set_params(engine=engine, **same)
        begin = time.perf_counter()
        model.fit(**arguments)
        rows[engine] = {"seconds": time.perf_counter() - begin}
        if hasattr(model, "n_iter_"):
            rows[engine]["iterations"] = int(np.max(model.n_iter_))
    for name, value in vars(fitted["dask"]).items():
        if name.startswith("n_") or not name.endswith("_") or not _is_numbers(value):
            continue
        apart = np.abs(np.asarray(value) - np.asarray(getattr(fitted["mpi"], name))).max(initial=0.0)
        for row in rows.values():
            row[name] = float(apart / (np.abs(value).max(initial=0.0) or 1.0))
    table = pd.DataFrame.from_dict(rows, orient="index")
    print(table.to_string(float_format="{:.3g}".format))
    return table


def _is_numbers(value: Any) -> bool:
    return isinstance(value, (int, float, np.ndarray)) and np.issubdtype(np.asarray(value).dtype, np.number)
