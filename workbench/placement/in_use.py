"""Values of the worker that user code may write to in place, without losing these writes when values are spilled."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from dask.typing import Key


ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register in use. Some kernels are ten times slower with less."""

# Large arrays begin at a page of this size, which saves translations of addresses. NumPy uses such pages from 4 MiB on.
_PAGE, _LARGE = 2 << 20, 4 << 20

Array = npt.NDArray[Any]


def is_aligned(array: Array) -> bool:
    """Return whether the array is C-contiguous and begins at a multiple of `ALIGNMENT`."""
    return bool(array.flags.c_contiguous) and array.ctypes.data % ALIGNMENT == 0


def empty_aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return a new aligned array, not initialized; an array of Python objects is contiguous only."""
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        return np.empty(shape, dtype)
    nbytes = dtype.itemsize * int(np.prod(shape))
    alignment = alignment_of(nbytes)
    memory = np.empty(nbytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def alignment_of(nbytes: int) -> int:
    """Return the alignment of a new array of so many bytes."""
    return _PAGE if nbytes >= _LARGE else ALIGNMENT


def aligned(array: Array) -> Array:
    """Return the array itself if it is aligned (or contiguous, with Python objects), else an aligned copy."""
    if is_aligned(array) or (array.dtype.hasobject and array.flags.c_contiguous):
        return array
    return join_arrays([array])


def join_arrays(pieces: Sequence[Array]) -> Array:
    """Return the concatenated pieces, which have one dtype, in a new aligned array."""
    shape = (sum(len(piece) for piece in pieces), *pieces[0].shape[1:]) if pieces[0].ndim else ()
    joined = empty_aligned(shape, pieces[0].dtype)
    if len(pieces) == 1:
        joined[...] = pieces[0]
    else:
        np.concatenate(pieces, out=joined, casting="equiv")
    return joined


def ready(value: Any) -> Any:
    """Return an array aligned, any other value unchanged."""
    return aligned(value) if type(value) is np.ndarray else value


def take(data: MutableMapping[Key, Any], key: Key) -> Any:
    """Return a value of the worker for user code; an array that is not aligned is replaced by an aligned copy."""
    value = data[key]
    aligned = ready(value)
    if aligned is not value:  # read from disk, or received in a message
        data[key] = aligned
    return aligned


def put_back(data: MutableMapping[Key, Any], taken: Mapping[Key, Any]) -> None:
    """Replace values that the worker has spilled since `take` returned them by the current values.

    Notes
    -----
    While user code refers to a spilled value, Dask's `SpillBuffer` returns that object for the key. Afterwards only the
    file is left, which lacks later writes.
    """
    # Without a memory limit the worker spills nothing.
    in_memory: Mapping[Key, Any] = getattr(data, "fast", data)
    for key, value in taken.items():
        # A key that is missing was released.
        if key not in in_memory and key in data:
            data[key] = value
