"""Pure functions on the rows of a rank's sparse matrices: cut and join them in CSR format."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from workbench.placement.rows import Declared, exact, require_shape


def is_matrix(value: Any) -> bool:
    """Return whether a value is a sparse matrix or array of SciPy."""
    # A sparse matrix exists only where its module is loaded.
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(value))


def owned_matrix(pieces: Sequence[Any], *, copy: bool = False, declared: Declared | None = None) -> Any:
    """Return the concatenated pieces in CSR format; a single one copied with `copy`.

    The columns of a row are sorted, and each entry occurs once, as algorithms that square entries assume.

    Raises
    ------
    PlacementError
        If the pieces do not have the `declared` shape and dtype, and would lose values in a conversion.
    """
    from scipy import sparse

    if declared is not None:
        pieces = [_exact(piece, declared) for piece in pieces]
        require_shape(declared, (sum(piece.shape[0] for piece in pieces), pieces[0].shape[1]))
    joined = pieces[0].tocsr(copy=copy) if len(pieces) == 1 else sparse.vstack(list(pieces), format="csr")
    joined.sum_duplicates()
    return joined


def _exact(matrix: Any, declared: Declared) -> Any:
    if matrix.dtype == declared.dtype:
        return matrix
    matrix = matrix.tocsr()
    return type(matrix)((exact(matrix.data, declared), matrix.indices, matrix.indptr), shape=matrix.shape)


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
