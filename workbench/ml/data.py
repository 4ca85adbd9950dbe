"""What an estimator is given to fit on: arrays in this process, or blocks on ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sklearn.utils import check_consistent_length
from sklearn.utils.validation import validate_data

from workbench.ml.checks import Checks
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
    lazy = [name for name, value in given.items() if is_dask_collection(value)]
    if not lazy:
        # Dask weights may be a number, as those of scikit-learn.
        columns = checks.apply(X, y, weight)
        validate_data(model, X, skip_check_array=True)
        return Data(*columns, distributed=False)
    X, y, weight = (_array(value) for value in (X, y, weight))
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
    validate_data(model, X if not hasattr(given["X"], "columns") else given["X"], skip_check_array=True)
    return Data(X, y, weight, distributed=True)


def _array(collection: Any) -> Any:
    """Return the Dask array of a Dask dataframe; arrays as they are."""
    return collection.to_dask_array(lengths=True) if hasattr(collection, "to_dask_array") else collection
