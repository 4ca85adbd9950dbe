"""Arrays that are aligned for vector units and C libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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
