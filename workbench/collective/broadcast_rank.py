"""A broadcast on a rank: receive the upload, prepare, join the ``MPI_Bcast``, keep the object.

Each piece is an ``Ibcast`` that is tested with a cancel flag: a blocking call would never return when a rank that
takes part does not answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

from workbench.collective import protocol
from workbench.collective.operation import answering
from workbench.collective.serialize import exceptions_only, serialized
from workbench.comm.buffer_pool import whole_lines
from workbench.errors import CollectiveFailed, CollectiveTimeout, RankLost
from workbench.mpi.polling import keep_alive, wait
from workbench.session.head_client import is_lost

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Worker
    from mpi4py import MPI

    from workbench.mpi.communicator_cache import CommunicatorCache
    from workbench.mpi.context import RankContext


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
            under_way.append(communicator.Ibcast([piece, MPI.BYTE], root=0))
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


@dataclass
class _Call:
    """A prepared or running broadcast of this rank."""

    key: Key
    deadline: float
    """Time of `time.monotonic`."""
    buffers: list[memoryview] = field(default_factory=list)
    """Memory that MPI reads or writes; the same lengths on all ranks."""
    frames: list[memoryview] | None = None
    """Frames to receive; None on the rank that sends."""
    called_off: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise if the broadcast was ended or is late."""
        if self.called_off.is_set():
            raise CollectiveFailed("the broadcast was cancelled.")
        if time.monotonic() > self.deadline:
            raise CollectiveTimeout("the broadcast did not end in time, because another rank does not answer.")


class Broadcasts:
    """Handlers of a rank for broadcasts.

    Parameters
    ----------
    worker
        The worker of the rank, which keeps the objects and gets the handlers.
    context
        The rank.
    communicators
        Communicators of the SPMD thread.

    Notes
    -----
    Runs on the event loop of the worker. Only the SPMD thread calls MPI, so neither occupied task slots nor the thread
    level of MPI matter.
    """

    def __init__(self, worker: Worker, context: RankContext, communicators: CommunicatorCache) -> None:
        self._worker, self._context, self._communicators = worker, context, communicators
        self.calls: dict[str, _Call] = {}
        worker.handlers[protocol.BROADCAST_UPLOAD] = self.upload
        worker.handlers |= answering(
            {
                protocol.BROADCAST_OFFER: self.offer,
                protocol.BROADCAST_TAKE: self.take,
                protocol.BROADCAST_GO: self.go,
            }
        )
        worker.stream_handlers[protocol.BROADCAST_CANCEL] = self.cancel

    async def upload(self, key: Key, value: Any) -> None:
        """Keep the object that a client sends, and report to the head."""
        worker = self._worker
        nbytes = worker.update_data({key: value})["nbytes"][key]
        uploaded = getattr(worker.scheduler, protocol.BROADCAST_UPLOADED)
        try:
            await uploaded(key=key, address=worker.address, nbytes=nbytes)
        except RuntimeError as error:  # this rank ends, and its connections are closed
            if not is_lost(error):
                raise
            raise RankLost(protocol.UPLOAD_LOST) from error

    async def offer(self, **asked: Unpack[protocol.Offer]) -> list[int]:
        """Prepare to send the object; return the bytes of each frame."""
        from distributed.utils import offload

        ready = self._expect(asked)
        frames = await offload(_to_frames, self._worker.data[ready.key])
        ready.buffers = outgoing(frames)
        return [frame.nbytes for frame in frames]

    async def take(self, **asked: Unpack[protocol.Take]) -> None:
        """Prepare to receive frames of these sizes."""
        from workbench.comm import buffer_pool

        _, _, total = layout(asked["sizes"])
        limit = self._worker.memory_manager.memory_limit
        if limit and total > limit:
            raise MemoryError(f"the object has {total} bytes, and the memory limit of a rank is {limit} bytes")
        buffers, frames = incoming(buffer_pool.take_memory(total), asked["sizes"])
        ready = self._expect(asked)
        ready.buffers, ready.frames = buffers, frames

    async def go(self, call: str, serial: int) -> None:
        """Send or receive with the communicator of this number; return when this rank has the object."""
        from distributed.utils import offload

        ready = self.calls.get(call)
        if ready is None:
            raise CollectiveFailed("the broadcast was cancelled.")
        try:
            await asyncio.wrap_future(self._context.spmd_thread.submit(self._bcast, ready, serial))
        finally:
            self.calls.pop(call, None)
        if ready.frames is not None:
            self._worker.update_data({ready.key: await offload(_from_frames, ready.frames)})

    def _bcast(self, ready: _Call, serial: int) -> None:
        communicator = self._communicators.get(serial, range(self._context.size), ready.check)
        bcast(communicator, ready.buffers, ready.check)

    def cancel(self, call: str) -> None:
        """End a broadcast in any state."""
        if ready := self.calls.pop(call, None):
            ready.called_off.set()

    def _expect(self, asked: protocol.Offer) -> _Call:
        ready = self.calls[asked["call"]] = _Call(asked["key"], time.monotonic() + asked["timeout"])
        # Without a request to start, the memory is released at the deadline.
        asyncio.get_running_loop().call_later(asked["timeout"], self.calls.pop, asked["call"], None)
        return ready


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
