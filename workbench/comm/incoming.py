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
from typing import TYPE_CHECKING, Any

from distributed.protocol.utils import host_array
from tornado.iostream import StreamClosedError

from workbench.comm import flows, memory, wire
from workbench.comm.pool import LINE, aligned

if TYPE_CHECKING:
    from tornado.iostream import IOStream

    from workbench.comm.engine import Transfer
    from workbench.comm.link import Link

# Bytes that tornado takes at one time.
_MOST = (1 << 31) - 1
# Bytes. Frames below it are read together, as many as come to so much.
_SMALL, _RUN = 1 << 16, 1 << 20

Step = Callable[[], Any]


class Incoming:
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
        self._reading: asyncio.Future[int] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._flow = flows.flow("outside", "socket")
        self.link: Link | None = None
        """How frames come by MPI; None unless the peer has turned out to be of the same world."""
        self.discard = False
        """Whether nobody wants the frames any more: they are received into scratch memory then."""
        self._begin()

    def connect(self, link: Link) -> None:
        """Receive frames by MPI as well."""
        self.link, self._flow = link, flows.flow(link.peer, "socket")

    def _begin(self) -> None:
        words = memoryview(bytearray(wire.HEAD))
        # What the socket has to fill next, and what is to be done then; that returns what is to be done after it.
        self._wanted: deque[memoryview] = deque([words])
        self._step: Step | None = lambda: self._read_head(words)
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
            await self._wait(self._transfer.waiter())
            if self._transfer.error is not None:
                raise self._transfer.error
        frames = self._frames
        self._flow.add_received(self._size, time.perf_counter() - self._began)
        self._begin()
        return frames

    def interrupt(self) -> None:
        """Let whoever waits for a message have a `StreamClosedError`, and leave the socket as it is."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(StreamClosedError())

    async def _fill(self, piece: memoryview) -> None:
        reading: asyncio.Future[int] = self._reading or self._stream.read_into(piece)
        self._reading = reading
        if not reading.done():
            if self.link is None:
                await reading
            else:
                # Not on tornado's own future: when that is cancelled nobody can tell how far it came.
                waiter = asyncio.get_running_loop().create_future()
                reading.add_done_callback(lambda _: _wake(waiter))
                await self._wait(waiter)
        self._reading = None
        reading.result()

    async def _wait(self, waiter: asyncio.Future[None] | None) -> None:
        if waiter is not None:
            self._waiter = waiter
            try:
                await waiter
            finally:
                self._waiter = None

    # -- the steps of one message ------------------------------------------------------------------------------

    def _read_head(self, words: memoryview) -> Step:
        self._began = time.perf_counter()
        head = wire.parse_head(words)
        if head.by_mpi and self.link is None:
            raise ValueError("frames by MPI from a peer that is not of this world")
        self._size = wire.HEAD + head.size
        body = host_array(head.size if head.size <= wire.GLUED else head.numbers)
        if body:
            self._wanted.append(body)
        return lambda: self._read_layout(head, body)

    def _read_layout(self, head: wire.Head, body: memoryview) -> Step:
        layout = wire.parse_layout(head, body)
        lengths, on_socket = layout.lengths, layout.on_socket
        split = layout.glued if head.size <= wire.GLUED else 0
        glued, rest = on_socket[:split], on_socket[split:]
        # Whatever may fail for want of memory comes before anything is begun: this step may be taken again then.
        if self.discard:
            runs: list[tuple[memoryview, list[int]]] = []
            own: dict[int, memoryview] = {}
            wanted = [piece for index in rest for piece in memory.scratch(lengths[index])]
            by_mpi = [(piece, tag) for index, tag in layout.tags.items() for piece in memory.scratch(lengths[index])]
        else:
            runs = list(_runs(rest, lengths))
            own = {index: memory.take(lengths[index]) for index in layout.tags}
            wanted = [run[at : at + _MOST] for run, _ in runs for at in range(0, len(run), _MOST)]
            by_mpi = [(own[index], tag) for index, tag in layout.tags.items()]
        self._size += sum(lengths[index] for index in rest)
        self._wanted.extend(wanted)
        if by_mpi and self.link is not None:
            self._transfer = self.link.receive(by_mpi, one_by_one=self.discard)
        return lambda: self._place(lengths, [(body[head.numbers :], glued), *runs], own)

    def _place(
        self, lengths: Sequence[int], runs: list[tuple[memoryview, list[int]]], own: dict[int, memoryview]
    ) -> None:
        frames = {**own}
        for run, indices in runs:
            frames |= {indices[0]: run} if len(indices) == 1 and len(run) >= _SMALL else _scatter(run, indices, lengths)
        nothing = memoryview(bytearray())
        self._frames = [frames.get(index, nothing) for index in range(len(lengths))]


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _runs(indices: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[memoryview, list[int]]]:
    """Yield memory for frames that lie one after the other on the socket, and which of them each is for."""
    run: list[int] = []
    size = 0
    for index in indices:
        if lengths[index] >= _SMALL:
            if run:
                yield host_array(size), run
            yield memory.take(lengths[index]), [index]
            run, size = [], 0
        else:
            run.append(index)
            size += lengths[index]
            if size >= _RUN:
                yield host_array(size), run
                run, size = [], 0
    if run:
        yield host_array(size), run


def _scatter(run: memoryview, indices: Sequence[int], lengths: Sequence[int]) -> dict[int, memoryview]:
    """Return small frames that were read together, each at an aligned address."""
    frames, at = {}, 0
    if indices and indices[0] == 0:
        # msgpack, which is read once: it may lie anywhere.
        frames[0], at, indices = run[: lengths[0]], lengths[0], indices[1:]
    if not indices:
        return frames
    block, to = aligned(sum(-(-lengths[index] // LINE) * LINE for index in indices)), 0
    for index in indices:
        length = lengths[index]
        frame = block[to : to + length]
        frame[:] = run[at : at + length]
        frames[index] = frame
        at += length
        to += -(-length // LINE) * LINE
    return frames
