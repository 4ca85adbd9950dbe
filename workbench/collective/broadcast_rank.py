"""A broadcast on a rank: receive the upload, join the ``MPI_Bcast``.

Each piece is an ``Ibcast`` that is tested with a cancel flag: a blocking call would never return when a rank that
takes part does not answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.collective import protocol
from workbench.collective.serialize import exceptions_only, serialized
from workbench.comm import buffer_pool
from workbench.comm.buffer_pool import whole_lines
from workbench.errors import CollectiveFailed, RankLost
from workbench.mpi.polling import keep_alive, wait
from workbench.session.current import current_worker
from workbench.session.head_client import is_lost

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Worker
    from mpi4py import MPI

    from workbench.mpi.communicator import Communicator


# Bytes of a piece, and pieces in flight. Measured with 256 MB on 4 ranks: 60 ms with Open MPI and 80 ms with MPICH; one
# blocking call takes 90 and 140 ms. A piece is also far below INT_MAX.
_PIECE = 16 << 20
_DEPTH = 4
# Bytes below which frames are packed together, since a separate message costs more than a copy.
_SMALL = 1 << 16


def layout(sizes: Sequence[int]) -> tuple[list[int], int, int]:
    """Place frames in one memory, each at a multiple of 64: first the small ones, which are sent together.

    Parameters
    ----------
    sizes
        Bytes of each frame.

    Returns
    -------
    offsets : list of int
        Offset of each frame.
    packed : int
        Bytes at the beginning that hold the small frames.
    total : int
        Bytes of the memory.
    """
    offsets, end = [0] * len(sizes), 0
    order = sorted(range(len(sizes)), key=lambda number: sizes[number] >= _SMALL)
    packed = 0
    for number in order:
        offsets[number] = end
        end += whole_lines(sizes[number])
        if sizes[number] < _SMALL:
            packed = end
    return offsets, packed, end


def outgoing(frames: Sequence[memoryview]) -> list[memoryview]:
    """Return the buffers that send `frames`: a copy of the small ones, and the large ones."""
    sizes = [frame.nbytes for frame in frames]
    offsets, packed, _ = layout(sizes)
    head = memoryview(bytearray(packed))
    large = []
    for frame, offset, size in zip(frames, offsets, sizes, strict=True):
        if size < _SMALL:
            head[offset : offset + size] = frame
        else:
            large.append(frame)
    return [head, *large]


def incoming(memory: memoryview, sizes: Sequence[int]) -> tuple[list[memoryview], list[memoryview]]:
    """Return the buffers that receive into `memory`, and the received frames."""
    offsets, packed, _ = layout(sizes)
    frames = [memory[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
    return [memory[:packed], *(frame for frame in frames if frame.nbytes >= _SMALL)], frames


def bcast(communicator: MPI.Intracomm, buffers: Sequence[memoryview], check: Callable[[], None]) -> None:
    """Send the buffers of rank 0 to the buffers of the other ranks. Runs on the SPMD thread; collective.

    Parameters
    ----------
    buffers
        The same number and lengths on all ranks.
    check
        Called repeatedly during the wait; raises to end the broadcast. The communicator must not be used after that.
    """
    from mpi4py import MPI

    under_way: deque[MPI.Request] = deque()
    try:
        for piece in _pieces(buffers):
            under_way.append(MPI.Intracomm.Ibcast(communicator, [piece, MPI.BYTE], root=0))  # without counts
            if len(under_way) == _DEPTH:
                _complete(under_way, check)
        while under_way:
            _complete(under_way, check)
    except BaseException as error:
        keep_alive(*under_way, buffers)
        if isinstance(error, MPI.Exception):
            raise CollectiveFailed(f"MPI_Bcast failed: {error}") from error
        raise


def _pieces(buffers: Sequence[memoryview]) -> Iterator[memoryview]:
    for buffer in buffers:
        for start in range(0, buffer.nbytes, _PIECE):
            yield buffer[start : start + _PIECE]


def _complete(under_way: deque[MPI.Request], check: Callable[[], None]) -> None:
    check()
    wait(under_way[0], check)
    under_way.popleft()


class Kept(NamedTuple):
    """The object as a block that a rank keeps after the call."""

    key: Key


def share(comm: Communicator, key: Key) -> list[tuple[Kept, Any]]:
    """Send an object from rank 0 to the other ranks, and return the object to keep; collective.

    Raises
    ------
    MemoryError
        If the object exceeds the memory limit of this rank. No rank has sent data then.
    """
    worker: Worker = current_worker()  # type: ignore[assignment]
    sends = comm.rank == 0
    frames = _to_frames(worker.data[key]) if sends else []
    sizes = comm.bcast([frame.nbytes for frame in frames])
    _, _, total = layout(sizes)
    limit = worker.memory_manager.memory_limit
    fits = sends or not limit or total <= limit
    if not all(comm.allgather(fits)):
        if not fits:
            raise MemoryError(f"the object has {total} bytes, and the memory limit of a rank is {limit} bytes")
        return []
    if sends:
        buffers = outgoing(frames)
    else:
        memory = asyncio.run_coroutine_threadsafe(_memory(total), worker.loop.asyncio_loop).result()  # type: ignore[attr-defined]
        buffers, frames = incoming(memory, sizes)
    with comm.watch.entered("Bcast", counted=False):
        bcast(comm, buffers, comm.watch.check)
    return [(Kept(key), worker.data[key] if sends else _from_frames(frames))]


async def _memory(nbytes: int) -> memoryview:
    """Return memory of the pool, which the event loop trims."""
    return buffer_pool.take_memory(nbytes)


async def upload(worker: Worker, key: Key, value: Any) -> None:
    """Keep the object that a client sends, and report to the head."""
    nbytes = worker.update_data({key: value})["nbytes"][key]
    uploaded = getattr(worker.scheduler, protocol.BROADCAST_UPLOADED)
    try:
        await uploaded(key=key, address=worker.address, nbytes=nbytes)
    except RuntimeError as error:  # this rank ends, and its connections are closed
        if not is_lost(error):
            raise
        raise RankLost(protocol.UPLOAD_LOST) from error


def _to_frames(value: Any) -> list[memoryview]:
    """Serialize an object as in a message of Dask, but without compression and splitting, which MPI does not need."""
    from distributed.protocol.core import dumps
    from distributed.utils import ensure_memoryview

    frames = dumps({"value": serialized(value)}, on_error="raise")
    return [ensure_memoryview(frame) for frame in frames]


def _from_frames(frames: list[memoryview]) -> Any:
    from distributed.protocol.core import loads

    with exceptions_only():
        return loads(frames)["value"]
