"""Tables that a recipe is given: in this process, or lazy, or on ranks."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np
from dask.base import is_dask_collection
from sklearn.utils import check_array, check_consistent_length

from workbench.ml import fitting
from workbench.ml.checks import Checks
from workbench.ml.data import Data, per_row
from workbench.placing import alike, source


def local(X: Any) -> Any:
    """Return a table of this process: a frame as it is, anything else as an array.

    Raises
    ------
    ValueError, TypeError
        As scikit-learn words it.
    """
    if hasattr(X, "iloc") and X.ndim == 2:
        return X
    return check_array(X, dtype=None, ensure_all_finite=False, ensure_min_samples=0, input_name="X")


def training(checks: Checks, X: Any, y: Any, weight: Any, engine: str) -> Data:
    """Return what a recipe is fitted on: as it is for this process, else placed and of known lengths.

    Raises
    ------
    ValueError, TypeError
        If these do not fit together.
    """
    weight = per_row(weight, X)
    for name, value in (("y", y), ("sample_weight", weight)):
        if value is None:
            continue
        if is_dask_collection(X) != is_dask_collection(value):
            raise TypeError(
                f"X is {source.describe(X)} and {name} is {source.describe(value)}: pass Dask collections only, or none"
            )
        # Dask dataframes are counted when they are placed.
        if not isinstance(value, Number) and not any(hasattr(each, "divisions") for each in (X, value)):
            check_consistent_length(X, value)
    if not is_dask_collection(X):
        if not len(X):
            raise ValueError(f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required.")
        X, y, weight = checks.apply(X, y, weight)
        if engine == "auto":
            return Data(X, y, weight, distributed=False)
    elif X.ndim != 2:
        raise ValueError(f"Expected 2D array, got {X.ndim}D array instead: its shape is {X.shape}. Reshape your data.")
    elif y is not None:
        checks.shape(y)
    placed = fitting._placed(Data(X, y, weight, distributed=True), engine)
    return Data(blocks_of(placed.X)[0], placed.y, placed.weight, distributed=True)


def blocks_of(X: Any) -> tuple[Any, Sequence[int]]:
    """Return a Dask collection whose blocks have all columns, and how many rows each block has.

    Notes
    -----
    A dataframe that is placed comes as a Dask array: its chunks are the frames, and their lengths are known. Others
    have to be counted.
    """
    if not hasattr(X, "divisions"):
        X = X.rechunk({1: -1})
        return X, X.chunks[0]
    if source.placed_per(X) is None:
        return X, tuple(X.map_partitions(len, enforce_metadata=False).compute())
    futures = alike.blocks(X)
    lengths = [pin.rows or 0 for pin in alike.pins(futures[0].client, X, futures)]
    graph = {(X._name, number, 0): future for number, future in enumerate(futures)}
    return source.collection(np.empty((0, len(X.columns)), object), X._name, graph, lengths), tuple(lengths)
