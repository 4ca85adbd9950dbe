"""What makes numbers of the columns of a recipe, once it is fitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from workbench.ml.recipe.folds import fold_of

_Array = NDArray[Any]

Encoded = tuple[_Array | None, _Array | float]
"""Of each row the one number that is not 0, and the column that it is in: by its number, of which there may be none, or
None for the first."""


class Encoder(Protocol):
    """What makes numbers of a column whose gaps are filled."""

    def names(self, name: str) -> list[str]:
        """Return the names of what comes of a column of this name."""

    def encode(self, values: Any, rows: _Array | None) -> Encoded:
        """Return the numbers of a column.

        Parameters
        ----------
        values
            Numbers, NaN where one is missing; or anything, for an encoder of categories.
        rows
            The numbers of the rows, if a model is to be trained on them.
        """


@dataclass(frozen=True)
class Linear:
    """Numbers on another scale."""

    centre: float = 0.0
    scale: float = 1.0

    def names(self, name: str) -> list[str]:
        """See `Encoder.names`."""
        return [name]

    def encode(self, values: Any, rows: _Array | None) -> Encoded:
        """See `Encoder.encode`."""
        numbers = np.subtract(values, self.centre, dtype=np.float64)
        numbers /= self.scale
        return None, numbers


@dataclass(frozen=True)
class Buckets:
    """The numbers of buckets."""

    inner: _Array
    """The edges between them."""
    one_hot: bool

    def names(self, name: str) -> list[str]:
        """See `Encoder.names`."""
        return [f"{name}_{number}.0" for number in range(len(self.inner) + 1)] if self.one_hot else [name]

    def encode(self, values: Any, rows: _Array | None) -> Encoded:
        """See `Encoder.encode`."""
        found: _Array = np.searchsorted(self.inner, values, side="right")
        missing = np.isnan(values)
        if self.one_hot:
            return np.where(missing, len(self.inner) + 1, found), 1.0
        return None, np.where(missing, np.nan, found)


@dataclass(frozen=True)
class Indicators:
    """A column for each category."""

    categories: tuple[Any, ...]
    """In ascending order; what is missing comes last, as NaN."""
    missing: bool
    """Whether it is one of them."""

    def names(self, name: str) -> list[str]:
        """See `Encoder.names`."""
        return [f"{name}_{value}" for value in (*self.categories, *["nan"] * self.missing)]

    def encode(self, values: Any, rows: _Array | None) -> Encoded:
        """See `Encoder.encode`."""
        return positions(values, self.categories), 1.0


@dataclass(frozen=True)
class Means:
    """Means of the target."""

    categories: tuple[Any, ...]
    table: _Array
    """Shape (folds + 1, categories + 2): for each fold the means of the others, and last those of all; by category,
    then for what is missing, then for what was not there in the fit."""

    def names(self, name: str) -> list[str]:
        """See `Encoder.names`."""
        return [name]

    def encode(self, values: Any, rows: _Array | None) -> Encoded:
        """See `Encoder.encode`."""
        fold = -1 if rows is None else fold_of(rows, len(self.table) - 1)
        return None, self.table[fold, positions(values, self.categories)]


def dense(encoded: Iterable[Encoded], widths: Sequence[int], rows: int) -> _Array:
    """Return the numbers of columns side by side, shape (rows, sum of widths)."""
    found = np.zeros((rows, sum(widths)))
    for (places, numbers), out in zip(encoded, np.split(found, np.cumsum(widths)[:-1], axis=1), strict=True):
        if places is None:
            out[:, 0] = numbers
        else:
            known = np.flatnonzero(places < out.shape[1])
            out[known, places[known]] = numbers
    return found


def scarce(encoded: Iterable[Encoded], widths: Sequence[int], rows: int) -> sparse.csr_array:
    """Return what `dense` returns as a matrix in CSR format."""
    columns, numbers = np.empty((rows, len(widths)), np.int64), np.empty((rows, len(widths)))
    known = np.empty(columns.shape, bool)
    starts = np.cumsum([0, *widths])
    for number, (places, found) in enumerate(encoded):
        columns[:, number] = starts[number] + (0 if places is None else places)
        numbers[:, number] = found
        known[:, number] = (columns[:, number] < starts[number + 1]) & (numbers[:, number] != 0)
    ends = np.append(0, np.cumsum(known.sum(axis=1)))
    return sparse.csr_array((numbers[known], columns[known], ends), shape=(rows, int(starts[-1])))


def positions(values: Any, categories: Sequence[Any]) -> _Array:
    """Return the positions of values among categories: their number if one is missing, one more if unknown."""
    codes, different = pd.factorize(values)
    known = {category: number for number, category in enumerate(categories)}
    unknown = len(categories) + 1
    # Code -1 is what is missing.
    places = [*(known.get(value, unknown) for value in different.tolist()), len(categories)]
    return np.array(places)[codes]
