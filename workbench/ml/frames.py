"""Dataframes as arrays: of pandas, also as a block on its rank, and of Dask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_extension_array_dtype, is_numeric_dtype


def plain(frame: Any) -> Any:
    """Return a dataframe or series, of pandas or of Dask, whose types numpy has: nullable numbers become floats."""
    if frame.ndim == 1:
        return frame.astype(_plain(frame.dtype)) if is_extension_array_dtype(frame.dtype) else frame
    others = {
        name: _plain(dtype, np.float64) for name, dtype in frame.dtypes.items() if is_extension_array_dtype(dtype)
    }
    return frame.astype(others) if others else frame


def array_of(frame: Any) -> Any:
    """Return the array of a dataframe or series of pandas."""
    # Categories may be numbers, which a block knows, other than a collection.
    categories = frame.ndim == 1 and isinstance(frame.dtype, pd.CategoricalDtype)
    return np.asarray(frame) if categories else plain(frame).to_numpy()


def _plain(dtype: Any, truth: Any = bool) -> Any:
    """Return the type in place of one that only pandas has, with that of true and false: of a float some may miss."""
    if is_bool_dtype(dtype):
        return truth
    return np.float64 if is_numeric_dtype(dtype) else object
