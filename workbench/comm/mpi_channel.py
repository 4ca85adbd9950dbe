"""What two members of a world have beside the socket between them: frames by MPI, and an end that loses none.

An unmatched send stays incomplete until it is received, whatever MPI_Cancel says. So frames are posted when the header
that announces them is on the socket, and whoever closes a connection goes on reading the headers of the other,
receives what they announce into scratch memory, and ends its half of the socket when its own frames have arrived.
Then no frame is posted that nobody receives, as long as both processes live; and a socket that ends while frames are
awaited means that the peer is dead. That needs no message besides, and nobody to listen for one: a control
communicator would have to be polled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from distributed.comm.core import CommClosedError
from tornado.iostream import StreamClosedError

from workbench.comm import framing, peer_traffic, progress_engine

if TYPE_CHECKING:
    from tornado.iostream import IOStream

    from workbench.comm.member import Membership
    from workbench.comm.progress_engine import Transfer
    from workbench.comm.reader import Frames, MessageReader

logger = logging.getLogger(__name__)

# Not every system can tell that the peer has ended its half while something of it is unread.
_HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class MPIChannel:
    """Frames by MPI between this process and the peer of a socket.

    Parameters
    ----------
    stream
        The socket.
    incoming
        Its reader.
    member
        This process.
    peer
        Rank of the peer in the same world.

    Notes
    -----
    It belongs to the event loop that runs when it is made.
    """

    def __init__(self, stream: IOStream, incoming: MessageReader, member: Membership, peer: int) -> None:
        self.stream, self.incoming, self.peer = stream, incoming, peer
        self._communicator, self._tags = member.communicator, member.tags[peer]
        # Nobody sends to itself: it finds nothing, and lets MPI do what it has to do.
        self._progress = partial(member.communicator.Iprobe, member.rank)
        self._engine = progress_engine.engine()
        self._flow = peer_traffic.peer_traffic(peer, "mpi")
        # The engine keeps them. Here, a reference to one that has failed would close a cycle, and the garbage collector
        # must not come upon frames: CPython 3.11 clears a memoryview that something still exports from.
        self._sends: WeakSet[Transfer] = WeakSet()
        self._is_ended = False
        # While frames are on their way: of how many messages, and the socket once more.
        self._on_way, self._held = 0, -1
        incoming.connect(self)

    def take_tag(self) -> int | None:
        """Return a tag for a frame, or None if all are in use: then the frame has to go by the socket."""
        return self._tags.take()

    def give_back(self, tags: Iterable[int]) -> None:
        """Let tags be used again that were taken in vain, or whose frames have arrived."""
        for tag in tags:
            self._tags.give_back(tag)

    def send(self, frames: Frames, header: asyncio.Future[None]) -> None:
        """Send frames, each with a tag of its own, as soon as their header is written: most often it is already."""
        if header.done():
            self._post(frames, header)
        else:
            header.add_done_callback(partial(self._post, frames))

    def _post(self, frames: Frames, header: asyncio.Future[None]) -> None:
        if header.cancelled() or header.exception() is not None:
            self.give_back(tag for _, tag in frames)
            return
        size, began = sum(len(memory) for memory, _ in frames), time.perf_counter()
        tags = [tag for _, tag in frames]

        def over(error: str | None) -> None:
            if error is None:
                self._flow.add_sent(size, time.perf_counter() - began)
                self.give_back(tags)
            else:
                # The tags stay in use: a frame of the same tag could meet the receives of this one.
                logger.warning("%d bytes do not arrive at rank %d: %s. Their connection ends", size, self.peer, error)
                self._end()
            self._engine.settle(self._progress)
            self._release_socket()

        try:
            self._duplicate_socket()
            transfer = progress_engine.Transfer(
                # Synchronous mode: complete means received, so its tag is free on both sides.
                lambda chunk, tag: self._communicator.Issend(chunk, self.peer, tag),
                frames,
                window=float("inf"),
                status=None,
                peer_is_gone=self._peer_is_gone,
                when_over=over,
            )
            self._sends.add(transfer)
            self._engine.start(transfer)
        except BaseException:
            self._end()
            self._release_socket()
            raise

    def _end(self) -> None:
        """End the socket at once, also where it is held: the peer must not wait for frames that do not come."""
        if self._held >= 0 or not self.stream.closed():
            held = socket.socket(fileno=self._held if self._held >= 0 else self.stream.socket.fileno())
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.detach()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.stream.close()

    def _duplicate_socket(self) -> None:
        """Keep the connection while frames are on their way, for its end tells that a process is dead.

        Tornado closes the socket as soon as the peer has ended its half, though it waits for frames; and when a TLS
        socket hears that the peer has not expected an end, though the frames are still coming.
        """
        self._on_way += 1
        if self._held < 0 and not self.stream.closed():
            # A process may have as many files as it can: the peer waits for what is announced, so it goes without this.
            with contextlib.suppress(OSError):
                self._held = os.dup(self.stream.socket.fileno())

    def _release_socket(self) -> None:
        self._on_way -= 1
        if not self._on_way and self._held >= 0:
            os.close(self._held)
            self._held = -1

    def receive(self, frames: Frames, *, one_by_one: bool) -> Transfer:
        """Receive frames into the memory that is given with their tags; one at a time if that is the same for all."""
        from mpi4py import MPI

        size, began = sum(len(memory) for memory, _ in frames), time.perf_counter()

        def over(error: str | None) -> None:
            if error is None:
                self._flow.add_received(size, time.perf_counter() - began)
            self._engine.settle(self._progress)
            self._release_socket()

        self._duplicate_socket()
        transfer = progress_engine.Transfer(
            lambda chunk, tag: self._communicator.Irecv(chunk, self.peer, tag),
            frames,
            window=1 if one_by_one else framing.CHUNK,
            status=MPI.Status(),
            peer_is_gone=self._peer_is_gone,
            when_over=over,
        )
        self._engine.start(transfer)
        if transfer.is_waiting and not self._is_ended:
            # This MPI does not copy at one stroke: it moves a frame piece by piece, while both sides call it.
            with contextlib.suppress(StreamClosedError):
                self.stream.write(framing.PROGRESS_REQUEST)
            self._engine.attend([transfer])
        return transfer

    def progress_sends(self) -> None:
        """Have the peer's receives find this side at work: it has asked for that."""
        self._engine.attend(self._sends)

    def drain_and_close(self) -> None:
        """End the connection: this side has closed it, and reads and writes no more."""
        self.incoming.discard = True
        self.incoming.wake()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # at the end of the process: nothing can be waited for any more
            self.stream.close()
            return
        task = loop.create_task(self._drain_and_close(), name=f"part from rank {self.peer}")
        self._engine.tasks.add(task)
        task.add_done_callback(self._engine.tasks.discard)

    async def _drain_and_close(self) -> None:
        draining = asyncio.create_task(self._drain())
        try:
            with contextlib.suppress(StreamClosedError, OSError):
                await self.arrived()
                self._is_ended = True
                # Nobody has a socket any more where the peer has ended its half meanwhile.
                if not self.stream.closed():
                    # Not the method of a TLS socket, which would end TLS in both directions.
                    socket.socket.shutdown(self.stream.socket, socket.SHUT_WR)
            await draining
        finally:
            draining.cancel()
            self.stream.close()

    async def arrived(self) -> None:
        """Wait until everything that was sent has arrived, or cannot any more."""
        if self.stream.writing():
            await self.stream.write(b"")
        for transfer in list(self._sends):
            if (waiter := transfer.waiter()) is not None:
                await waiter

    async def _drain(self) -> None:
        with contextlib.suppress(StreamClosedError, CommClosedError, OSError, ValueError, MemoryError):
            while True:
                await self.incoming.message()

    def _peer_is_gone(self) -> bool:
        if self._held < 0 and self.stream.closed():
            return True
        poll = select.poll()
        poll.register(self._held if self._held >= 0 else self.stream.socket, _HANGUP)
        return bool(poll.poll(0))
