"""Conversion of dataframes of pandas and Dask to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_extension_array_dtype, is_numeric_dtype, is_object_dtype


def plain(frame: Any) -> Any:
    """Return a dataframe or series, of pandas or Dask, with dtypes of NumPy: nullable numbers become floats."""
    if frame.ndim == 1:
        return frame.astype(_plain(frame.dtype)) if is_extension_array_dtype(frame.dtype) else frame
    others = {name: _plain(dtype) for name, dtype in frame.dtypes.items() if is_extension_array_dtype(dtype)}
    return frame.astype(others) if others else frame


def array_of(frame: Any) -> Any:
    """Return the array of a dataframe or series of pandas, in a series with NaN for missing values."""
    if frame.ndim > 1:
        return plain(frame).to_numpy()
    if not isinstance(frame.dtype, pd.CategoricalDtype):
        may_miss = is_extension_array_dtype(frame.dtype) or is_object_dtype(frame.dtype)
        return frame.to_numpy(_plain(frame.dtype), na_value=np.nan) if may_miss else frame.to_numpy()
    # Categories may be numbers. A block has these, and the metadata of a collection do not.
    values = np.asarray(frame)
    return values.astype(np.float64) if is_bool_dtype(frame.dtype) else values


def _plain(dtype: Any) -> Any:
    """Return the dtype of NumPy for a dtype of pandas: as in scikit-learn, booleans that may be missing are floats."""
    return np.float64 if is_numeric_dtype(dtype) or is_bool_dtype(dtype) else object
