"""What one rank does with rows of sparse matrices: cut them, put them together, in CSR format."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def is_matrix(thing: Any) -> bool:
    """Tell whether this is a sparse matrix or array of SciPy."""
    # Whoever has one has loaded it.
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(thing))


def owned_matrix(pieces: Sequence[Any], *, copy: bool = False) -> Any:
    """Return the pieces one below the other, in CSR format with sorted columns; a single one copied if asked for."""
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
