"""The steps of a recipe: what is done with a column. They are values, and know nothing of rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

_STRATEGIES = ("mean", "median", "most_frequent", "constant")


@dataclass(frozen=True)
class Impute:
    """Fill in what is missing; comes before another step of the same columns, or stands alone.

    Parameters
    ----------
    strategy : {"mean", "median", "most_frequent", "constant"}, default="mean"
        What is filled in. The median is that of the numbers where each block has at most 8192 different ones; otherwise
        a number whose rank is at most 1/16384 of all rows away. Of several that are most frequent the smallest. A
        column without any number is filled with 0.
    fill_value : number or str, default=None
        The constant.

    Raises
    ------
    ValueError
        If the strategy is another, or a constant is not given.
    """

    strategy: str = "mean"
    fill_value: Any = None

    def __post_init__(self) -> None:
        if self.strategy not in _STRATEGIES:
            raise ValueError(f"Impute(strategy={self.strategy!r}): it has to be one of {', '.join(_STRATEGIES)}")
        if self.strategy == "constant" and self.fill_value is None:
            raise ValueError('Impute("constant") needs to know the constant: pass fill_value')


@dataclass(frozen=True)
class Keep:
    """Take numbers as they are."""


@dataclass(frozen=True)
class Scale:
    """Scale numbers to mean 0 and variance 1, as `workbench.ml.StandardScaler`; missing ones do not count, and stay.

    Parameters
    ----------
    with_mean : bool, default=True
        Whether the mean is taken away.
    with_std : bool, default=True
        Whether numbers are divided by their standard deviation.
    """

    with_mean: bool = True
    with_std: bool = True


@dataclass(frozen=True)
class OneHot:
    """Make a column of zeros and ones of each category; what is missing is a category, if it is missing in the fit.

    A category that was not there in the fit is all zeros.

    Parameters
    ----------
    sparse_output : bool, default=False
        Whether the recipe returns rows as a matrix in CSR format: all columns, if one step wants it.
    """

    sparse_output: bool = False


@dataclass(frozen=True)
class Bucketise:
    """Replace numbers by the number of the bucket that they are in, the first is 0.

    Missing ones stay missing; with `one_hot` they are all zeros.

    Parameters
    ----------
    buckets : int, default=5
        How many, of as many rows each, as far as different numbers allow it. The quantiles are as exact as a median.
    edges : sequence of float, default=None
        The edges, the outer ones included, in place of quantiles. What lies outside is in the first or last bucket.
    one_hot : bool, default=False
        Whether each bucket gets a column of zeros and ones.

    Raises
    ------
    ValueError
        If there are less than two buckets, or the edges do not ascend.
    """

    buckets: int = 5
    edges: Sequence[float] | None = None
    one_hot: bool = False

    def __post_init__(self) -> None:
        if self.buckets < 2:
            raise ValueError(f"Bucketise(buckets={self.buckets}): there have to be at least 2")
        edges = self.edges
        if edges is not None and (len(edges) < 3 or any(right <= left for left, right in itertools.pairwise(edges))):
            raise ValueError(
                f"Bucketise(edges={list(edges)}): there have to be at least 3 numbers, each above the last"
            )


@dataclass(frozen=True)
class TargetMean:
    """Replace categories by the mean of the target among their rows, drawn towards the mean of all rows.

    Rows that a model is trained on (`Recipe.fit_transform`) get means of the other folds, so that their own target is
    not in them. The fold of a row is drawn by its number, so that the number of ranks changes nothing. A category that
    was not there in the fit is the mean of all rows.

    Parameters
    ----------
    folds : int, default=5
        Into how many the rows are split.
    smooth : float or "auto", default="auto"
        As many rows of the mean of all are counted to each category; ``"auto"``: by the variances (empirical Bayes).

    Raises
    ------
    ValueError
        If there are less than two folds, or the smoothing is negative or another word.
    """

    folds: int = 5
    smooth: float | str = "auto"

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ValueError(f"TargetMean(folds={self.folds}): there have to be at least 2")
        if self.smooth != "auto" and (isinstance(self.smooth, str) or self.smooth < 0):
            raise ValueError(f'TargetMean(smooth={self.smooth!r}): it has to be a number of at least 0, or "auto"')


Encoding = Keep | Scale | OneHot | Bucketise | TargetMean
"""What makes numbers of a column."""


@dataclass(frozen=True)
class Chain:
    """What is done with one column."""

    position: int
    """Its number."""
    label: Any
    """Its name, for messages."""
    impute: Impute | None
    encoding: Encoding

    @property
    def is_numeric(self) -> bool:
        """Whether the column has to be of numbers."""
        return isinstance(self.encoding, Keep | Scale | Bucketise)

    @property
    def needs(self) -> tuple[bool, bool, int]:
        """Whether moments are needed, and quantiles, and of how many folds categories; 0: of none."""
        strategy = self.impute and self.impute.strategy
        encoding = self.encoding
        quantiles = isinstance(encoding, Bucketise) and encoding.edges is None
        folds = encoding.folds if isinstance(encoding, TargetMean) else 1
        categories = isinstance(encoding, OneHot | TargetMean) or strategy == "most_frequent"
        return (
            isinstance(encoding, Scale) or strategy == "mean",
            quantiles or strategy == "median",
            folds if categories else 0,
        )


def chain(position: int, label: Any, steps: Any) -> Chain:
    """Return the steps of a column, which are one or a sequence.

    Raises
    ------
    TypeError, ValueError
        If these are no steps, or cannot follow each other.
    """
    given = list(steps) if isinstance(steps, Sequence) else [steps]
    for step in given:
        if not isinstance(step, Impute | Encoding):
            raise TypeError(
                f"{step!r} is no step of a recipe: pass Impute(), Scale(), OneHot(), Bucketise(), TargetMean(), Keep()"
            )
    first = given.pop(0) if given and isinstance(given[0], Impute) else None
    encoding = given.pop(0) if given else Keep()
    if given or isinstance(encoding, Impute):
        raise ValueError(
            f"{steps!r} cannot follow each other: a column has one step, and may have an Impute() before it"
        )
    found = Chain(position, label, first, encoding)
    if first and first.strategy == "constant" and found.is_numeric and not isinstance(first.fill_value, Real):
        raise ValueError(f"{first!r} fills numbers of column {label!r}: fill_value has to be one")
    return found
