"""Moments, Gram matrices and triangles of rows, and their union over the parts of the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr
from scipy.linalg.blas import dsyr

from workbench.ml.algebra.row_slices import upper

_Array = NDArray[np.float64]

Moments = tuple[Any, _Array, _Array]
"""Moments of a set of rows: the number or weight of the rows, a float or an array per feature; the mean of each
feature, 0 without rows; and the (weighted) sum of the squared deviations from the mean."""


def join(left: Moments, right: Moments) -> Moments:
    """Return the moments of the union of two sets of rows.

    Notes
    -----
    Chan, Golub and LeVeque, The American Statistician 37 (1983). No digits are lost if the mean is much larger than
    the deviations, unlike in the difference of the sum of squares and the square of the sum.
    """
    rows = left[0] + right[0]
    share = right[0] / np.where(rows > 0, rows, 1.0)
    between = right[1] - left[1]
    return rows, left[1] + between * share, left[2] + right[2] + np.square(between) * (left[0] * share)


COUNTED = 65_535
"""Maximum number of features: LAPACK cannot count the numbers of half of a larger matrix."""

# The square of ten deviations: an origin at this distance from the mean costs two digits.
_FAR = 100
# A column whose deviation is less than this multiple of its mean is constant, apart from rounding.
_CONSTANT = 16 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Gram:
    """The Gram matrix of centered rows."""

    matrix: _Array
    """Shape (features, features): the upper half, and zeros."""
    mean: _Array
    """The mean of the rows, shape (features,)."""
    constant: NDArray[np.bool_]
    """Which columns are constant, apart from rounding, shape (features,)."""
    far: bool
    """Whether digits are lost because the origin is far from the mean: the mean is a better origin."""


def about_mean(packed: _Array, sums: _Array, weight: float, origin: _Array) -> Gram:
    """Return the Gram matrix of centered rows.

    Parameters
    ----------
    packed
        The sum of `workbench.ml.algebra.row_slices.Products` of rows minus an origin, shape
        (features * (features + 1) / 2,).
    sums
        The sum of rows minus the origin, shape (features,).
    weight
        The weight of all rows.
    origin
        Shape (features,).
    """
    shift = sums / weight
    matrix = dsyr(-1 / weight, sums, a=upper(packed, len(sums)), overwrite_a=True)
    squares, mean = np.diag(matrix), origin + shift
    rounding = weight * np.square(_CONSTANT * mean)
    shifted = weight * np.square(shift)
    return Gram(matrix, mean, squares <= rounding, bool(((shifted > _FAR * squares) & (shifted > rounding)).any()))


def join_triangles(upper: _Array, lower: _Array) -> _Array:
    """Return R of all rows, from the R of the upper rows and the R of the lower rows.

    Notes
    -----
    TSQR: Demmel, Grigori, Hoemmen and Langou, SIAM Journal on Scientific Computing 34 (2012).
    """
    if not len(upper) + len(lower):
        return upper
    # In the order of LAPACK, so that the decomposition needs no copy.
    stacked = np.empty((len(upper) + len(lower), upper.shape[1]), order="F")
    stacked[: len(upper)], stacked[len(upper) :] = upper, lower
    triangle: _Array = qr(stacked, mode="raw", overwrite_a=True, check_finite=False)[1]
    return triangle


def triangle(slices: Iterable[_Array], columns: int) -> _Array:
    """Return R of the QR decomposition of rows, shape (at most columns, columns).

    Parameters
    ----------
    slices
        Slices of the rows, shape (rows, columns).
    columns
        Number of columns.
    """
    factor = np.empty((0, columns))
    for rows in slices:
        factor = join_triangles(factor, rows)
    return factor
