"""Number, mean and squared deviations of sets of rows, joined without a second look at the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[Any]

Moments = tuple[Any, _Array, _Array]
"""Of a set of rows: their number (or weight), a float or one per feature; the mean of each feature, 0 where there are
no rows; and the sum of the squared deviations from it (with the weights)."""


def join(left: Moments, right: Moments) -> Moments:
    """Return the moments of two sets of rows together.

    Notes
    -----
    Chan, Golub and LeVeque, The American Statistician 37 (1983). No digits are lost where the mean is large beside the
    deviations, as they are in the difference of the sum of squares and the square of the sum.
    """
    rows = left[0] + right[0]
    share = right[0] / np.where(rows > 0, rows, 1.0)
    between = right[1] - left[1]
    return rows, left[1] + between * share, left[2] + right[2] + np.square(between) * (left[0] * share)
