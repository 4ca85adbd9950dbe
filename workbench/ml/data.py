"""The data of a fit: arrays in this process, or blocks on ranks."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any

from dask.base import is_dask_collection
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import validate_data

from workbench.ml.checks import Checks, checked
from workbench.ml.engine.select import chosen
from workbench.ml.frames import array_of
from workbench.ml.placed import has_lengths, in_blocks, placed
from workbench.placement.sources import type_name

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Data:
    """Rows, targets and weights of a fit."""

    X: Any
    y: Any
    weight: Any
    """The weights of the rows; None, like ``y``, if the fit has none."""
    distributed: bool
    """Whether these are Dask collections, which are checked on their ranks."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the checked rows, and of the results."""
        return checked(self.X.dtype)

    def columns(self) -> tuple[Any, Any, Any]:
        """Return rows, targets and weights."""
        return self.X, self.y, self.weight


def training(model: Any, checks: Checks, X: Any, y: Any = None, weight: Any = None, *, reset: bool = True) -> Data:
    """Check the parameters of an estimator and the arguments of ``fit``, set the features, and return the data.

    Parameters
    ----------
    model, checks
        The estimator and its requirements.
    X, y, weight
        The arguments of ``fit``.
    reset
        Whether the features are set; False: they are compared with those of the earlier rows.

    Raises
    ------
    ValueError, TypeError
        The error of scikit-learn for arguments that are not valid. Dask collections are checked here as far as this
        needs no computation, and on their ranks otherwise.

    Notes
    -----
    Dataframes and arrays of unknown lengths are placed here, together, because a fit needs the number of rows. Other
    collections are placed when the fit begins.
    """
    model._validate_params()
    arguments = {"X": X, "y": y, "sample_weight": weight}
    lazy = [name for name, value in arguments.items() if is_dask_collection(value)]
    if not lazy:
        columns = checks.apply(X, array_of(y) if hasattr(y, "iloc") else y, weight)
        validate_data(model, X, reset=reset, skip_check_array=True)
        return Data(*columns, distributed=False)
    for name in lazy:
        axes_of(arguments[name], name)
    for name, value in arguments.items():
        if value is not None and name not in lazy and not (name == "sample_weight" and isinstance(value, Number)):
            raise TypeError(
                f"{name} is {type_name(value)} and {lazy[0]} is {type_name(arguments[lazy[0]])}. Pass only Dask "
                f"collections (dask.array.from_array({name})), or no Dask collection."
            )
    if not (checks.several_axes and axes_of(X) > 2):
        refuse_other_axes(X)
    if y is None and checks.target:
        raise ValueError(f"This {type(model).__name__} estimator requires y to be passed, but the target y is None.")
    collections = [arguments[name] for name in lazy]
    countable = all(map(has_lengths, collections))
    if countable:
        check_consistent_length(*collections)
    if y is not None:
        checks.shape(y)
    know_features(model, X, reset=reset)
    if not countable:
        chosen(model.engine, distributed=True)  # a placement on a worker would wait for this worker
        X, y, weight = map(in_blocks, placed((X, y, weight)))
    refuse_no_rows(X, checks)
    return Data(X, y, weight, distributed=True)


def refuse_no_rows(X: Any, checks: Checks) -> None:
    """Raise the ValueError of scikit-learn if all blocks together have no rows; single blocks may have none."""
    if not X.shape[0]:
        raise ValueError(
            f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required by {checks.estimator}."
        )


def axes_of(collection: Any, name: str = "X") -> int:
    """Return the number of axes of a Dask collection; raise TypeError if it is neither an array nor a dataframe."""
    # An object of `dask.delayed` has attributes of any name.
    if not hasattr(type(collection), "ndim"):
        raise TypeError(
            f"{name} is {type_name(collection)}, whose rows are not known. Pass a Dask array or dataframe, for example "
            "of dask.array.from_delayed or dask.dataframe.from_delayed."
        )
    return int(collection.ndim)


def refuse_other_axes(X: Any) -> None:
    """Raise the ValueError of scikit-learn if a Dask collection has not two axes, and TypeError as `axes_of` does."""
    if (number := axes_of(X)) != 2:
        shape = f": its shape is {X.shape}" if has_lengths(X) else ""
        raise ValueError(f"Expected 2D array, got {number}D array instead{shape}. Reshape your data.")


def know_features(model: Any, X: Any, *, reset: bool) -> None:
    """Set number and names of an estimator's features from a Dask collection, or compare them with the earlier ones.

    Raises
    ------
    ValueError
        The error of scikit-learn if the features differ.
    TypeError
        See `axes_of`.
    """
    axes_of(X)
    # scikit-learn reads the features of a Dask dataframe from the dataframe without rows.
    frame = X._meta if hasattr(X, "columns") else X
    validate_data(model, frame, reset=reset, skip_check_array=True)
