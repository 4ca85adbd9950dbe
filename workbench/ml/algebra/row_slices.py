"""The rows of a block, some at a time, as what sums of products are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dsfrk, dtfttr, dtrttf

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Bytes of a slice that stays in the cache of a core while it is used, and its least number of rows: with fewer a
# product of matrices is not faster than one of vectors.
_CACHED, _LEAST = 1 << 20, 128
# Rows of a sample: their mean is near that of all rows, beside the deviation.
_SAMPLE = 4096
# With more features the memory of half a square counts more than a tenth of the time.
_SQUARE = 1000


def rows_at_once(width: int) -> int:
    """Return how many rows of so many float64 numbers make a slice: 1 MiB of them, and 128 at least."""
    return max(_LEAST, _CACHED // (8 * max(1, width)))


def is_copied(X: Any, middle: NDArray[np.float64] | None) -> bool:
    """Return whether `centred` makes copies of the rows, which is why there are few at once."""
    return middle is not None or sparse.issparse(X) or X.dtype != np.float64


def centred(
    X: Any, middle: NDArray[np.float64] | None, rows: int | None = None
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield where a slice of rows is, and the rows themselves, less their middle.

    Parameters
    ----------
    X
        Shape (rows, features): an array, or a matrix in CSR format.
    middle
        Shape (features,): what is taken from each row; None for nothing.
    rows
        So many rows at once. Default: `rows_at_once`.

    Yields
    ------
    tuple
        The slice, and an array of shape (rows of it, features) that is to be read only, and only until the next.
    """
    rows = rows or rows_at_once(X.shape[1])
    space = np.empty((0, 0))
    for start in range(0, X.shape[0], rows):
        part = slice(start, min(start + rows, X.shape[0]))
        taken = X[part].toarray() if sparse.issparse(X) else X[part]
        if middle is None:
            yield part, taken.astype(np.float64, copy=False)
            continue
        space = space if len(space) else np.empty(taken.shape)
        yield part, np.subtract(taken, middle, out=space[: len(taken)])


def sample(X: Any, start: int, rows: int) -> Any:
    """Return some of the rows of a block, about 4096 of all blocks: the same on however many blocks.

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
        Of a matrix in CSR format all rows: their sum takes no longer.
    """
    if sparse.issparse(X):
        return X
    every = max(1, rows // _SAMPLE)
    return X[-start % every :: every]


class Products:
    """The sum of products of transposed rows and the same rows, half of which is computed and kept.

    Parameters
    ----------
    width
        Number of features.

    Notes
    -----
    The half is in the packed form of LAPACK that is nearly as fast as a square: Gustavson, Wasniewski, Dongarra and
    Langou, ACM Transactions on Mathematical Software 37 (2010). Up to 1000 features there is a square, 8 MiB.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._square = np.zeros((width, width), order="F") if width <= _SQUARE else None
        self._half = np.empty(0) if width <= _SQUARE else np.zeros(width * (width + 1) // 2)

    def add(self, X: NDArray[np.float64]) -> None:
        """Add the product of rows, shape (rows, features)."""
        if self._square is not None:
            self._square = dsyrk(1.0, X.T, beta=1.0, c=self._square, overwrite_c=True)
        else:
            self._half = dsfrk(self._width, len(X), 1.0, X.T, 1.0, self._half, overwrite_c=True)

    @property
    def packed(self) -> NDArray[np.float64]:
        """The half, to be unpacked by `upper`."""
        return self._half if self._square is None else dtrttf(self._square)[0]


def upper(packed: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Return what `Products` has added, shape (features, features): 0 below the diagonal.

    Raises
    ------
    ValueError
        If it is not finite.
    """
    triangle: NDArray[np.float64] = dtfttr(width, packed)[0]
    refuse_overflow(np.diag(triangle))
    return triangle


def refuse_overflow(squares: Any) -> None:
    """Return if sums of squares are finite.

    Raises
    ------
    ValueError
        If they are not.
    """
    if not np.isfinite(squares).all():
        raise ValueError("Products of rows overflow: the squares of these numbers are too large, scale the data.")
