"""The computations of a recipe on one block: the statistics of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.ml.checks import Checks, weights
from workbench.ml.engine.parts import Parts, weighed
from workbench.ml.engine.pass_counter import Passes
from workbench.ml.recipe.statistics import Amounts, Groups, Sample, Spread, Statistics, join

_Array = NDArray[Any]


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
    positions: tuple[int, ...] = ()
    """Numbers of the columns of a stateless transformer, which needs a row."""


@dataclass(frozen=True)
class RecipeChecks(Checks):
    """The requirements for rows: anything with columns, which are checked one by one."""

    frames: ClassVar[bool] = True

    def apply(self, X: Any, y: Any, weight: Any) -> tuple[Any, Any, Any]:
        """See `Checks.apply`."""
        return X, None if y is None else _target(y, self.estimator), weights(weight, np.empty((len(X), 0)))


def _target(y: Any, estimator: str) -> _Array:
    from sklearn.utils import column_or_1d

    values = column_or_1d(y)
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"TargetMean() of a {estimator} needs a target of numbers, for example y == 'yes': {error}"
        ) from error
    if not np.isfinite(numbers).all():
        raise ValueError("Input y contains NaN or infinity, and TargetMean() needs a finite target for all rows.")
    return numbers


def take(rows: Any, position: int) -> pd.Series[Any]:
    """Return a column of a dataframe or an array."""
    column: pd.Series[Any] = rows.iloc[:, position] if hasattr(rows, "iloc") else pd.Series(rows[:, position])
    return column


def take_columns(rows: Any, positions: Sequence[int]) -> Any:
    """Return several columns of a dataframe or an array."""
    return rows.iloc[:, list(positions)] if hasattr(rows, "iloc") else rows[:, list(positions)]


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
            f"column {label!r} has values that are not numbers ({error}). Use OneHot() or TargetMean() for categories."
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
        Shape (rows,), float64: the target; None if no step needs it.
    weight
        Shape (rows,), float64: weights of the rows; rows of weight 0 are dropped; None: all 1.
    start
        Number of the first row in all data.

    Notes
    -----
    Work space: eight times one column as float64 or int64, and the statistics: 128 KiB per column with quantiles, and
    for each category and fold 24 bytes and the name.
    """

    def __init__(self, X: Any, y: _Array | None, weight: _Array | None, start: int) -> None:
        kept = np.arange(len(X)) if weight is None else np.flatnonzero(weight)
        if weight is not None and len(kept) < len(X):
            X, weight, y = getattr(X, "iloc", X)[kept], weight[kept], None if y is None else y[kept]
        self._X, self._y, self._weight, self._numbers = X, y, weight, start + kept

    def weight(self) -> float:
        """Return the weight of all rows."""
        return float(len(self._X)) if self._weight is None else float(self._weight.sum())

    def statistics(self, columns: Sequence[Column]) -> tuple[Statistics, ...]:
        """Return the statistics of each column."""
        return tuple(map(self._statistics, columns))

    def _statistics(self, column: Column) -> Statistics:
        if column.positions:
            return Statistics(sample=Sample(take_columns(self._X, column.positions)[:1]))
        values, folds = take(self._X, column.position), column.folds
        needed = column.is_numeric or column.moments or column.quantiles
        numbers = numbers_of(values, column.label) if needed else np.empty(0)
        if folds and column.is_numeric:
            values = pd.Series(numbers)
        return Statistics(
            Amounts.of(numbers, self._weight) if column.moments else None,
            Spread.of(numbers, self._weight) if column.quantiles else None,
            Groups.of(values, self._y if folds > 1 else None, folds, self._numbers, self._weight) if folds else None,
        )


def statistics(parts: Parts, columns: Sequence[Column]) -> tuple[Statistics, ...]:
    """Return the statistics of all rows, in one pass."""
    result: tuple[Statistics, ...] = Passes(parts).fold(join, "statistics", columns)
    return result


def of_weighed(parts: Parts, columns: Sequence[Column]) -> tuple[Statistics, ...]:
    """Return the statistics of all rows; raise ValueError if the weight of all rows is 0."""
    weighed(parts.sum("weight"))
    return statistics(parts, columns)
