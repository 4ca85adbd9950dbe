"""Pure functions on the rows of a rank: cut and join arrays, frames and CSR matrices, contiguous and aligned.

Each call loads this module on the ranks, so the functions for frames load pandas.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from dask.sizeof import sizeof
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from workbench.errors import PlacementError
from workbench.gpu import tensors
from workbench.placement.in_use import Array, aligned, alignment_of, join_arrays, ready

if TYPE_CHECKING:
    from workbench.placement.schema import Types


# Without the bytes of tensors, Dask would move a block on a device to another rank as if the block were small.
sizeof.register_lazy("torch", functools.partial(tensors.register_size, sizeof))
dask_serialize.register_lazy("torch", tensors.register_messages)
dask_deserialize.register_lazy("torch", tensors.register_messages)


class Cut(NamedTuple):
    """The rows ``start:stop`` of chunk number ``chunk``."""

    chunk: int
    start: int
    stop: int


def split(rows: int, parts: int) -> list[int]:
    """Return the number of rows of each part: sizes differ by one at most, the larger ones first.

    Examples
    --------
    >>> split(10, 4)
    [3, 3, 2, 2]
    """
    size, larger = divmod(rows, parts)
    return [size + (part < larger) for part in range(parts)]


def cuts(chunks: Sequence[int], sizes: Sequence[int]) -> list[list[Cut]]:
    """Return, for each block, the cuts of the chunks that make it up, in order.

    Parameters
    ----------
    chunks
        Number of rows of each chunk.
    sizes
        Number of rows of each block; both have the same sum.

    Examples
    --------
    >>> cuts([4, 2], [3, 3])
    [[Cut(chunk=0, start=0, stop=3)], [Cut(chunk=0, start=3, stop=4), Cut(chunk=1, start=0, stop=2)]]
    """
    blocks: list[list[Cut]] = []
    chunk = start = 0
    for size in sizes:
        block: list[Cut] = []
        remaining = size
        while remaining:
            stop = min(start + remaining, chunks[chunk])
            if stop > start:
                block.append(Cut(chunk, start, stop))
            remaining -= stop - start
            chunk, start = (chunk + 1, 0) if stop == chunks[chunk] else (chunk, stop)
        blocks.append(block)
    return blocks


class Declared(NamedTuple):
    """What the metadata of a collection declare of a block, the same on all ranks."""

    block: str
    """Name of the block in messages."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def owned_array(pieces: Sequence[Array], *, copy: bool = False, declared: Declared | None = None) -> Array:
    """Return the pieces as one aligned array that owns its memory; copied only where needed, or with `copy`.

    A view is copied where it would keep a larger array alive. An array in a buffer that NumPy does not own is copied
    too: the buffer is a received message, which may contain more than the array. So is one that is read-only, like the
    values of a pandas series: functions write to blocks.

    Raises
    ------
    PlacementError
        If a piece has a mask or is a sparse matrix, or the pieces do not have the `declared` shape and dtype, and would
        lose values in a conversion.
    """
    for piece in pieces:
        if isinstance(piece, np.ma.MaskedArray) or hasattr(piece, "toarray"):
            raise PlacementError(
                f"a chunk has the type {type(piece).__qualname__}, and the collection declares NumPy arrays. Convert "
                "the chunks first: X.map_blocks(numpy.ma.filled, 0.0) fills masked elements, and "
                "X.map_blocks(lambda chunk: chunk.toarray()) makes sparse chunks dense."
            )
    if declared is not None:
        pieces = [exact(np.asarray(piece), declared) for piece in pieces]
        require_shape(declared, (sum(map(len, pieces)), *pieces[0].shape[1:]))
    if len(pieces) > 1 or copy:
        return join_arrays(pieces)
    array = np.asarray(pieces[0])
    base = array.base
    is_whole = base is None or (
        isinstance(base, np.ndarray) and base.nbytes <= array.nbytes + alignment_of(array.nbytes)
    )
    if not (is_whole and array.flags.writeable):
        return join_arrays([array])
    return aligned(array)


def exact(array: Array, declared: Declared) -> Array:
    """Return an array in the declared dtype; raise PlacementError if a value would be lost."""
    dtype = declared.dtype
    if array.dtype == dtype:
        return array
    if (found := _converted(array, dtype)) is None:
        remedy = f"astype({str(array.dtype)!r})"
        if array.dtype.hasobject:
            target = "float64" if dtype.kind in "biu" else str(dtype)
            # `X.astype` does nothing where Dask declares this dtype already.
            remedy = f"X.map_blocks(lambda chunk: chunk.astype({target!r}))"
        raise PlacementError(
            f"{declared.block} has rows of dtype {array.dtype}, and the dtype {dtype} that Dask declares has not all "
            f"their values. Blocks need one dtype on all ranks. Convert all chunks first: {remedy}.",
            given=str(array.dtype),
            allowed=str(dtype),
        )
    return found


def _converted(array: Array, dtype: np.dtype[Any]) -> Array | None:
    """Return an array in another dtype; None if a value is lost."""
    numbers, texts = "biufc", "US"
    # Text that can be read as a number is no number.
    for kinds in (numbers, texts):
        if (array.dtype.kind in kinds) != (dtype.kind in kinds) and "O" not in (array.dtype.kind, dtype.kind):
            return None
    if array.dtype.kind == "c" and dtype.kind in "biuf":
        return None
    try:
        with np.errstate(invalid="ignore", over="ignore"):
            if array.dtype.hasobject:
                return _of_objects(array, dtype)
            from workbench.placement import schema

            found = array.astype(dtype)
            return found if schema.is_kept(array, found) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _of_objects(array: Array, dtype: np.dtype[Any]) -> Array | None:
    import pandas as pd

    missing = pd.isna(array)
    found = np.where(missing, np.array(np.nan if dtype.kind in "fc" else None, object), array).astype(dtype)
    # None becomes NaN or NaT, which is no other value.
    is_kept = np.array_equal(pd.isna(found), missing) and np.array_equal(
        found.astype(object)[~missing], array[~missing]
    )
    return found if is_kept else None


def require_shape(declared: Declared, shape: tuple[int, ...]) -> None:
    """Raise PlacementError if a block has another shape than its collection declares."""
    if shape != declared.shape:
        raise PlacementError(
            f"{declared.block} has the shape {shape}, and the collection declares {declared.shape}. Let Dask count the "
            "rows of its chunks, with compute_chunk_sizes()."
        )


def owned_tensor(pieces: Sequence[Any], *, device: str, copy: bool = False, declared: Declared | None = None) -> Any:
    """Return the pieces as one tensor on a device; on ``"cpu"`` with the memory of `owned_array`."""
    if any(map(tensors.is_of_other_library, pieces)):
        return tensors.joined(pieces, device, copy=copy)
    return tensors.on_device(owned_array(pieces, copy=copy, declared=declared), device)


def owned_frame(pieces: Sequence[Any], *, copy: bool = False, types: Types | None = None) -> Any:
    """Return the concatenated pandas frames or series, in these types; a single one copied with `copy`."""
    if types is not None:
        from workbench.placement import schema

        pieces = [schema.conform(piece, types) for piece in pieces]
    if len(pieces) > 1:
        import dask.dataframe as dd  # not a module of the package first, as in `from_results.to_blocks`

        return dd.dispatch.concat(list(pieces))
    return pieces[0].copy() if copy else pieces[0]


def cut_array(chunk: Array, start: int, stop: int) -> Array:
    """Return some rows of a chunk, as a view."""
    return chunk[start:stop]


def cut_frame(chunk: Any, start: int, stop: int) -> Any:
    """Return some rows of a pandas frame or series, as a copy that does not keep the others alive."""
    return chunk.iloc[start:stop].copy()


def measured(chunk: Any) -> tuple[int, int, bytes]:
    """Return rows, bytes and the description of the types of a pandas frame or series."""
    from workbench.placement import schema

    return len(chunk), sizeof(chunk), schema.described(chunk)


def call_with_aligned(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `function` with aligned arrays: a block that was read from disk or received may not be aligned."""
    return function(*map(ready, args), **{name: ready(value) for name, value in kwargs.items()})


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
