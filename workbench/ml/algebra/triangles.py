"""The triangles of QR decompositions, joined two at a time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

_Array = NDArray[np.float64]


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
