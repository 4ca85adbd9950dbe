"""The bytes of a message, in all forms that mpi4py accepts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np
from mpi4py import MPI

# A name of this module is found sooner than one of NumPy, for messages that take a few microseconds.
_ARRAY = np.ndarray


def nbytes(message: Any, blocks: int = 1) -> int:
    """Return the bytes of a message: the same on all ranks of an operation, whatever form each rank uses.

    Parameters
    ----------
    message
        A buffer, or a list of a buffer, count, displacement and type of which mpi4py allows some to be left out.
    blocks
        A buffer holds so many of them, and a count is that of one; the bytes of one are returned.

    Returns
    -------
    int
        0 also for what is no message, at which mpi4py will raise.
    """
    if type(message) is _ARRAY:
        return message.nbytes if blocks == 1 else message.nbytes // blocks
    number, size = _counted(message, blocks)
    return number * size


def items(message: Any) -> int:
    """Return the number of items that a message carries, of whatever type; 0 as for `nbytes`."""
    return _counted(message, 1)[0]


def item_bytes(message: Any) -> int:
    """Return the bytes of one item of a message; 0 as for `nbytes`."""
    return _counted(message, 1)[1]


def vector_nbytes(message: Any, blocks: int) -> list[int]:
    """Return the bytes of each block of a message of as many, as of `Scatterv`; zeros for what is no such message."""
    try:
        buffer, counts, _, kind = _parts(message, tuple)
        size, extent = _type(buffer, kind)
        if counts is None:
            each, more = divmod(_whole(buffer) // extent, blocks)
            counts = [each + (block < more) for block in range(blocks)]
        elif isinstance(counts, SupportsIndex) and not isinstance(counts, np.ndarray):
            counts = [counts] * blocks
        return _products(counts, [size] * blocks)
    except Exception:  # noqa: BLE001  (what is no message, at which mpi4py will raise)
        return [0] * blocks


def typed_nbytes(message: Any, blocks: int) -> list[int]:
    """Return the bytes of each block of a message where each has a type of its own, as of `Alltoallw`."""
    try:
        _, *counts, types = message
        sizes = [_datatype(each).Get_size() for each in types]
        if len(counts) == 1:
            counts = list(counts[0])
        return _products(counts[0] if counts else [1] * blocks, sizes)
    except Exception:  # noqa: BLE001  (what is no message, at which mpi4py will raise)
        return [0] * blocks


def _products(counts: Iterable[Any], sizes: Iterable[int]) -> list[int]:
    return [int(count) * size for count, size in zip(counts, sizes, strict=True)]


def _counted(message: Any, blocks: int) -> tuple[int, int]:
    """Return how many items there are of a type, and the bytes of one."""
    try:
        buffer, count, displacement, kind = _parts(message, (list, tuple))
        size, extent = _type(buffer, kind)
        if count is None:
            count = (_whole(buffer) - (displacement or 0) * extent) // extent // blocks
        return int(count), size
    except Exception:  # noqa: BLE001  (as above)
        return 0, 0


def _parts(message: Any, pair: Any) -> Sequence[Any]:
    """Return buffer, count, displacement and type; None for what is left out."""
    if not isinstance(message, list | tuple):
        return message, None, None, None
    buffer, *rest = message
    if len(rest) == 1 and isinstance(rest[0], MPI.Datatype | str):
        return buffer, None, None, rest[0]
    if len(rest) == 3:
        return message
    first, kind = rest if len(rest) == 2 else (*rest, None)
    count, displacement = first if isinstance(first, pair) else (first, None)
    return buffer, count, displacement, kind


def _type(buffer: Any, kind: Any) -> tuple[int, int]:
    """Return the bytes of an item, and from one to the next."""
    if kind is None:
        # what is known by DLPack alone has bytes for mpi4py's own memory
        size = int(getattr(buffer, "itemsize", 0)) or _memory(buffer).itemsize
        return size, size
    datatype = _datatype(kind)
    return datatype.Get_size(), datatype.Get_extent()[1]


def _datatype(kind: Any) -> MPI.Datatype:
    return kind if isinstance(kind, MPI.Datatype) else MPI.Datatype.fromcode(kind)


def _whole(buffer: Any) -> int:
    return int(_memory(buffer).nbytes)


def _memory(buffer: Any) -> Any:
    """Return an object with the size of a buffer."""
    try:
        return memoryview(buffer)
    except Exception:  # noqa: BLE001  (PyTorch, JAX and others: mpi4py takes them by DLPack or from the memory of a GPU)
        return MPI.memory.frombuffer(buffer)
