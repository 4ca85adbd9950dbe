"""What a recipe has to know of a column, found in one pass over a block and joined with that of others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.ml.algebra import moments
from workbench.ml.recipe.folds import fold_of
from workbench.ml.scaler.part import ScalerPart

_Array = NDArray[Any]

POINTS = 1 << 13
"""Numbers by which a block tells where its quantiles are."""


@dataclass(frozen=True)
class Amounts:
    """Moments of numbers."""

    rows: float
    """Weight of those that have a number; wherever rows are counted, it is by their weights."""
    mean: float
    squares: float
    """Sum of the squared deviations from the mean."""
    missing: float

    @classmethod
    def of(cls, numbers: _Array, weight: _Array | None = None) -> Self:
        """Return those of one block, NaN where a number is missing."""
        absent = np.isnan(numbers)
        missing = float(absent.sum() if weight is None else weight[absent].sum())
        if absent.all():
            return cls(0.0, 0.0, 0.0, missing)
        rows, mean, squares = ScalerPart(numbers[:, None], None, weight, 0).moments()
        return cls(float(rows[0]), float(mean[0]), float(squares[0]), missing)

    def join(self, later: Amounts) -> Amounts:
        """Return those of both."""
        own, other = ((each.rows, np.asarray(each.mean), np.asarray(each.squares)) for each in (self, later))
        rows, mean, squares = moments.join(own, other)
        return Amounts(float(rows), float(mean), float(squares), self.missing + later.missing)

    def filled(self, value: float) -> Amounts:
        """Return them with a number in place of those that are missing."""
        return replace(self, missing=0.0).join(Amounts(self.missing, value, 0.0, 0.0))


@dataclass(frozen=True)
class Spread:
    """Numbers in ascending order, each with the rows that it stands for.

    Notes
    -----
    A block of at most `POINTS` different numbers tells all of them. Of others each point stands for as many rows as the
    next, and is the one in their middle: what is found at a rank belongs to one that is at most 1 / (2 `POINTS`) of all
    rows away, however many blocks there are.
    """

    points: _Array
    rows: _Array
    missing: float

    @classmethod
    def of(cls, numbers: _Array, weight: _Array | None = None) -> Self:
        """Return the points of one block, NaN where a number is missing."""
        is_known = ~np.isnan(numbers)
        known = numbers[is_known]
        missing = float(len(numbers) - len(known) if weight is None else weight[~is_known].sum())
        if weight is None:
            known, heavy = np.sort(known), np.ones(len(known))
        else:
            order = np.argsort(known, kind="stable")
            known, heavy = known[order], weight[is_known][order]
        first = np.flatnonzero(np.append(True, known[1:] != known[:-1])[: len(known)])
        if len(first) <= POINTS:
            return cls(known[first], np.add.reduceat(heavy, first) if len(first) else heavy, missing)
        reached = np.cumsum(heavy)
        cuts = np.linspace(0, reached[-1], POINTS + 1)
        middle = (cuts[:-1] + cuts[1:]) / 2 - _rounding(reached)
        return cls(known[np.searchsorted(reached, middle)], np.diff(cuts), missing)

    def join(self, later: Spread) -> Spread:
        """Return the points of both."""
        points, inverse = np.unique(np.concatenate([self.points, later.points]), return_inverse=True)
        rows = np.bincount(inverse, np.concatenate([self.rows, later.rows]), minlength=len(points))
        return Spread(points, rows, self.missing + later.missing)

    def filled(self, value: float) -> Spread:
        """Return them with a number in place of those that are missing."""
        if not self.missing:
            return self
        return replace(self, missing=0.0).join(Spread(np.array([value]), np.array([self.missing]), 0.0))

    def quantiles(self, shares: _Array) -> _Array:
        """Return quantiles: the mean of two neighbours where one is as good as the other, as for a median."""
        reached = np.cumsum(self.rows)
        target, rounding = np.asarray(shares) * reached[-1], _rounding(reached)
        last = len(self.points) - 1
        lower = self.points[np.minimum(np.searchsorted(reached, target - rounding, "left"), last)]
        upper = self.points[np.minimum(np.searchsorted(reached, target + rounding, "right"), last)]
        middle: _Array = lower + (upper - lower) / 2
        return middle


def _rounding(reached: _Array) -> float:
    """Return how far sums of weights, each of which has been added up of others, may be from what they should be."""
    return float((POINTS + len(reached)) * np.finfo(np.float64).eps * reached[-1])


@dataclass(frozen=True)
class Groups:
    """Of each category, and each fold of the rows, the number of rows and the moments of the target."""

    categories: tuple[Any, ...]
    """The categories."""
    target: tuple[_Array, _Array, _Array]
    """Rows, means and squared deviations, each of shape (folds, categories + 1): the last is of rows without one."""

    @classmethod
    def of(
        cls, column: pd.Series[Any], target: _Array | None, folds: int, numbers: _Array, weight: _Array | None = None
    ) -> Self:
        """Return those of one block, by the folds of its rows (`fold_of`); 0 is the target where there is none."""
        codes, values = pd.factorize(column)
        width = len(values) + 1
        codes = np.where(codes < 0, len(values), codes)
        index = fold_of(numbers, folds) * width + codes
        rows: _Array = np.bincount(index, weight, minlength=folds * width).astype(np.float64)
        mean: _Array
        squares: _Array
        mean, squares = np.zeros_like(rows), np.zeros_like(rows)
        if target is not None:
            heavy = np.ones(len(target)) if weight is None else weight
            mean = np.bincount(index, heavy * target, minlength=len(rows)) / np.where(rows > 0, rows, 1.0)
            squares = np.bincount(index, heavy * np.square(target - mean[index]), minlength=len(rows))
        shape = folds, width
        return cls(tuple(values.tolist()), (rows.reshape(shape), mean.reshape(shape), squares.reshape(shape)))

    def join(self, later: Groups) -> Groups:
        """Return those of both, the categories in the order in which they came."""
        known = dict.fromkeys(self.categories) | dict.fromkeys(later.categories)
        values = tuple(known)
        return Groups(values, moments.join(self._spread(values), later._spread(values)))

    def _spread(self, values: tuple[Any, ...]) -> moments.Moments:
        """Return the moments with a column for each of the values."""
        place = {value: number for number, value in enumerate(values)}
        columns = [*(place[value] for value in self.categories), len(values)]
        folds = len(self.target[0])
        spread = [np.zeros((folds, len(values) + 1)) for _ in self.target]
        for wide, own in zip(spread, self.target, strict=True):
            wide[:, columns] = own
        return spread[0], spread[1], spread[2]

    def filled(self, value: Any) -> Groups:
        """Return them with a category in place of what is missing."""
        if not self.missing:
            return self
        missing = (each[:, -1:] for each in self.target)
        filling = Groups((value,), tuple(np.pad(each, ((0, 0), (0, 1))) for each in missing))  # type: ignore[arg-type]
        rest = [each.copy() for each in self.target]
        for each in rest:
            each[:, -1] = 0
        return Groups(self.categories, (rest[0], rest[1], rest[2])).join(filling)

    def sorted(self) -> Groups:
        """Return them with the categories in ascending order; by their types, where they cannot be compared."""
        numbers = range(len(self.categories))
        try:
            order = sorted(numbers, key=lambda number: self.categories[number])
        except TypeError:
            order = sorted(
                numbers, key=lambda number: (str(type(self.categories[number])), str(self.categories[number]))
            )
        values = tuple(self.categories[number] for number in order)
        return Groups(values, self._spread(values))

    @property
    def rows(self) -> _Array:
        """Rows of each category, the last of those without one."""
        counted: _Array = self.target[0].sum(axis=0)
        return counted

    @property
    def missing(self) -> bool:
        """Whether there are rows without a category."""
        return bool(self.rows[-1])


@dataclass(frozen=True)
class Sample:
    """The first row of several columns."""

    row: Any
    """A frame or an array with one row, or without rows."""

    def join(self, later: Sample) -> Sample:
        """Return the first row of both."""
        return self if len(self.row) else later


class Statistics(NamedTuple):
    """The statistics of a column that its steps need; None: not needed."""

    amounts: Amounts | None = None
    spread: Spread | None = None
    groups: Groups | None = None
    sample: Sample | None = None

    def join(self, later: Statistics) -> Statistics:
        """Return the statistics of the rows of both."""
        return Statistics(*(own and own.join(other) for own, other in zip(self, later, strict=True)))  # type: ignore[arg-type]

    def filled(self, value: Any) -> Statistics:
        """Return the statistics with a value in place of the missing values."""
        return Statistics(*(each and each.filled(value) for each in self[:3]))  # type: ignore[arg-type]


def join(left: tuple[Statistics, ...], right: tuple[Statistics, ...]) -> tuple[Statistics, ...]:
    """Return the statistics of all columns of the rows of both."""
    return tuple(map(Statistics.join, left, right))
