"""Reads messages from a socket, frame by frame into aligned memory; a canceled read can be continued.

A coroutine that waits for a message may be canceled. The frames that a header has announced over MPI must still be
received, because their sends would otherwise never complete. So the reader stores its position in the stream, and the
next read continues there.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from distributed.comm.core import CommClosedError
from distributed.protocol.utils import host_array
from tornado.iostream import StreamClosedError

from workbench.comm import buffer_pool, framing, member
from workbench.comm.buffer_pool import aligned, whole_lines

if TYPE_CHECKING:
    from tornado.iostream import IOStream

    from workbench.comm.progress_engine import Transfer

# Bytes. Frames smaller than the first number are read together, in runs of about the second.
_SMALL, _RUN = 1 << 16, 1 << 20
# Seconds between two polls of a read whose waiter was canceled: the first and the longest interval.
_PAUSE, _LONG_PAUSE = 0.002, 0.5

Frames = Sequence[tuple[memoryview, int]]
"""Memory of frames, and their tags."""
Step = Callable[[], Any]
# Memory for consecutive frames, and their indices.
_Run = tuple[memoryview, Sequence[int]]


class FramesByMPI(Protocol):
    """The interface of `MPIChannel` that the reader uses."""

    peer: int
    """Rank of the sender."""

    def receive(self, frames: Frames, *, one_by_one: bool) -> Transfer:
        """Receive frames into memory, each with its tag; one at a time if they share the memory."""

    def progress_sends(self) -> None:
        """Poll the sends often: the peer has requested progress."""

    def drain_and_close(self) -> None:
        """Close the connection in the background, after this side has stopped to read and to write."""


class MessageReader:
    """The messages of a socket, for one coroutine at a time."""

    def __init__(self, stream: IOStream) -> None:
        # Tornado's types are a bytearray and an awaitable, but it accepts any buffer and returns a future.
        self._stream: Any = stream
        self._is_filling = False
        self._waiter: asyncio.Future[Any] | None = None
        self._turn = 0
        self._flow = member.peer_traffic("outside", "socket")
        self.link: FramesByMPI | None = None
        """The MPI channel, if the peer is a rank of the same world."""
        self.discard = False
        """Whether frames are received into scratch memory and discarded."""
        self._header = memoryview(bytearray(framing.HEADER_SIZE))
        self._begin()

    def connect(self, link: FramesByMPI) -> None:
        """Receive frames over MPI too."""
        self.link, self._flow = link, member.peer_traffic(link.peer, "socket")

    def _begin(self) -> None:
        # The memory to fill from the socket, and the step to take then, which returns the step after it.
        self._pieces: deque[memoryview] = deque([self._header])
        self._step: Step | None = self._read_header
        self._frames: list[memoryview] = []
        self._transfer: Transfer | None = None
        self._began, self._size = 0.0, 0

    async def message(self) -> list[memoryview]:
        """Return the frames of the next message, or of the message whose read was canceled.

        Returns
        -------
        list of memoryview
            Each of format ``"B"``, writable and aligned to 64 bytes, except the first, which is msgpack.

        Raises
        ------
        tornado.iostream.StreamClosedError
            If the socket has ended, or `wake` was called.
        distributed.comm.core.CommClosedError
            If the peer has ended while frames over MPI were outstanding.
        ValueError
            If the data is not a message.
        """
        while self._step is not None:
            while self._pieces:
                await self._fill(self._pieces[0])
                self._pieces.popleft()
            self._step = self._step()
        if self._transfer is not None:
            if (waiter := self._transfer.waiter()) is not None:
                await self._wait(waiter)
            if self._transfer.error is not None:
                raise CommClosedError(self._transfer.error)
        frames = self._frames
        self._flow.add_received(self._size, time.perf_counter() - self._began)
        self._begin()
        return frames

    def wake(self) -> None:
        """Raise `StreamClosedError` in the coroutine that waits for a message, without changing the socket."""
        self._turn += 1
        if self._waiter is not None:
            self._waiter.cancel()

    async def _fill(self, piece: memoryview) -> None:
        if self._is_filling:
            # The waiter was canceled. Tornado continues the read, and does not report its end.
            pause = _PAUSE
            while self._stream.reading():
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONG_PAUSE)
            # Only tornado's private state shows whether the read is complete or the stream has ended before.
            if self._stream._user_read_buffer:  # noqa: SLF001
                raise StreamClosedError
        else:
            self._is_filling = True
            await self._wait(self._stream.read_into(piece))
        self._is_filling = False

    async def _wait(self, waiter: asyncio.Future[Any]) -> None:
        turn, self._waiter = self._turn, waiter
        try:
            await waiter
        except asyncio.CancelledError:
            if turn == self._turn:
                raise
        finally:
            if self._waiter is waiter:
                self._waiter = None
        if turn != self._turn:
            # Another coroutine continues from here, even if the awaited data has just arrived.
            raise StreamClosedError

    # -- the steps of one message ------------------------------------------------------------------------------

    def _read_header(self) -> Step:
        self._began = time.perf_counter()
        header = framing.parse_header(self._header)
        if self.link is None and (header.by_mpi or not header.frames):
            raise ValueError("frames over MPI from a peer outside this world")
        if self.link is not None and not header.frames:
            self.link.progress_sends()
            self._pieces.append(self._header)
            return self._read_header
        self._size = framing.HEADER_SIZE + header.size
        body = host_array(header.size if header.size <= framing.JOINED else header.numbers)
        if body:
            self._pieces.append(body)
        return partial(self._read_layout, header, body)

    def _read_layout(self, header: framing.FrameHeader, body: memoryview) -> Step:
        layout = framing.parse_layout(header, body)
        lengths, on_socket = layout.lengths, layout.on_socket
        split = layout.joined if header.size <= framing.JOINED else 0
        joined, parts = on_socket[:split], (on_socket[split : layout.joined], on_socket[layout.joined :])
        # All allocations are before the first change of state, so this step can be repeated after a MemoryError.
        if self.discard:
            runs: list[_Run] = []
            separate: dict[int, memoryview] = {}
            before, after = [
                [piece for index in part for piece in buffer_pool.scratch(lengths[index])] for part in parts
            ]
            by_mpi = [
                (piece, tag) for index, tag in layout.tags.items() for piece in buffer_pool.scratch(lengths[index])
            ]
        else:
            in_parts = [list(_runs(part, lengths)) for part in parts]
            runs = [run for part in in_parts for run in part]
            separate = {index: buffer_pool.take_memory(lengths[index]) for index in layout.tags}
            before, after = [
                [run[at : at + framing.MAX_COUNT] for run, _ in part for at in range(0, len(run), framing.MAX_COUNT)]
                for part in in_parts
            ]
            by_mpi = [(separate[index], tag) for index, tag in layout.tags.items()]
        self._size += sum(lengths[index] for part in parts for index in part)
        self._pieces.extend(before)
        place = partial(self._place, lengths, [(body[header.numbers :], joined), *runs], separate)
        return partial(self._receive, by_mpi, after, place)

    def _receive(self, by_mpi: Frames, after: list[memoryview], place: Step) -> Step:
        # The sender posts only after the whole body: it reuses the tags of a body that it could not send.
        if by_mpi and self.link is not None:
            self._transfer = self.link.receive(by_mpi, one_by_one=self.discard)
        self._pieces.extend(after)
        return place

    def _place(self, lengths: Sequence[int], runs: list[_Run], separate: dict[int, memoryview]) -> None:
        frames = dict(separate)
        for run, indices in runs:
            if len(indices) == 1 and len(run) >= _SMALL:
                frames[indices[0]] = run
            else:
                _scatter(run, indices, lengths, frames)
        nothing = memoryview(bytearray())
        self._frames = [frames.get(index, nothing) for index in range(len(lengths))]


def _runs(indices: Sequence[int], lengths: Sequence[int]) -> Iterator[_Run]:
    """Yield memory for consecutive frames on the socket, and the indices of its frames."""
    run: list[int] = []
    size = 0
    for index in indices:
        if lengths[index] >= _SMALL:
            if run:
                yield host_array(size), run
            yield buffer_pool.take_memory(lengths[index]), [index]
            run, size = [], 0
        else:
            run.append(index)
            size += lengths[index]
            if size >= _RUN:
                yield host_array(size), run
                run, size = [], 0
    if run:
        yield host_array(size), run


def _scatter(run: memoryview, indices: Sequence[int], lengths: Sequence[int], frames: dict[int, memoryview]) -> None:
    """Copy small frames that were read together into `frames`, each at an aligned address."""
    at = 0
    if indices and indices[0] == 0:
        # The first frame is msgpack, which is read one time and needs no alignment.
        at, indices = lengths[0], indices[1:]
        frames[0] = run[:at]
    if not indices:
        return
    block, to = aligned(sum([whole_lines(lengths[index]) for index in indices])), 0
    for index in indices:
        length = lengths[index]
        frames[index] = block[to : to + length]
        frames[index][:] = run[at : at + length]
        at += length
        to += whole_lines(length)
