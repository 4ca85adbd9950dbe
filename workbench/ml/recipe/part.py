"""What a recipe needs of one block: its columns, and their statistics."""

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
    """What a recipe needs to know of a column, in values that a rank loads without scikit-learn."""

    position: int
    """Its number."""
    label: Any
    """Its name, for messages."""
    is_numeric: bool = False
    """Whether it has to be of numbers."""
    moments: bool = False
    quantiles: bool = False
    folds: int = 0
    """Number of folds of the rows whose categories are needed; 0: no categories are needed."""
    positions: tuple[int, ...] = ()
    """Numbers of the columns of a stateless transformer, of which a row is needed."""


@dataclass(frozen=True)
class RecipeChecks(Checks):
    """What rows have to be: anything that has columns; these are looked at one by one."""

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
            f"TargetMean() of a {estimator} needs a target of numbers, e.g. y == 'yes': {error}"
        ) from error
    if not np.isfinite(numbers).all():
        raise ValueError("Input y contains NaN or infinity: TargetMean() needs the target of all rows")
    return numbers


def take(rows: Any, position: int) -> pd.Series[Any]:
    """Return a column of a frame or an array."""
    column: pd.Series[Any] = rows.iloc[:, position] if hasattr(rows, "iloc") else pd.Series(rows[:, position])
    return column


def take_columns(rows: Any, positions: Sequence[int]) -> Any:
    """Return several columns of a frame or an array."""
    return rows.iloc[:, list(positions)] if hasattr(rows, "iloc") else rows[:, list(positions)]


def numbers_of(values: pd.Series[Any], label: Any) -> _Array:
    """Return a column as numbers, NaN where one is missing.

    Raises
    ------
    ValueError
        If it is of anything else, or one is infinite.
    """
    try:
        if values.dtype.kind in "mM":
            raise TypeError(f"it is of {values.dtype}")  # noqa: TRY301  (one sentence for all)
        numbers: _Array = values.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"column {label!r} is not of numbers ({error}): use OneHot() or TargetMean() for categories"
        ) from error
    if np.isinf(numbers).any():
        raise ValueError(f"Input X contains infinity or a value too large for float64, in column {label!r}")
    return numbers


class RecipePart:
    """A block.

    Parameters
    ----------
    X
        A frame or an array.
    y
        Shape (rows,), float64: the target; None where it is not needed.
    weight
        Shape (rows,), float64: weights of the rows, of which those of weight 0 are left out; None: all 1.
    start
        The number of the first row.

    Notes
    -----
    Work space: eight times one column as float64 or int64, and the statistics: 128 KiB for each column whose quantiles
    are needed; for each category 24 bytes and its name, times the folds.
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
        """Return what is needed of each column."""
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
    found: tuple[Statistics, ...] = Passes(parts).fold(join, "statistics", columns)
    return found


def of_weighed(parts: Parts, columns: Sequence[Column]) -> tuple[Statistics, ...]:
    """Return the statistics of all rows, not all of which may weigh 0."""
    weighed(parts.sum("weight"))
    return statistics(parts, columns)
