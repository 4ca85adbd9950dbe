"""What one side does when MPI or memory fails it while the peer lives; MPI itself is in tests/mpi."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from distributed.comm import CommClosedError
from distributed.protocol import to_serialize
from support.patience import DEADLINE
from tornado.iostream import IOStream

from workbench.comm import framing, member, progress_engine
from workbench.comm.comm import MPIComm
from workbench.comm.member import Membership, Tags
from workbench.comm.mpi_channel import MPIChannel
from workbench.comm.reader import MessageReader


class Request:
    """A send without a receive, until the test is over."""

    is_complete = False

    def Test(self, _: None) -> bool:  # noqa: N802  (MPI's name)
        return self.is_complete


class Communicator:
    """Posts what it is given, or refuses it."""

    def __init__(self) -> None:
        self.posted: list[int] = []
        self.refuses = False

    def Issend(self, chunk: memoryview, peer: int, tag: int) -> Request:  # noqa: N802
        if self.refuses:
            raise RuntimeError("out of memory")
        self.posted.append(tag)
        return Request()

    def Iprobe(self, *_: int) -> bool:  # noqa: N802
        return False


class Ends:
    """Both ends of a connection: a link, and the socket of the peer."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(DEADLINE)
        self.stream = IOStream(ours)
        self.communicator: Any = Communicator()
        self.us = Membership(self.communicator, 0, 2, "w", (Tags(), Tags()))
        self.incoming = MessageReader(self.stream)
        self.link = MPIChannel(self.stream, self.incoming, self.us, 1)
        self.header = asyncio.get_running_loop().create_future()
        self.header.set_result(None)

    def send(self) -> int:
        tag = self.link.take_tag()
        assert tag is not None
        self.link.send([(memoryview(bytearray(10)), tag)], self.header)
        return tag

    def comm(self, threshold: int, monkeypatch: pytest.MonkeyPatch) -> MPIComm:
        """Return the connection to the peer, after the handshake."""
        monkeypatch.setattr(member, "current", lambda: self.us)
        comm = MPIComm(self.stream, "mpi://127.0.0.1:1", "mpi://127.0.0.1:2")
        comm.handshake_options = {"workbench": 1}
        comm.threshold = threshold
        return comm


@pytest.fixture
async def ends(monkeypatch: pytest.MonkeyPatch) -> Any:
    ends = Ends()
    yield ends
    ends.stream.close()
    ends.theirs.close()
    monkeypatch.setattr(Request, "is_complete", True)
    for transfer in progress_engine.engine().outstanding:
        transfer.fail("the test is over")
        assert transfer.step()


async def test_a_refused_send_ends_the_connection_and_keeps_its_tag(ends: Ends) -> None:
    ends.communicator.refuses = True
    tag = ends.send()
    assert ends.stream.closed()
    assert ends.theirs.recv(1) == b""
    # Else a later frame of this tag would meet the receive of the first.
    assert tag in ends.us.tags[1].used


async def test_a_refused_send_ends_the_connection_also_while_other_frames_hold_it(ends: Ends) -> None:
    ends.send()
    ends.communicator.refuses = True
    ends.send()
    assert ends.communicator.posted == [0]
    assert ends.theirs.recv(1) == b""


async def test_tags_are_free_when_there_is_no_memory_for_the_header(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError

    comm = ends.comm(1, monkeypatch)
    monkeypatch.setattr(framing, "pack", refuse)
    with pytest.raises(MemoryError):
        await comm.write(to_serialize(b"x" * 10))
    assert ends.us.tags[1].used == set()


async def test_tags_are_not_free_when_the_header_has_left_and_the_rest_fails(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends.communicator.refuses = True
    comm = ends.comm(300_000, monkeypatch)
    with pytest.raises(CommClosedError):
        await comm.write([to_serialize(bytearray(size)) for size in (300_000, 200_000)])
    assert len(ends.us.tags[1].used) == 1


class CutOff:
    """A socket through which some bytes come, and then nothing."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.is_empty = asyncio.Event()

    def read_into(self, piece: memoryview) -> asyncio.Future[int]:
        reading = asyncio.get_running_loop().create_future()
        here, self._content = self._content[: len(piece)], self._content[len(piece) :]
        if len(here) == len(piece):
            piece[:] = here
            reading.set_result(len(here))
        else:
            self.is_empty.set()
        return reading


@pytest.mark.parametrize("missing", [0, 1])
async def test_frames_by_mpi_are_received_when_the_whole_header_is_there_however_long(ends: Ends, missing: int) -> None:
    """Of a header that was cut off the sender uses the tags again: what they announce must not be waited for."""
    frames = [b"\xc0", *[bytes(60_000)] * 5, bytes(100), bytes(framing.JOINED)]
    [header, _] = framing.pack(frames, [len(frame) for frame in frames], {6: 17})
    assert len(header) > framing.JOINED
    stream: Any = CutOff(header[: len(header) - missing])
    incoming = MessageReader(stream)
    received: list[int] = []
    incoming.link = ends.link
    ends.link.receive = lambda frames, **_: received.extend(tag for _, tag in frames)  # type: ignore[assignment]
    reading = asyncio.create_task(incoming.message())
    await asyncio.wait_for(stream.is_empty.wait(), DEADLINE)
    assert received == ([] if missing else [17])
    reading.cancel()
