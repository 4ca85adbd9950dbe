"""How many bytes a message has, however it is told to mpi4py."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI


def nbytes(message: Any, blocks: int = 1) -> int:
    """Return the bytes that a message carries: the same on all ranks that take part, however each tells its own.

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
    if type(message) is np.ndarray:
        return message.nbytes // blocks
    number, size = _counted(message, blocks)
    return number * size


def items(message: Any) -> int:
    """Return the number of items that a message carries, of whatever type; 0 as for `nbytes`."""
    return _counted(message, 1)[0]


def _counted(message: Any, blocks: int) -> tuple[int, int]:
    try:
        return _told(message, blocks)
    except (TypeError, ValueError, KeyError, AttributeError, BufferError, ZeroDivisionError, MPI.Exception):
        return 0, 0


def _told(message: Any, blocks: int) -> tuple[int, int]:
    """Return how many items there are of a type, and the bytes of one."""
    count = displacement = kind = None
    if isinstance(message, list | tuple):
        buffer, *rest = message
        if len(rest) == 1 and isinstance(rest[0], MPI.Datatype | str):
            kind = rest[0]
        elif len(rest) == 1:
            count = rest[0]
        elif len(rest) == 2:
            count, kind = rest
        else:
            count, displacement, kind = rest
        if isinstance(count, list | tuple):
            count, displacement = count
    else:
        buffer = message
    if kind is None:
        size = extent = memoryview(buffer).itemsize
    else:
        datatype = kind if isinstance(kind, MPI.Datatype) else MPI.Datatype.fromcode(kind)
        size, extent = datatype.Get_size(), datatype.Get_extent()[1]
    if count is None:
        whole = buffer.nbytes if hasattr(buffer, "nbytes") else memoryview(buffer).nbytes
        count = (whole - (displacement or 0) * extent) // extent // blocks
    return int(count), size
