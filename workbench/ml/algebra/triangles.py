"""The triangles of QR decompositions of rows, joined two at a time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

_Array = NDArray[np.float64]


def join_triangles(upper: _Array, lower: _Array) -> _Array:
    """Return R of the rows of which two are given: those of the rows above, and of the rows below.

    Notes
    -----
    TSQR: Demmel, Grigori, Hoemmen and Langou, SIAM Journal on Scientific Computing 34 (2012).
    """
    # As LAPACK wants it, and decomposed in place.
    stacked = np.empty((len(upper) + len(lower), upper.shape[1]), order="F")
    stacked[: len(upper)], stacked[len(upper) :] = upper, lower
    triangle: _Array = qr(stacked, mode="raw", overwrite_a=True, check_finite=False)[1]
    return triangle


def triangle(slices: Iterable[_Array], columns: int) -> _Array:
    """Return R of the QR decomposition of rows, shape (at most columns, columns).

    Parameters
    ----------
    slices
        Some of the rows each, shape (rows, columns).
    columns
        Number of columns.
    """
    factor = np.empty((0, columns))
    for rows in slices:
        factor = join_triangles(factor, rows)
    return factor
