"""The bytes of a message, in all forms that mpi4py accepts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np
from mpi4py import MPI

ANY = -(2**62)
"""In place of a number that is unknown, or that may differ between ranks."""
# A global name is faster than an attribute of NumPy, for messages that take a few microseconds.
_ARRAY = np.ndarray


def nbytes(message: Any, blocks: int = 1) -> int:
    """Return the bytes of one block of a message, the same on all ranks in whatever form they pass the message.

    Parameters
    ----------
    message
        A buffer, or mpi4py's list of a buffer, count, displacement and type, some of which may be omitted.
    blocks
        Number of blocks in the buffer. The count of a list is that of one block.

    Returns
    -------
    int
        0 if `message` is not valid, because mpi4py will raise.
    """
    if type(message) is _ARRAY:
        return message.nbytes if blocks == 1 else message.nbytes // blocks
    number, size = _items_and_size(message, blocks)
    return number * size


def items(message: Any) -> int:
    """Return the number of items of a message; 0 as for `nbytes`."""
    return _items_and_size(message, 1)[0]


def item_bytes(message: Any) -> int:
    """Return the bytes of one item of a message; 0 as for `nbytes`."""
    return _items_and_size(message, 1)[1]


def kind_of(message: Any) -> int:
    """Return a number for the type of the items of a message, on all ranks the same for all forms; `ANY` if unknown."""
    try:
        if type(message) is _ARRAY:
            dtype = message.dtype
        else:
            buffer, _, _, kind = _parts(message, tuple)
            name = getattr(buffer, "dtype", None) or memoryview(buffer).format
            dtype = np.dtype(_datatype(kind).typestr if kind is not None else str(name).removeprefix("torch."))
    except Exception:  # noqa: BLE001  (a type that NumPy does not have, or a message that is not valid)
        return ANY
    return ANY if dtype.kind == "V" else ord(dtype.kind) << 16 | dtype.itemsize


def vector_nbytes(message: Any, blocks: int) -> list[int]:
    """Return the bytes of each block of a message, for example of `Scatterv`; zeros if it is not valid."""
    try:
        buffer, counts, _, kind = _parts(message, tuple)
        size, extent = _type(buffer, kind)
        if counts is None:
            items_per_block, rest = divmod(_buffer_nbytes(buffer) // extent, blocks)
            counts = [items_per_block + (block < rest) for block in range(blocks)]
        elif isinstance(counts, SupportsIndex) and not isinstance(counts, np.ndarray):
            counts = [counts] * blocks
        return _products(counts, [size] * blocks)
    except Exception:  # noqa: BLE001  (the message is not valid, so mpi4py will raise)
        return [0] * blocks


def typed_nbytes(message: Any, blocks: int) -> list[int]:
    """Return the bytes of each block of a message with a type per block, for example of `Alltoallw`."""
    try:
        _, *counts, types = message
        sizes = [_datatype(kind).Get_size() for kind in types]
        if len(counts) == 1:
            counts = list(counts[0])
        return _products(counts[0] if counts else [1] * blocks, sizes)
    except Exception:  # noqa: BLE001  (as above)
        return [0] * blocks


def packed(message: Any, comm: MPI.Comm) -> bytearray | None:
    """Return the items of a message as consecutive bytes, to send as ``MPI.PACKED``; None if they are consecutive."""
    try:
        buffer, _, displacement, kind = _parts(message, (list, tuple))
        if kind is None:
            return None
        datatype, number = _datatype(kind), items(message)
        extent = datatype.Get_extent()[1]
        if datatype.is_predefined and datatype.Get_size() == extent:
            return None
        begin = MPI.Get_address(buffer) + (displacement or 0) * extent
        contents = bytearray(datatype.Pack_size(number, comm))
        end = datatype.Pack(MPI.memory.fromaddress(begin, number * extent, readonly=True), contents, 0, comm)
    except Exception:  # noqa: BLE001  (the message is not valid, so mpi4py will raise)
        return None
    del contents[end:]
    return contents


def _products(counts: Iterable[Any], sizes: Iterable[int]) -> list[int]:
    return [int(count) * size for count, size in zip(counts, sizes, strict=True)]


def _items_and_size(message: Any, blocks: int) -> tuple[int, int]:
    """Return the number of items, and the bytes of one item."""
    try:
        buffer, count, displacement, kind = _parts(message, (list, tuple))
        size, extent = _type(buffer, kind)
        if count is None:
            count = (_buffer_nbytes(buffer) - (displacement or 0) * extent) // extent // blocks
        return int(count), size
    except Exception:  # noqa: BLE001  (as above)
        return 0, 0


def _parts(message: Any, pair: Any) -> Sequence[Any]:
    """Return buffer, count, displacement and type; None for omitted ones."""
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
    """Return the size and the extent of an item in bytes."""
    if kind is None:
        # An object with only DLPack has an item size after mpi4py has converted it.
        size = int(getattr(buffer, "itemsize", 0)) or _memory(buffer).itemsize
        return size, size
    datatype = _datatype(kind)
    return datatype.Get_size(), datatype.Get_extent()[1]


def _datatype(kind: Any) -> MPI.Datatype:
    return kind if isinstance(kind, MPI.Datatype) else MPI.Datatype.fromcode(kind)


def _buffer_nbytes(buffer: Any) -> int:
    return int(_memory(buffer).nbytes)


def _memory(buffer: Any) -> Any:
    """Return an object with the size of a buffer."""
    try:
        return memoryview(buffer)
    except Exception:  # noqa: BLE001  (mpi4py accepts PyTorch, JAX and others with DLPack, or in the memory of a GPU)
        return MPI.memory.frombuffer(buffer)
