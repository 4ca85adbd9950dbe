"""What one rank does with rows: cut them, put them together, keep them contiguous and aligned.

Pure functions on numpy arrays and pandas frames. They run on the ranks and know nothing of clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register in use. Some kernels are ten times slower on less."""

# Large arrays begin at a page of this size: who reads them from end to end waits for fewer translations of addresses.
# NumPy asks for such pages from 4 MiB on.
_PAGE, _LARGE = 2 << 20, 4 << 20

Array = npt.NDArray[Any]


class Cut(NamedTuple):
    """The rows ``start:stop`` of chunk number ``chunk``."""

    chunk: int
    start: int
    stop: int


def split(rows: int, parts: int) -> list[int]:
    """Return how many rows each part gets: sizes differ by one at most, the larger ones first.

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
        Rows of each chunk that there is.
    sizes
        Rows of each block wanted; the sums of the two are equal.

    Examples
    --------
    >>> cuts([4, 2], [3, 3])
    [[Cut(chunk=0, start=0, stop=3)], [Cut(chunk=0, start=3, stop=4), Cut(chunk=1, start=0, stop=2)]]
    """
    blocks: list[list[Cut]] = []
    chunk = start = 0
    for size in sizes:
        block: list[Cut] = []
        wanted = size
        while wanted:
            stop = min(start + wanted, chunks[chunk])
            if stop > start:
                block.append(Cut(chunk, start, stop))
            wanted -= stop - start
            chunk, start = (chunk + 1, 0) if stop == chunks[chunk] else (chunk, stop)
        blocks.append(block)
    return blocks


def is_aligned(array: Array) -> bool:
    """Whether the array is C-contiguous and begins at a multiple of `ALIGNMENT`."""
    return bool(array.flags.c_contiguous) and array.ctypes.data % ALIGNMENT == 0


def empty_aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return a new aligned array, not initialised. One that holds Python objects is contiguous only."""
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        return np.empty(shape, dtype)
    nbytes = dtype.itemsize * int(np.prod(shape))
    alignment = _alignment(nbytes)
    memory = np.empty(nbytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def _alignment(nbytes: int) -> int:
    return _PAGE if nbytes >= _LARGE else ALIGNMENT


def aligned(array: Array) -> Array:
    """Return the array itself where it is aligned (or holds Python objects, contiguously), else a copy that is."""
    if is_aligned(array) or (array.dtype.hasobject and array.flags.c_contiguous):
        return array
    return join_arrays([array])


def join_arrays(pieces: Sequence[Array]) -> Array:
    """Return the pieces one below the other in a new aligned array."""
    shape = (sum(len(piece) for piece in pieces), *pieces[0].shape[1:]) if pieces[0].ndim else ()
    dtypes = {piece.dtype for piece in pieces}
    # result_type alone would change the byte order of foreign data
    joined = empty_aligned(shape, dtypes.pop() if len(dtypes) == 1 else np.result_type(*pieces))
    if len(pieces) == 1:
        joined[...] = pieces[0]
    else:
        np.concatenate(pieces, out=joined)
    return joined


def own_array(pieces: Sequence[Array]) -> Array:
    """Return the pieces as one aligned array with memory of its own; copied only where that is needed.

    A view is copied where it would keep a larger array alive, and so is an array in a buffer that is not
    numpy's: that is a message as it arrived, with whatever else came in it.
    """
    if len(pieces) > 1:
        return join_arrays(pieces)
    array = np.asarray(pieces[0])
    base = array.base
    if base is not None and not (
        isinstance(base, np.ndarray) and base.nbytes <= array.nbytes + _alignment(array.nbytes)
    ):
        return join_arrays([array])
    return aligned(array)


def own_frame(pieces: Sequence[Any]) -> Any:
    """Return the pandas frames or series one below the other, categories united."""
    from dask.dataframe.dispatch import concat

    return pieces[0] if len(pieces) == 1 else concat(list(pieces))


def cut_array(chunk: Array, start: int, stop: int) -> Array:
    """Return some rows of a chunk, as a view."""
    return chunk[start:stop]


def cut_frame(chunk: Any, start: int, stop: int) -> Any:
    """Return some rows of a pandas frame or series, as a copy that does not keep the others alive."""
    return chunk.iloc[start:stop].copy()


def measure(chunk: Any) -> tuple[int, int]:
    """Return rows and bytes of a pandas frame or series."""
    from dask.sizeof import sizeof

    return len(chunk), sizeof(chunk)


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` with every array aligned: a block that came back from disk, or a message, may not be."""
    return function(*map(_ready, args), **{name: _ready(value) for name, value in kwargs.items()})


def _ready(value: Any) -> Any:
    return aligned(value) if type(value) is np.ndarray else value
