"""The data of a recipe: in this process, lazy, or on ranks."""

from __future__ import annotations

from numbers import Number
from typing import Any

from dask.base import is_dask_collection
from sklearn.utils import check_array, check_consistent_length

from workbench.ml.checks import Checks
from workbench.ml.data import Data, refuse_no_rows
from workbench.ml.engine.select import chosen
from workbench.ml.placed import has_lengths, in_blocks, placed
from workbench.placement import sources


def local(X: Any) -> Any:
    """Return a table of this process: a dataframe unchanged, anything else as an array.

    Raises
    ------
    ValueError, TypeError
        The error of scikit-learn.
    """
    if hasattr(X, "iloc") and X.ndim == 2:
        return X
    return check_array(X, dtype=None, ensure_all_finite=False, ensure_min_samples=0, input_name="X")


def training(checks: Checks, X: Any, y: Any, weight: Any, engine: str) -> Data:
    """Return the data of a fit: unchanged for this process, else placed.

    Raises
    ------
    ValueError, TypeError
        If table, target and weights have different lengths or types.
    """
    for name, value in (("y", y), ("sample_weight", weight)):
        if value is None or isinstance(value, Number):
            continue
        if is_dask_collection(X) != is_dask_collection(value):
            raise TypeError(
                f"X is {sources.type_name(X)} and {name} is {sources.type_name(value)}. "
                "Pass only Dask collections, or no Dask collection."
            )
        # Placing counts the rows of Dask dataframes.
        if not is_dask_collection(X) or (has_lengths(X) and has_lengths(value)):
            check_consistent_length(X, value)
    if not is_dask_collection(X):
        refuse_no_rows(X, checks)
        X, y, weight = checks.apply(X, y, weight)
        if chosen(engine, distributed=False) == "local":
            return Data(X, y, weight, distributed=False)
    elif y is not None:
        checks.shape(y)
    X, y, weight = placed((X, y, weight), chosen(engine, distributed=True))
    data = Data(in_blocks(X, object), in_blocks(y), in_blocks(weight), distributed=True)
    refuse_no_rows(data.X, checks)
    return data
