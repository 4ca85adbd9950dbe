"""What an estimator is given to fit on: arrays in this process, or blocks on ranks."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any

from dask.base import is_dask_collection
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import validate_data

from workbench.ml.checks import Checks, checked
from workbench.ml.engine.select import chosen
from workbench.ml.placed import has_lengths, in_blocks, placed
from workbench.placement.sources import type_name

if TYPE_CHECKING:
    import numpy as np


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
        As scikit-learn, if what is given cannot be: at once for arrays, and for Dask collections as far as this is
        known without computing anything.

    Notes
    -----
    Dataframes, and arrays of unknown lengths, are placed here, all at once, since the number of their rows has to be
    known; other collections when the fit begins.
    """
    model._validate_params()
    arguments = {"X": X, "y": y, "sample_weight": weight}
    lazy = [name for name, value in arguments.items() if is_dask_collection(value)]
    if not lazy:
        columns = checks.apply(X, y, weight)
        validate_data(model, X, skip_check_array=True)
        return Data(*columns, distributed=False)
    for name, value in arguments.items():
        if value is not None and name not in lazy and not (name == "sample_weight" and isinstance(value, Number)):
            raise TypeError(
                f"{name} is {type_name(value)} and {lazy[0]} is {type_name(arguments[lazy[0]])}: pass Dask collections "
                f"only (dask.array.from_array({name})), or none"
            )
    if X.ndim != 2 and not (checks.several_axes and X.ndim > 2):
        raise ValueError(f"Expected 2D array, got {X.ndim}D array instead: its shape is {X.shape}. Reshape your data.")
    if y is None and checks.target:
        raise ValueError(f"This {type(model).__name__} estimator requires y to be passed, but the target y is None.")
    collections = [arguments[name] for name in lazy]
    countable = all(map(has_lengths, collections))
    if countable:
        check_consistent_length(*collections)
    if y is not None:
        checks.shape(y)
    know_features(model, X, reset=True)
    if not countable:
        X, y, weight = map(in_blocks, placed((X, y, weight), chosen(model.engine, distributed=True)))
    return Data(X, y, weight, distributed=True)


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
