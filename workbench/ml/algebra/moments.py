"""Number, mean and squared deviations of sets of rows, and their union."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[Any]

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
