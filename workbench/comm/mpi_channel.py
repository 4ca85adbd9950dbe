"""The channel beside a socket between two members of a world: frames over MPI, and a close that loses no frame.

An unmatched send stays incomplete until it is received, also after MPI_Cancel. So frames are posted when the header
that announces them is on the socket. A side that closes a connection continues to read the headers of the peer,
receives the announced frames into scratch memory, and shuts down its half of the socket when its own frames have
arrived. So each posted frame is received while both processes are alive, and a socket that ends before
announced frames have arrived means that the peer is dead. This needs no control communicator, which a process would
have to poll.
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

from workbench.comm import framing, progress_engine
from workbench.comm.member import peer_traffic

if TYPE_CHECKING:
    from tornado.iostream import IOStream

    from workbench.comm.member import Membership
    from workbench.comm.progress_engine import Transfer
    from workbench.comm.reader import Frames, MessageReader

logger = logging.getLogger(__name__)

# Not every system reports that the peer has shut down its half while data is unread.
_HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class MPIChannel:
    """Frames over MPI between this process and the peer of a socket.

    Parameters
    ----------
    stream
        The socket.
    incoming
        Reader of the socket.
    member
        Membership of this process.
    peer
        Rank of the peer in the same world.

    Notes
    -----
    Used only on the event loop that runs when the channel is made.
    """

    def __init__(self, stream: IOStream, incoming: MessageReader, member: Membership, peer: int) -> None:
        self.stream, self.incoming, self.peer = stream, incoming, peer
        self._communicator, self._tags = member.communicator, member.tags[peer]
        # A rank does not send to itself, so this probe matches no message. It only lets MPI make progress.
        self._progress = partial(member.communicator.Iprobe, member.rank)
        self._engine = progress_engine.engine()
        self._flow = peer_traffic(peer, "mpi")
        # The engine holds them. A reference to a failed one would make a cycle here, and the garbage collector
        # must not collect frames: CPython 3.11 clears a memoryview that still has exports.
        self._sends: WeakSet[Transfer] = WeakSet()
        self._is_shut_down = False
        # While frames are outstanding: the number of their messages, and a duplicate of the socket.
        self._outstanding, self._socket_copy = 0, -1
        incoming.connect(self)

    def take_tag(self) -> int | None:
        """Return a tag for a frame, or None if all are in use and the frame must be sent on the socket."""
        return self._tags.take()

    def give_back(self, tags: Iterable[int]) -> None:
        """Mark tags as free: they were not used, or their frames have arrived."""
        for tag in tags:
            self._tags.give_back(tag)

    def send(self, frames: Frames, header: asyncio.Future[None]) -> None:
        """Send frames, each with a separate tag, as soon as their header is written."""
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

        def done(error: str | None) -> None:
            if error is None:
                self._flow.add_sent(size, time.perf_counter() - began)
                self.give_back(tags)
            else:
                # The tags stay in use, because a new frame with such a tag could match the receives of this one.
                logger.warning(
                    "sending %d bytes to rank %d failed: %s. The connection is closed", size, self.peer, error
                )
                self._shut_down()
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
                peer_has_ended=self._peer_has_ended,
                when_done=done,
            )
            self._sends.add(transfer)
            self._engine.start(transfer)
        except BaseException:
            self._shut_down()
            self._release_socket()
            raise

    def _shut_down(self) -> None:
        """Shut the socket down immediately, also its duplicate, so that the peer does not wait for missing frames."""
        if self._socket_copy >= 0 or not self.stream.closed():
            copy = socket.socket(fileno=self._socket_copy if self._socket_copy >= 0 else self.stream.socket.fileno())
            with contextlib.suppress(OSError):
                copy.shutdown(socket.SHUT_RDWR)
            copy.detach()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.stream.close()

    def _duplicate_socket(self) -> None:
        """Keep the connection open while frames are outstanding, because its end means that the peer is dead.

        Tornado closes the socket as soon as the peer has shut down its half, also if frames are outstanding, and when
        TLS reports an unexpected end.
        """
        self._outstanding += 1
        if self._socket_copy < 0 and not self.stream.closed():
            # If no file is free, the frames are still sent, because the peer waits for them.
            with contextlib.suppress(OSError):
                self._socket_copy = os.dup(self.stream.socket.fileno())

    def _release_socket(self) -> None:
        self._outstanding -= 1
        if not self._outstanding and self._socket_copy >= 0:
            os.close(self._socket_copy)
            self._socket_copy = -1

    def receive(self, frames: Frames, *, one_by_one: bool) -> Transfer:
        """Receive frames into memory, each with its tag; one at a time if they share the memory."""
        from mpi4py import MPI

        size, began = sum(len(memory) for memory, _ in frames), time.perf_counter()

        def done(error: str | None) -> None:
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
            peer_has_ended=self._peer_has_ended,
            when_done=done,
        )
        self._engine.start(transfer)
        if transfer.is_waiting and not self._is_shut_down:
            # This MPI does not copy a frame in one step: it moves pieces while both sides call MPI.
            with contextlib.suppress(StreamClosedError):
                self.stream.write(framing.PROGRESS_REQUEST)
            self._engine.attend([transfer])
        return transfer

    def progress_sends(self) -> None:
        """Poll the sends often: the peer has requested progress."""
        self._engine.attend(self._sends)

    def drain_and_close(self) -> None:
        """Close the connection in the background, after this side has stopped to read and to write."""
        self.incoming.discard = True
        self.incoming.wake()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # the process ends, so nothing can wait
            self.stream.close()
            return
        task = loop.create_task(self._drain_and_close(), name=f"close the connection to rank {self.peer}")
        self._engine.tasks.add(task)
        task.add_done_callback(self._engine.tasks.discard)

    async def _drain_and_close(self) -> None:
        draining = asyncio.create_task(self._drain())
        try:
            with contextlib.suppress(StreamClosedError, OSError):
                await self.arrived()
                self._is_shut_down = True
                # The stream is closed if the peer has shut down its half in the meantime.
                if not self.stream.closed():
                    # The method of a TLS socket would end TLS in both directions.
                    socket.socket.shutdown(self.stream.socket, socket.SHUT_WR)
            await draining
        finally:
            draining.cancel()
            self.stream.close()

    async def arrived(self) -> None:
        """Wait until all sends have arrived or failed."""
        if self.stream.writing():
            await self.stream.write(b"")
        for transfer in list(self._sends):
            if (waiter := transfer.waiter()) is not None:
                await waiter

    async def _drain(self) -> None:
        with contextlib.suppress(StreamClosedError, CommClosedError, OSError, ValueError, MemoryError):
            while True:
                await self.incoming.message()

    def _peer_has_ended(self) -> bool:
        if self._socket_copy < 0 and self.stream.closed():
            return True
        poll = select.poll()
        poll.register(self._socket_copy if self._socket_copy >= 0 else self.stream.socket, _HANGUP)
        return bool(poll.poll(0))
