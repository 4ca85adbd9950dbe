"""The computations of a recipe on one block: the statistics of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.ml.checks import Checks, weights
from workbench.ml.engine.parts import Parts, Passes, weighed
from workbench.ml.labels import classes_of, classes_of_both, codes_of
from workbench.ml.recipe.statistics import Amounts, Groups, Sample, Spread, Statistics, join
from workbench.text import count

_Array = NDArray[Any]

_MOST = 100
"""Maximum number of different whole numbers that are labels without a statement of the user."""


@dataclass(frozen=True)
class Column:
    """The required statistics of a column, in values that a rank loads without scikit-learn."""

    position: int
    """Number of the column."""
    label: Any
    """Name of the column, for messages."""
    is_numeric: bool = False
    """Whether the column must have numbers."""
    moments: bool = False
    quantiles: bool = False
    folds: int = 0
    """Number of folds for the statistics of categories; 0: no such statistics."""
    target: str = ""
    """Type of the target, as `TargetEncoder` of scikit-learn has it; empty: the statistics are without a target."""
    positions: tuple[int, ...] = ()
    """Numbers of the columns of a stateless transformer, which needs a row."""
    is_series: bool = False
    """Whether the stateless transformer receives its one column as a series, or as an array with one axis."""

    def of_table(self, rows: Any) -> Any:
        """Return the columns of the stateless transformer of a dataframe or an array."""
        chosen = self.position if self.is_series else list(self.positions)
        return rows.iloc[:, chosen] if hasattr(rows, "iloc") else rows[:, chosen]

    @property
    def has_labels(self) -> bool:
        """Whether the target may be labels."""
        return self.target not in {"", "continuous"}

    def of_target(self, classes: _Array | None) -> Column:
        """Return the column with the type of the target in place of ``"auto"``.

        Parameters
        ----------
        classes
            The sorted labels; None for numbers of which some are not whole.

        Raises
        ------
        ValueError
            If the target has another type.
        """
        found = "continuous" if classes is None else "binary" if len(classes) <= 2 else "multiclass"
        if not self.has_labels or self.target == found:
            return self
        if self.target != "auto":
            what = "numbers that are not whole" if classes is None else count(len(classes), "label")
            raise ValueError(
                f"TargetEncoder(target_type={self.target!r}) is not valid for a target with {what}. Pass "
                f"target_type={found!r}."
            )
        if classes is not None and classes.dtype.kind in "fiu" and len(classes) > _MOST:
            raise ValueError(
                f"The target of a TargetEncoder() has {len(classes)} different whole numbers, which may be numbers or "
                "labels. Pass target_type='continuous' or 'multiclass'."
            )
        return replace(self, target=found)


@dataclass(frozen=True)
class RecipeChecks(Checks):
    """The requirements for rows: anything with columns, which are checked one by one."""

    frames: ClassVar[bool] = True

    def apply(self, X: Any, y: Any, weight: Any) -> tuple[Any, Any, Any]:
        """See `Checks.apply`."""
        return X, None if y is None else _target(y), weights(weight, np.empty((len(X), 0)))


def _target(y: Any) -> _Array:
    from sklearn.utils import column_or_1d

    values: _Array = column_or_1d(y)
    if values.dtype == object:
        # Numbers in an array of objects are numbers, and text stays objects.
        values = pd.Series(values).infer_objects().to_numpy()
    return _known(values)


def _known(values: _Array) -> _Array:
    if pd.isna(values).any() or (values.dtype.kind == "f" and np.isinf(values).any()):
        raise ValueError("Input y contains NaN or infinity, and a target encoder needs a known target for all rows.")
    return values


def _numeric(target: _Array) -> _Array:
    try:
        if target.dtype.kind in "mM":
            raise TypeError(f"its dtype is {target.dtype}")  # noqa: TRY301  (both errors get the same message)
        return _known(target.astype(np.float64, copy=False))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"TargetEncoder(target_type='continuous') needs a target of numbers, for example y == 'yes' ({error}). "
            "Pass target_type='auto' for labels."
        ) from error


def take(rows: Any, position: int) -> pd.Series[Any]:
    """Return a column of a dataframe or an array."""
    column: pd.Series[Any] = rows.iloc[:, position] if hasattr(rows, "iloc") else pd.Series(rows[:, position])
    return column


def numbers_of(values: pd.Series[Any], label: Any) -> _Array:
    """Return a column as numbers, with NaN for missing values.

    Raises
    ------
    ValueError
        If a value is not a number, or infinite.
    """
    try:
        if values.dtype.kind in "mM":
            raise TypeError(f"its dtype is {values.dtype}")  # noqa: TRY301  (both errors get the same message)
        numbers: _Array = values.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"column {label!r} has values that are not numbers ({error}). Use OneHotEncoder() or "
            "TargetEncoder() for categories."
        ) from error
    if np.isinf(numbers).any():
        raise ValueError(f"Input X contains infinity or a value too large for float64, in column {label!r}")
    return numbers


class RecipePart:
    """A block.

    Parameters
    ----------
    X
        A dataframe or an array.
    y
        Shape (rows,): the target, numbers or labels; None if no step needs it.
    weight
        Shape (rows,), float64: weights of the rows; rows of weight 0 are dropped; None: all 1.
    start
        Number of the first row in all data.

    Notes
    -----
    Work space: eight times one column as float64 or int64, and the statistics: 128 KiB per column with quantiles, and
    for each category and fold 24 bytes and the name. For a target with more than two classes a category and fold has 8
    bytes, and 16 for each class.
    """

    def __init__(self, X: Any, y: Any, weight: _Array | None, start: int) -> None:
        kept = np.arange(len(X)) if weight is None else np.flatnonzero(weight)
        if weight is not None and len(kept) < len(X):
            X, weight, y = getattr(X, "iloc", X)[kept], weight[kept], None if y is None else y[kept]
        self._X, self._y, self._weight, self._numbers = X, y, weight, start + kept

    def weight(self) -> float:
        """Return the weight of all rows."""
        return float(len(self._X)) if self._weight is None else float(self._weight.sum())

    def classes(self) -> _Array | None:
        """Return the sorted labels of the target; None for numbers of which some are not whole."""
        if self._y.dtype.kind == "f" and (self._y != np.rint(self._y)).any():
            return None
        return classes_of(self._y)

    def statistics(self, columns: Sequence[Column], classes: _Array | None = None) -> tuple[Statistics, ...]:
        """Return the statistics of each column, with the sorted labels of all blocks if the target has labels."""
        codes = None if classes is None else codes_of(self._y, classes)
        return tuple(self._statistics(column, classes, codes) for column in columns)

    def _statistics(self, column: Column, classes: _Array | None, codes: _Array | None) -> Statistics:
        if column.positions:
            return Statistics(sample=Sample(column.of_table(self._X)[:1]))
        values, folds = take(self._X, column.position), column.folds
        needed = column.is_numeric or column.moments or column.quantiles
        numbers = numbers_of(values, column.label) if needed else np.empty(0)
        if folds and column.is_numeric:
            values = pd.Series(numbers)
        if not column.has_labels:
            classes, codes = None, _numeric(self._y) if column.target else None
        return Statistics(
            Amounts.of(numbers, self._weight) if column.moments else None,
            Spread.of(numbers, self._weight) if column.quantiles else None,
            Groups.of(values, codes, classes, folds, self._numbers, weight=self._weight) if folds else None,
        )


def statistics(parts: Parts, columns: Sequence[Column]) -> tuple[Statistics, ...]:
    """Return the statistics of all rows, in one pass; a target with labels needs a pass before, which finds these."""
    passes, classes = Passes(parts), None
    if any(column.has_labels for column in columns):
        classes = passes.fold(_labels_of_both, "classes")
        columns = tuple(column.of_target(classes) for column in columns)
    result: tuple[Statistics, ...] = passes.fold(join, "statistics", columns, classes)
    return result


def _labels_of_both(left: _Array | None, right: _Array | None) -> _Array | None:
    """Return the result of `RecipePart.classes` for both blocks."""
    return None if left is None or right is None else classes_of_both(left, right)


def of_weighed(parts: Parts, columns: Sequence[Column]) -> tuple[Statistics, ...]:
    """Return the statistics of all rows; raise ValueError if the weight of all rows is 0."""
    weighed(parts.sum("weight"))
    return statistics(parts, columns)
