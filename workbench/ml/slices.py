"""The rows of a block, some at a time, as what sums of products are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Bytes of a slice that stays in the cache of a core while it is used, and its least number of rows: with fewer a
# product of matrices is not faster than one of vectors.
_CACHED, _LEAST = 1 << 20, 128


def rows_at_once(width: int) -> int:
    """Return how many rows of so many float64 numbers make a slice: 1 MiB of them, and 128 at least."""
    return max(_LEAST, _CACHED // (8 * max(1, width)))


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
        here = slice(start, min(start + rows, X.shape[0]))
        taken = X[here].toarray() if sparse.issparse(X) else X[here]
        if middle is None:
            yield here, taken.astype(np.float64, copy=False)
            continue
        space = space if len(space) else np.empty(taken.shape)
        yield here, np.subtract(taken, middle, out=space[: len(taken)])
