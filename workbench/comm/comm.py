"""The connection: distributed's TCP or TLS comm, with large frames over MPI if both ends are ranks of one world."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from ssl import SSLError
from typing import Any

from distributed.comm.core import CommClosedError
from distributed.comm.tcp import TCP, TLS, convert_stream_closed_error
from distributed.comm.utils import from_frames, to_frames
from distributed.utils import ensure_memoryview, nbytes
from tornado.iostream import StreamClosedError

from workbench import config
from workbench.comm import framing, member
from workbench.comm.mpi_channel import MPIChannel
from workbench.comm.reader import MessageReader

logger = logging.getLogger(__name__)

# Key of world and rank in the handshake.
_KEY = "workbench"
# Bytes, more than the size of any frame: frames are not split, because a receiver would have to join them with a copy.
_UNCUT = 1 << 62
# Seconds that an orderly close waits for outstanding frames. After that the connection closes in the background.
_CLOSE_TIMEOUT = 2.0


class MPIComm(TCP):
    """A connection of the scheme ``mpi``.

    Notes
    -----
    For a peer outside this world it is a TCP comm, byte for byte.
    """

    max_shard_size = _UNCUT
    stream: Any

    def __init__(self, stream: Any, local_addr: str, peer_addr: str, deserialize: bool = True) -> None:
        self._incoming = MessageReader(stream)
        self.link: MPIChannel | None = None  # if both sides are ranks of one world
        self._flow = member.peer_traffic("outside", "socket")
        self.threshold = _UNCUT  # bytes from which a frame is sent over MPI
        super().__init__(stream, local_addr, peer_addr, deserialize)

    def handshake_info(self) -> dict[str, Any]:
        """Return the data for the peer, with the world and the rank of this process."""
        info: dict[str, Any] = super().handshake_info()
        membership = member.current()
        return info if membership is None else info | {_KEY: {"world": membership.world, "rank": membership.rank}}

    @staticmethod
    def handshake_configuration(local: dict[str, Any], remote: dict[str, Any]) -> dict[str, Any]:
        """Return the options of the connection, with the rank of the peer if both sides are in one world."""
        options: dict[str, Any] = TCP.handshake_configuration(local, remote)
        ours, theirs = local.get(_KEY), remote.get(_KEY)
        if ours and isinstance(theirs, dict) and ours["world"] == theirs.get("world"):
            options[_KEY] = theirs.get("rank")
        return options

    @property
    def handshake_options(self) -> dict[str, Any]:
        """Options that both sides use, set after the handshake. Setting them opens the MPI channel."""
        return self._handshake_options

    @handshake_options.setter
    def handshake_options(self, options: dict[str, Any]) -> None:
        self._handshake_options = options
        own, peer = member.current(), options.get(_KEY)
        if (
            own is not None
            and isinstance(peer, int)
            and own.rank != peer in range(own.size)
            and self.stream is not None
        ):
            self.link = MPIChannel(self.stream, self._incoming, own, peer)
            self._flow = member.peer_traffic(peer, "socket")
            self.threshold = config.size("comm.threshold")

    async def read(self, deserializers: Any = None) -> Any:
        """Read a message."""
        if self.stream is None:
            raise CommClosedError
        try:
            frames = await self._incoming.message()
        except (StreamClosedError, SSLError) as error:
            self.stream, self._closed = None, True
            convert_stream_closed_error(self, error)
        except ValueError as error:
            self.abort()
            raise CommClosedError(f"{self} received data that is not a message: {error}") from error
        except BaseException:
            self.abort()
            raise
        try:
            return await from_frames(
                frames, deserialize=self.deserialize, deserializers=deserializers, allow_offload=self.allow_offload
            )
        except EOFError as error:
            self.abort()
            raise CommClosedError(f"{self} received a message that is not complete") from error

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        """Write a message; return its size in bytes."""
        if self.stream is None:
            raise CommClosedError
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={"sender": self.local_info, "recipient": self.remote_info, **self.handshake_options},
            frame_split_size=self.max_shard_size,
        )
        # If this side or the peer has closed the connection in the meantime, nothing may be posted.
        if self.stream is None or self.stream.closed():
            raise CommClosedError
        began = time.perf_counter()
        lengths = [nbytes(frame) for frame in frames]
        link = self.link
        tags = _tags(link, lengths, self.threshold) if link is not None else {}
        try:
            pieces = framing.pack(frames, lengths, tags)
            by_mpi = [(ensure_memoryview(frames[index]), tag) for index, tag in tags.items()]
            header = self.stream.write(pieces[0])
            if link is not None and by_mpi:
                # From here on the channel owns the tags: the peer may have read them, even if the rest is not written.
                tags = {}
                link.send(by_mpi, header)
            for piece in map(ensure_memoryview, pieces[1:]):
                for at in range(0, len(piece), framing.MAX_COUNT):
                    self.stream.write(piece[at : at + framing.MAX_COUNT])
        except BaseException as error:
            if link is not None:
                link.give_back(tags.values())
            if not isinstance(error, StreamClosedError):
                self.abort()
                raise
            self.stream, self._closed = None, True
            convert_stream_closed_error(self, error)
        self._flow.add_sent(sum(map(nbytes, pieces)), time.perf_counter() - began)
        return sum(lengths)

    def close(self) -> Any:
        """Close the connection after all outstanding frames have arrived."""
        link = self.link
        if link is None or self.stream is None:
            return super().close()
        self._drain_and_close(link)
        return asyncio.ensure_future(_arrived(link))

    def abort(self) -> None:
        """Close the connection immediately."""
        link = self.link
        if link is None or self.stream is None:
            super().abort()
        else:
            self._drain_and_close(link)

    def _drain_and_close(self, link: MPIChannel) -> None:
        self.stream, self._closed = None, True
        self._finalizer.detach()
        link.drain_and_close()

    def _get_finalizer(self) -> Callable[[], None]:
        close_stream, incoming, stream = super()._get_finalizer(), self._incoming, self.stream
        loop = asyncio.get_running_loop()

        def finalize() -> None:
            # This runs in any thread, inside the garbage collector.
            if incoming.link is not None and not stream.closed():
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(incoming.link.drain_and_close)
                    logger.warning(
                        "closing a connection to rank %d that was deleted without close()", incoming.link.peer
                    )
                    return
            close_stream()

        return finalize


class MPITLSComm(MPIComm, TLS):
    """A connection of the scheme ``mpi`` with TLS on the socket."""


def _tags(link: MPIChannel, lengths: Sequence[int], threshold: int) -> dict[int, int]:
    """Return the tags of the frames that are sent over MPI, by index: the large frames, while tags are free."""
    tags = {}
    for index, length in enumerate(lengths):
        if length >= threshold:
            tag = link.take_tag()
            if tag is None:
                break
            tags[index] = tag
    return tags


async def _arrived(link: MPIChannel) -> None:
    with contextlib.suppress(TimeoutError, OSError):
        await asyncio.wait_for(link.arrived(), _CLOSE_TIMEOUT)
