"""What makes numbers of the columns of a recipe, once it is fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_Array = NDArray[Any]


class Encoder(Protocol):
    """What makes numbers of a column whose gaps are filled."""

    def names(self, name: str) -> list[str]:
        """Return the names of what comes of a column of this name."""

    def encode(self, values: Any, rows: _Array | None, out: _Array) -> None:
        """Write the numbers of a column.

        Parameters
        ----------
        values
            Numbers, NaN where one is missing; or anything, for an encoder of categories.
        rows
            The numbers of the rows, if a model is to be trained on them.
        out
            Shape (rows, names): where they are written.
        """


@dataclass(frozen=True)
class Linear:
    """Numbers on another scale."""

    centre: float = 0.0
    scale: float = 1.0

    def names(self, name: str) -> list[str]:
        """See `Encoder.names`."""
        return [name]

    def encode(self, values: Any, rows: _Array | None, out: _Array) -> None:
        """See `Encoder.encode`."""
        out[:, 0] = values
        out -= self.centre
        out /= self.scale


@dataclass(frozen=True)
class Buckets:
    """The numbers of buckets."""

    inner: _Array
    """The edges between them."""
    one_hot: bool

    def names(self, name: str) -> list[str]:
        """See `Encoder.names`."""
        return [f"{name}_{number}.0" for number in range(len(self.inner) + 1)] if self.one_hot else [name]

    def encode(self, values: Any, rows: _Array | None, out: _Array) -> None:
        """See `Encoder.encode`."""
        found: _Array = np.searchsorted(self.inner, values, side="right")
        missing = np.isnan(values)
        if self.one_hot:
            _mark(np.where(missing, out.shape[1], found), out)
        else:
            out[:, 0] = np.where(missing, np.nan, found)


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

    def encode(self, values: Any, rows: _Array | None, out: _Array) -> None:
        """See `Encoder.encode`."""
        _mark(positions(values, self.categories), out)


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

    def encode(self, values: Any, rows: _Array | None, out: _Array) -> None:
        """See `Encoder.encode`."""
        fold = -1 if rows is None else rows % (len(self.table) - 1)
        out[:, 0] = self.table[fold, positions(values, self.categories)]


def _mark(columns: _Array, out: _Array) -> None:
    """Make each row zeros and a one, in its column; all zeros where there is no such column."""
    out[...] = 0
    known = np.flatnonzero(columns < out.shape[1])
    out[known, columns[known]] = 1


def positions(values: Any, categories: Sequence[Any]) -> _Array:
    """Return the positions of values among categories: their number if one is missing, one more if unknown."""
    codes, different = pd.factorize(values)
    known = {category: number for number, category in enumerate(categories)}
    unknown = len(categories) + 1
    # Code -1 is what is missing.
    places = [*(known.get(value, unknown) for value in different.tolist()), len(categories)]
    return np.array(places)[codes]
