"""What an estimator is given to fit on: arrays in this process, or blocks on ranks."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
from pandas.api.types import is_bool_dtype, is_extension_array_dtype, is_numeric_dtype
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import validate_data

from workbench.ml.checks import Checks, checked
from workbench.placing.source import describe


@dataclass(frozen=True)
class Data:
    """Rows to fit on."""

    X: Any
    y: Any
    weight: Any
    """The weights of the rows; None, as ``y``, where there is none."""
    distributed: bool
    """Whether these are Dask collections, which are checked where they lie."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the rows once they are checked, and of what is found."""
        return checked(self.X.dtype)

    def columns(self) -> tuple[Any, Any, Any]:
        """Return all three."""
        return self.X, self.y, self.weight


def training(model: Any, checks: Checks, X: Any, y: Any = None, weight: Any = None) -> Data:
    """Return what is given to ``fit``, once its parameters are checked, and have the estimator know its features.

    Raises
    ------
    ValueError, TypeError
        As scikit-learn, if what is given cannot be: at once for arrays, and for Dask collections as far as it can be
        told without computing anything.
    """
    from dask.base import is_dask_collection

    model._validate_params()
    given = {"X": X, "y": y, "sample_weight": weight}
    given["sample_weight"] = weight = per_row(weight, X)
    lazy = [name for name, value in given.items() if is_dask_collection(value)]
    if not lazy:
        columns = checks.apply(X, y, weight)
        validate_data(model, X, skip_check_array=True)
        return Data(*columns, distributed=False)
    X, y, weight = (as_array(value) for value in (X, y, weight))
    for name, value in given.items():
        if value is not None and name not in lazy:
            raise TypeError(
                f"{name} is {describe(value)} and {lazy[0]} is {describe(given[lazy[0]])}: pass Dask collections only "
                f"(dask.array.from_array({name})), or none"
            )
    if X.ndim != 2:
        raise ValueError(f"Expected 2D array, got {X.ndim}D array instead: its shape is {X.shape}. Reshape your data.")
    if y is None and checks.target:
        raise ValueError(f"This {type(model).__name__} estimator requires y to be passed, but the target y is None.")
    check_consistent_length(X, y, weight)
    if y is not None:
        checks.shape(y)
    know_features(model, given["X"], reset=True)
    return Data(X, y, weight, distributed=True)


def per_row(weight: Any, X: Any) -> Any:
    """Return a number that all rows of a Dask collection weigh as a Dask array of one for each; others as they are."""
    import dask.array as da
    from dask.base import is_dask_collection

    if not (isinstance(weight, Number) and is_dask_collection(X)):
        return weight
    (lengths, *_) = as_array(X).chunks
    return da.full(sum(lengths), weight, chunks=(lengths,))


def know_features(model: Any, X: Any, *, reset: bool) -> None:
    """Have an estimator take number and names of the features of a Dask collection, or compare them with its own.

    Raises
    ------
    ValueError
        As scikit-learn, if they are others.
    """
    # The frame without rows that a Dask dataframe shows is one that scikit-learn knows.
    frame = X._meta if hasattr(X, "columns") else X
    validate_data(model, frame, reset=reset, skip_check_array=True)


def as_array(collection: Any) -> Any:
    """Return the Dask array of a Dask dataframe or series; arrays as they are."""
    if not hasattr(collection, "to_dask_array"):
        return collection
    # Dask warns of types that only pandas has: text becomes objects, as in pandas, nullable numbers become floats.
    if collection.ndim == 1:
        if is_extension_array_dtype(collection.dtype):
            collection = collection.astype(_plain(collection.dtype))
    else:
        plain = {name: _plain(dtype) for name, dtype in collection.dtypes.items() if is_extension_array_dtype(dtype)}
        collection = collection.astype(plain) if plain else collection
    return collection.to_dask_array(lengths=True)


def _plain(dtype: Any) -> Any:
    if is_bool_dtype(dtype):
        return bool
    return np.float64 if is_numeric_dtype(dtype) else object
