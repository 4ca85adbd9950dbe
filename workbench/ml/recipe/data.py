"""The data of a recipe, in this process, lazy, or on ranks, and the folds of its rows."""

from __future__ import annotations

from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.base import is_dask_collection
from sklearn.utils import check_array, check_consistent_length

from workbench.ml.checks import Checks
from workbench.ml.data import Data, refuse_no_rows
from workbench.ml.engine.select import chosen
from workbench.ml.placed import has_lengths, in_blocks, placed
from workbench.placement import sources

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    chosen(engine, distributed=True)  # a placement on a worker would wait for this worker
    X, y, weight = placed((X, y, weight))
    data = Data(in_blocks(X, object), in_blocks(y), in_blocks(weight), distributed=True)
    refuse_no_rows(data.X, checks)
    return data


_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def fold_of(rows: NDArray[np.int64], folds: int) -> NDArray[np.int64]:
    """Return the fold of each row.

    Parameters
    ----------
    rows : ndarray of int64
        Numbers of rows, from 0.
    folds : int
        Number of folds.

    Notes
    -----
    Each group of `folds` consecutive rows has one row in each fold, so that all folds have the same size. A hash of the
    number of the group, the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), assigns the rows: periodic
    rows, for example of days or stations, are in all folds.
    """
    group, place = np.divmod(rows.astype(np.uint64), np.uint64(folds))
    mixed = (group + np.uint64(1)) * np.uint64(_GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
    mixed ^= mixed >> np.uint64(31)
    fold: NDArray[np.int64] = ((place + mixed % np.uint64(folds)) % np.uint64(folds)).astype(np.int64)
    return fold
