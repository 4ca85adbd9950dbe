"""The Gram matrix of centered rows, from sums about an origin near the mean, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyr

from workbench.ml.algebra.row_slices import upper

_Array = NDArray[np.float64]

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
