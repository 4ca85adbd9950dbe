"""Pure functions on the rows of a rank's sparse matrices: cut and join them in CSR format."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def is_matrix(value: Any) -> bool:
    """Return whether a value is a sparse matrix or array of SciPy."""
    # A sparse matrix exists only where its module is loaded.
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(value))


def owned_matrix(pieces: Sequence[Any], *, copy: bool = False) -> Any:
    """Return the concatenated pieces in CSR format with sorted columns; a single one copied with `copy`."""
    from scipy import sparse

    joined = pieces[0].tocsr(copy=copy) if len(pieces) == 1 else sparse.vstack(list(pieces), format="csr")
    joined.sort_indices()
    return joined


def cut_matrix(chunk: Any, start: int, stop: int) -> Any:
    """Return some rows of a chunk, in CSR format."""
    return chunk.tocsr()[start:stop]


def empty_matrix(like: Any) -> Any:
    """Return a matrix without rows, of the type, columns and dtype of another, in CSR format."""
    return like.tocsr()[:0]


def nbytes(matrix: Any) -> int:
    """Return the bytes of a matrix in CSR format."""
    matrix = matrix.tocsr()
    return int(matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes)
