"""Messages from a socket, frame by frame into aligned memory; a reader that can be left in the middle.

Whoever waits for a message may be cancelled, but frames that a header has announced by MPI must be received all the
same, or their sender would never be rid of them. So it is kept here how far the stream was read, and whoever comes
next goes on from there.
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

from workbench.comm import framing, peer_traffic, receive_memory
from workbench.comm.buffer_pool import aligned, whole_lines

if TYPE_CHECKING:
    from tornado.iostream import IOStream

    from workbench.comm.progress_engine import Transfer

# Bytes. Frames below it are read together, as many as come to so much.
_SMALL, _RUN = 1 << 16, 1 << 20
# Seconds between two looks at a read that somebody has left in the middle: at first, and in the end.
_PAUSE, _LONG_PAUSE = 0.002, 0.5

Frames = Sequence[tuple[memoryview, int]]
"""Memory of frames, and their tags."""
Step = Callable[[], Any]
# Memory for frames that lie one after the other, and their indices.
_Run = tuple[memoryview, Sequence[int]]


class FramesByMPI(Protocol):
    """How frames come beside the socket."""

    peer: int
    """Rank of the sender."""

    def receive(self, frames: Frames, *, one_by_one: bool) -> Transfer:
        """Receive frames into the memory that is given with their tags; one at a time if that is the same for all."""

    def progress_sends(self) -> None:
        """Have the peer's receives find this side at work: it has asked for that."""

    def drain_and_close(self) -> None:
        """End the connection: this side has closed it, and reads and writes no more."""


class MessageReader:
    """The messages that come through a socket.

    Parameters
    ----------
    stream
        The socket.

    Notes
    -----
    One reader at a time.
    """

    def __init__(self, stream: IOStream) -> None:
        # tornado asks for a bytearray and for an awaitable, takes any buffer and gives a future.
        self._stream: Any = stream
        self._is_filling = False
        self._waiter: asyncio.Future[Any] | None = None
        self._turn = 0
        self._flow = peer_traffic.peer_traffic("outside", "socket")
        self.link: FramesByMPI | None = None
        """How frames come by MPI; None unless the peer has turned out to be of the same world."""
        self.discard = False
        """Whether nobody wants the frames any more: they are received into scratch memory then."""
        self._words = memoryview(bytearray(framing.HEADER_SIZE))
        self._begin()

    def connect(self, link: FramesByMPI) -> None:
        """Receive frames by MPI as well."""
        self.link, self._flow = link, peer_traffic.peer_traffic(link.peer, "socket")

    def _begin(self) -> None:
        # What the socket has to fill next, and what is to be done then; that returns what is to be done after it.
        self._wanted: deque[memoryview] = deque([self._words])
        self._step: Step | None = self._read_head
        self._frames: list[memoryview] = []
        self._transfer: Transfer | None = None
        self._began, self._size = 0.0, 0

    async def message(self) -> list[memoryview]:
        """Return the frames of the next message, or of the one whose reading was left in the middle.

        Returns
        -------
        list of memoryview
            Each of format ``"B"``, writable, in memory aligned to 64 bytes; the first, which is msgpack, anywhere.

        Raises
        ------
        tornado.iostream.StreamClosedError
            If the socket has ended, or `interrupt` was called.
        distributed.comm.core.CommClosedError
            If the peer has ended with frames on their way by MPI.
        ValueError
            If what comes is no message.
        """
        while self._step is not None:
            while self._wanted:
                await self._fill(self._wanted[0])
                self._wanted.popleft()
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
        """Let whoever waits for a message have a `StreamClosedError`, and leave the socket as it is."""
        self._turn += 1
        if self._waiter is not None:
            self._waiter.cancel()

    async def _fill(self, piece: memoryview) -> None:
        if self._is_filling:
            # Whoever waited for it was cancelled; tornado goes on with it, and tells nobody of its end.
            pause = _PAUSE
            while self._stream.reading():
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONG_PAUSE)
            # Whether it came to its end, or the stream to its own before, only tornado's own state tells.
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
            # Somebody else goes on from here, even if what was waited for is there just now.
            raise StreamClosedError

    # -- the steps of one message ------------------------------------------------------------------------------

    def _read_head(self) -> Step:
        self._began = time.perf_counter()
        head = framing.parse_header(self._words)
        if self.link is None and (head.by_mpi or not head.frames):
            raise ValueError("frames over MPI from a peer outside this world")
        if self.link is not None and not head.frames:
            self.link.progress_sends()
            self._wanted.append(self._words)
            return self._read_head
        self._size = framing.HEADER_SIZE + head.size
        body = host_array(head.size if head.size <= framing.JOINED else head.numbers)
        if body:
            self._wanted.append(body)
        return partial(self._read_layout, head, body)

    def _read_layout(self, head: framing.FrameHeader, body: memoryview) -> Step:
        layout = framing.parse_layout(head, body)
        lengths, on_socket = layout.lengths, layout.on_socket
        split = layout.glued if head.size <= framing.JOINED else 0
        glued, parts = on_socket[:split], (on_socket[split : layout.glued], on_socket[layout.glued :])
        # Whatever may fail for want of memory comes before anything is begun: this step may be taken again then.
        if self.discard:
            runs: list[_Run] = []
            own: dict[int, memoryview] = {}
            wanted, after = [
                [piece for index in part for piece in receive_memory.scratch(lengths[index])] for part in parts
            ]
            by_mpi = [
                (piece, tag) for index, tag in layout.tags.items() for piece in receive_memory.scratch(lengths[index])
            ]
        else:
            in_parts = [list(_runs(part, lengths)) for part in parts]
            runs = [run for part in in_parts for run in part]
            own = {index: receive_memory.take(lengths[index]) for index in layout.tags}
            wanted, after = [
                [run[at : at + framing.MAX_COUNT] for run, _ in part for at in range(0, len(run), framing.MAX_COUNT)]
                for part in in_parts
            ]
            by_mpi = [(own[index], tag) for index, tag in layout.tags.items()]
        self._size += sum(lengths[index] for part in parts for index in part)
        self._wanted.extend(wanted)
        place = partial(self._place, lengths, [(body[head.numbers :], glued), *runs], own)
        return partial(self._receive, by_mpi, after, place)

    def _receive(self, by_mpi: Frames, after: list[memoryview], place: Step) -> Step:
        # The whole body is here, and only then the sender posts: of one that was cut off it uses the tags again.
        if by_mpi and self.link is not None:
            self._transfer = self.link.receive(by_mpi, one_by_one=self.discard)
        self._wanted.extend(after)
        return place

    def _place(self, lengths: Sequence[int], runs: list[_Run], own: dict[int, memoryview]) -> None:
        frames = dict(own)
        for run, indices in runs:
            if len(indices) == 1 and len(run) >= _SMALL:
                frames[indices[0]] = run
            else:
                _scatter(run, indices, lengths, frames)
        nothing = memoryview(bytearray())
        self._frames = [frames.get(index, nothing) for index in range(len(lengths))]


def _runs(indices: Sequence[int], lengths: Sequence[int]) -> Iterator[_Run]:
    """Yield memory for frames that lie one after the other on the socket, and which of them each is for."""
    run: list[int] = []
    size = 0
    for index in indices:
        if lengths[index] >= _SMALL:
            if run:
                yield host_array(size), run
            yield receive_memory.take(lengths[index]), [index]
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
    """Put small frames that were read together into `frames`, each at an aligned address."""
    at = 0
    if indices and indices[0] == 0:
        # msgpack, which is read once: it may lie anywhere.
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
