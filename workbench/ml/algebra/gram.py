"""The products of features, of rows less their mean: of sums about an origin that is near the mean, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyr

from workbench.ml.algebra.row_slices import upper

_Array = NDArray[np.float64]

COUNTED = 65_535
"""With more features than these the half of a matrix has more numbers than LAPACK counts."""

# An origin that is farther than ten deviations from the mean costs more than two digits.
_FAR = 100
# A column whose deviation is less than this times its mean is constant, but for rounding.
_CONSTANT = 16 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Gram:
    """The products of features, of rows less their mean."""

    matrix: _Array
    """Shape (features, features): the upper half, and 0."""
    mean: _Array
    """The mean of the rows, shape (features,)."""
    constant: NDArray[np.bool_]
    """Which columns are constant, but for rounding, shape (features,)."""
    far: bool
    """Whether the origin was so far from the mean that digits are lost: the mean is a better one."""


def about_mean(packed: _Array, sums: _Array, weight: float, origin: _Array) -> Gram:
    """Return the products of features, of rows less their mean.

    Parameters
    ----------
    packed
        What `workbench.ml.algebra.row_slices.Products` has added of rows less an origin, shape
        (features * (features + 1) / 2,).
    sums
        The sum of these rows, shape (features,).
    weight
        The weight of all rows.
    origin
        Shape (features,).
    """
    shift = sums / weight
    matrix = dsyr(-1 / weight, sums, a=upper(packed, len(sums)), overwrite_a=True)
    squares, mean = np.diag(matrix), origin + shift
    rounding = weight * np.square(_CONSTANT * mean)
    away = weight * np.square(shift)
    return Gram(matrix, mean, squares <= rounding, bool(((away > _FAR * squares) & (away > rounding)).any()))
