"""Slices of the rows of a block, and sums of products of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dsfrk, dtfttr, dtrttf

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Bytes of a slice that stays in the cache of a core while it is used, and its minimum number of rows: with fewer rows a
# product of matrices is not faster than products of vectors.
_CACHED, _LEAST = 1 << 20, 128
# Rows of a sample, whose mean is near the mean of all rows, compared with the deviation.
_SAMPLE = 4096
# Above this number of features half of the memory is worth a tenth of the time.
_SQUARE = 1000


def rows_at_once(width: int) -> int:
    """Return the number of rows in a slice: 1 MiB of float64 numbers, and at least 128 rows."""
    return max(_LEAST, _CACHED // (8 * max(1, width)))


def is_copied(X: Any, middle: NDArray[np.float64] | None) -> bool:
    """Return whether `centered` copies the rows, so that a slice has few rows."""
    return middle is not None or sparse.issparse(X) or X.dtype != np.float64


def centered(
    X: Any, middle: NDArray[np.float64] | None, rows: int | None = None
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield slices and their rows as float64, minus a middle.

    Parameters
    ----------
    X
        Shape (rows, features): an array, or a matrix in CSR format.
    middle
        Shape (features,): subtracted from each row; None: nothing is subtracted.
    rows
        Number of rows of a slice. Default: `rows_at_once`.

    Yields
    ------
    tuple
        The slice, and an array of shape (rows of the slice, features). The next slice may overwrite the array, and the
        caller must not.
    """
    rows = rows or rows_at_once(X.shape[1])
    space = np.empty((0, 0))
    for start in range(0, X.shape[0], rows):
        part = slice(start, min(start + rows, X.shape[0]))
        dense = X[part].toarray() if sparse.issparse(X) else X[part]
        if middle is None:
            yield part, dense.astype(np.float64, copy=False)
            continue
        space = space if len(space) else np.empty(dense.shape)
        yield part, np.subtract(dense, middle, out=space[: len(dense)])


def sample(X: Any, start: int, rows: int) -> Any:
    """Return a sample of the rows of a block, about 4096 rows of all blocks; the sample does not depend on the blocks.

    Parameters
    ----------
    X
        Shape (rows of the block, features), or (rows of the block,).
    start
        Number of the first row of the block.
    rows
        Number of rows of all blocks.

    Returns
    -------
    array, or matrix in CSR format
        All rows of a matrix in CSR format, whose sum is as fast.
    """
    if sparse.issparse(X):
        return X
    every = max(1, rows // _SAMPLE)
    return X[-start % every :: every]


class Products:
    """The sum of products of the transposed rows and the rows: one half is computed and kept.

    Parameters
    ----------
    width
        Number of features.

    Notes
    -----
    The half is in the packed form of LAPACK that is nearly as fast as a square: Gustavson, Wasniewski, Dongarra and
    Langou, ACM Transactions on Mathematical Software 37 (2010). Up to 1000 features the square is kept, 8 MiB.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._square = np.zeros((width, width), order="F") if width <= _SQUARE else None
        self._half = np.empty(0) if width <= _SQUARE else np.zeros(width * (width + 1) // 2)

    def add(self, X: NDArray[np.float64]) -> None:
        """Add the products of rows, shape (rows, features)."""
        if self._square is not None:
            self._square = dsyrk(1.0, X.T, beta=1.0, c=self._square, overwrite_c=True)
        else:
            self._half = dsfrk(self._width, len(X), 1.0, X.T, 1.0, self._half, overwrite_c=True)

    @property
    def packed(self) -> NDArray[np.float64]:
        """The packed half; `upper` unpacks it."""
        return self._half if self._square is None else pack(self._square)


def pack(square: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the upper half of a matrix, shape (features, features), in the format of `Products`."""
    packed: NDArray[np.float64] = dtrttf(square)[0]
    return packed


def upper(packed: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Return the sum of `Products`, shape (features, features): zeros below the diagonal.

    Raises
    ------
    ValueError
        If the sum is not finite.
    """
    triangle: NDArray[np.float64] = dtfttr(width, packed)[0]
    refuse_overflow(np.diag(triangle))
    return triangle


def refuse_overflow(squares: Any) -> None:
    """Raise ValueError if sums of squares are not finite."""
    if not np.isfinite(squares).all():
        raise ValueError("Products of rows overflow, because the squares of the values are too large. Scale the data.")
