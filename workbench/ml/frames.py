"""Conversion of dataframes of pandas and Dask to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_extension_array_dtype, is_numeric_dtype


def plain(frame: Any) -> Any:
    """Return a dataframe or series, of pandas or Dask, with dtypes of NumPy: nullable numbers become floats."""
    if frame.ndim == 1:
        return frame.astype(_plain(frame.dtype)) if is_extension_array_dtype(frame.dtype) else frame
    others = {
        name: _plain(dtype, np.float64) for name, dtype in frame.dtypes.items() if is_extension_array_dtype(dtype)
    }
    return frame.astype(others) if others else frame


def array_of(frame: Any) -> Any:
    """Return the array of a dataframe or series of pandas."""
    # Categories may be numbers. A block has these, and the metadata of a collection do not.
    categories = frame.ndim == 1 and isinstance(frame.dtype, pd.CategoricalDtype)
    return np.asarray(frame) if categories else plain(frame).to_numpy()


def _plain(dtype: Any, truth: Any = bool) -> Any:
    """Return the dtype of NumPy for a dtype of pandas; `truth` is the dtype for booleans, a float with missing ones."""
    if is_bool_dtype(dtype):
        return truth
    return np.float64 if is_numeric_dtype(dtype) else object
