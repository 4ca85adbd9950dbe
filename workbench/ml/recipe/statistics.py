"""Statistics of the columns of a recipe: computed in one pass over a block, and joined with those of other blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.ml.algebra import sums
from workbench.ml.frames import array_of
from workbench.ml.recipe.data import fold_of
from workbench.ml.scaler.part import ScalerPart

_Array = NDArray[Any]

POINTS = 1 << 13
"""Maximum number of values with which a block describes its quantiles."""

_INEXACT = 2.0**53
"""The smallest number that is the float of several integers."""


@dataclass(frozen=True)
class Amounts:
    """Moments of numbers."""

    rows: float
    """Weight of the rows with a number; all counts of rows in this module are weights."""
    mean: float
    squares: float
    """Sum of the squared deviations from the mean."""
    missing: float

    @classmethod
    def of(cls, numbers: _Array, weight: _Array | None = None) -> Self:
        """Return the moments of one block, with NaN for missing numbers."""
        absent = np.isnan(numbers)
        missing = float(absent.sum() if weight is None else weight[absent].sum())
        if absent.all():
            return cls(0.0, 0.0, 0.0, missing)
        rows, mean, squares = ScalerPart(numbers[:, None], None, weight, 0).moments()
        return cls(float(rows[0]), float(mean[0]), float(squares[0]), missing)

    def join(self, later: Amounts) -> Amounts:
        """Return the moments of both."""
        own, other = ((each.rows, np.asarray(each.mean), np.asarray(each.squares)) for each in (self, later))
        rows, mean, squares = sums.join(own, other)
        return Amounts(float(rows), float(mean), float(squares), self.missing + later.missing)

    def filled(self, value: float) -> Amounts:
        """Return the moments with a number in place of the missing ones."""
        return replace(self, missing=0.0).join(Amounts(self.missing, value, 0.0, 0.0))


@dataclass(frozen=True)
class Spread:
    """Numbers in ascending order, each with the weight of the rows that it represents.

    Notes
    -----
    A block with at most `POINTS` different numbers keeps all of them. The points of other blocks each represent the
    same weight, and are the medians of their rows, so that the position of a quantile is wrong by at most 1 / (2
    `POINTS`) of all rows, with any number of blocks.
    """

    points: _Array
    rows: _Array
    missing: float

    @classmethod
    def of(cls, numbers: _Array, weight: _Array | None = None) -> Self:
        """Return the points of one block, with NaN for missing numbers."""
        is_known = ~np.isnan(numbers)
        known = numbers[is_known]
        missing = float(len(numbers) - len(known) if weight is None else weight[~is_known].sum())
        if weight is None:
            known, weights = np.sort(known), np.ones(len(known))
        else:
            order = np.argsort(known, kind="stable")
            known, weights = known[order], weight[is_known][order]
        first = np.flatnonzero(np.append(True, known[1:] != known[:-1])[: len(known)])
        if len(first) <= POINTS:
            return cls(known[first], np.add.reduceat(weights, first) if len(first) else weights, missing)
        totals = np.cumsum(weights)
        cuts = np.linspace(0, totals[-1], POINTS + 1)
        middle = (cuts[:-1] + cuts[1:]) / 2 - _rounding(totals)
        return cls(known[np.searchsorted(totals, middle)], np.diff(cuts), missing)

    def join(self, later: Spread) -> Spread:
        """Return the points of both."""
        points, inverse = np.unique(np.concatenate([self.points, later.points]), return_inverse=True)
        rows = np.bincount(inverse, np.concatenate([self.rows, later.rows]), minlength=len(points))
        return Spread(points, rows, self.missing + later.missing)

    def filled(self, value: float) -> Spread:
        """Return the points with a number in place of the missing ones."""
        if not self.missing:
            return self
        return replace(self, missing=0.0).join(Spread(np.array([value]), np.array([self.missing]), 0.0))

    def quantiles(self, fractions: _Array) -> _Array:
        """Return quantiles; the mean of two neighbors if both are valid, like for a median."""
        totals = np.cumsum(self.rows)
        target, rounding = np.asarray(fractions) * totals[-1], _rounding(totals)
        last = len(self.points) - 1
        lower = self.points[np.minimum(np.searchsorted(totals, target - rounding, "left"), last)]
        upper = self.points[np.minimum(np.searchsorted(totals, target + rounding, "right"), last)]
        middle: _Array = lower + (upper - lower) / 2
        return middle


def _rounding(totals: _Array) -> float:
    """Return the maximum rounding error of cumulated sums of weights that are sums themselves."""
    return float((POINTS + len(totals)) * np.finfo(np.float64).eps * totals[-1])


def categories_of(column: pd.Series[Any]) -> tuple[_Array, _Array]:
    """Return the number of the category of each row, -1 for missing values, and the categories, as objects.

    Notes
    -----
    The categories are those of scikit-learn, which names columns by their text: of dates and of single precision they
    are scalars of NumPy, and nullable numbers are floats. Integers that a float may not represent stay integers.
    """
    codes, found = pd.factorize(column)
    values = array_of(pd.Series(found))
    categories = np.empty(len(values), dtype=object)
    is_plain = values.dtype.kind not in "mM" and values.dtype != np.float32
    categories[:] = values.tolist() if is_plain else list(values)
    if values.dtype == np.float64 and len(large := np.flatnonzero(np.abs(values) >= _INEXACT)):
        exact = found.tolist()
        categories[large] = [exact[number] for number in large]
    return codes, categories


@dataclass(frozen=True)
class Groups:
    """For each category and fold the weight of the rows, and the moments of the target."""

    categories: _Array
    """The different categories, as objects."""
    target: tuple[_Array, _Array, _Array]
    """Rows, of shape (folds, categories + 1), and means and squared deviations, of shape (targets, folds, categories +
    1); the last column is for missing values. Each of more than two classes is a target, 1 for its rows and else 0."""
    classes: _Array | None = None
    """The sorted labels of the target; None for numbers."""

    @classmethod
    def of(
        cls,
        column: pd.Series[Any],
        target: _Array | None,
        classes: _Array | None,
        folds: int,
        numbers: _Array,
        *,
        weight: _Array | None = None,
    ) -> Self:
        """Return the groups of one block, by the folds of its rows (`fold_of`).

        Parameters
        ----------
        column
            The categories of the rows.
        target
            Numbers, or the numbers of the classes of the rows; None: all 0.
        classes
            See `Groups.classes`.
        folds
            Number of folds.
        numbers
            Numbers of the rows in all data.
        weight
            Weights of the rows; None: all 1.
        """
        codes, values = categories_of(column)
        width = len(values) + 1
        codes = np.where(codes < 0, len(values), codes)
        index = fold_of(numbers, folds) * width + codes
        rows: _Array = np.bincount(index, weight, minlength=folds * width).astype(np.float64)
        mean: _Array
        squares: _Array
        mean, squares = np.zeros_like(rows), np.zeros_like(rows)
        if classes is not None and len(classes) > 2 and target is not None:
            joint = target.astype(np.int64) * len(rows) + index
            counts = np.bincount(joint, weight, minlength=len(classes) * len(rows)).reshape(len(classes), -1)
            mean = counts / np.where(rows > 0, rows, 1.0)
            squares = counts * (1.0 - mean)
        elif target is not None:
            weights = np.ones(len(target)) if weight is None else weight
            mean = np.bincount(index, weights * target, minlength=len(rows)) / np.where(rows > 0, rows, 1.0)
            squares = np.bincount(index, weights * np.square(target - mean[index]), minlength=len(rows))
        shape = -1, folds, width
        moments_of_target = rows.reshape(folds, width), mean.reshape(shape), squares.reshape(shape)
        return cls(values, moments_of_target, classes)

    def join(self, later: Groups) -> Groups:
        """Return the groups of both, with the categories in the order of their first occurrence."""
        codes, values = pd.factorize(np.concatenate([self.categories, later.categories]))
        own, other = np.split(codes, [len(self.categories)])
        width = len(values)
        return Groups(values, sums.join(self._moments_at(own, width), later._moments_at(other, width)), self.classes)

    def _moments_at(self, places: _Array, width: int) -> sums.Moments:
        """Return the moments of more categories, among which the categories have these places."""
        columns = np.append(places, width)
        result = [np.zeros((*own.shape[:-1], width + 1)) for own in self.target]
        for wide, own in zip(result, self.target, strict=True):
            wide[..., columns] = own
        return result[0], result[1], result[2]

    def filled(self, value: Any) -> Groups:
        """Return the groups with a category in place of missing values."""
        if not self.missing:
            return self
        known, missing = np.ones(len(self.categories) + 1), np.array([1.0, 0.0])
        known[-1] = 0
        rows, mean, squares = self.target
        filling = rows[:, -1:] * missing, mean[..., -1:] * missing, squares[..., -1:] * missing
        rest = replace(self, target=(rows * known, mean * known, squares * known))
        return rest.join(replace(self, categories=np.array([value], dtype=object), target=filling))

    def sorted(self) -> Groups:
        """Return the groups with sorted categories; categories that are not comparable are sorted by type and text."""
        values = self.categories.tolist()
        numbers = range(len(values))
        try:
            order = sorted(numbers, key=values.__getitem__)
        except TypeError:
            order = sorted(numbers, key=lambda number: (str(type(values[number])), str(values[number])))
        places = np.argsort(order)
        return replace(self, categories=self.categories[order], target=self._moments_at(places, len(order)))

    @property
    def rows(self) -> _Array:
        """Weight of the rows of each category; the last number is for missing values."""
        rows: _Array = self.target[0].sum(axis=0)
        return rows

    @property
    def missing(self) -> bool:
        """Whether values are missing."""
        return bool(self.rows[-1])


@dataclass(frozen=True)
class Sample:
    """The first row of several columns."""

    row: Any
    """A dataframe or an array with one row or none."""

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
