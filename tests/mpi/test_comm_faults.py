"""Connections that are left, closed and torn: nothing hangs, nothing is lost that should arrive, all memory comes back.

After each check the rank has to hold what it held before: no transfer, no tag, no task, no memory, no file.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import ssl
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

import dask
import numpy as np
import pytest
from distributed.comm import CommClosedError
from distributed.protocol import to_serialize
from distributed.utils import ensure_memoryview
from support.ends import End, sent_by_mpi, until
from support.world import World, on_ranks
from tornado.iostream import StreamClosedError

from workbench.comm import framing, member, progress_engine

MIB = 1 << 20
NIL = b"\xc0"
"""The first frame of a message that says nothing."""


def numbered(size: int, number: int = 0) -> np.ndarray:
    return np.resize(np.arange(256, dtype=np.uint8), size) + np.uint8(number % 256)


class ByHand:
    """A message whose header and frames are sent at times of the test's choosing."""

    def __init__(self, comm: Any, frames: Sequence[bytes]) -> None:
        self._link, self._stream = comm.link, comm.stream
        tags = {index: self._link.take_tag() for index in range(len(frames))}
        [self._header] = framing.pack(frames, [len(frame) for frame in frames], tags)
        self._frames = [(ensure_memoryview(frame), tags[index]) for index, frame in enumerate(frames)]
        # from the header on the connection is kept, as it is when the frames follow immediately
        self._link._duplicate_socket()

    def announce(self, part: slice = slice(None)) -> None:
        try:
            self._written = self._stream.write(self._header[part])
        except StreamClosedError as error:
            self._written = asyncio.get_running_loop().create_future()
            self._written.set_exception(error)

    def send(self) -> None:
        self._link.send(self._frames, self._written)
        self._link._release_socket()


async def until_closed(comm: Any) -> list[Any]:
    """Return what comes until the peer closes."""
    messages = []
    with suppress(CommClosedError):
        while True:
            messages.append(await comm.read())
    await comm.close()
    return messages


async def until_refused(comm: Any, message: Any) -> None:
    """Write until the peer has closed.

    At most eight messages are on their way: a peer that gets little of the machine would fall behind without bound.
    """
    with suppress(CommClosedError, StreamClosedError):
        while True:
            for _ in range(8):
                await comm.write(message)
                await asyncio.sleep(0)
            await comm.link.arrived()


async def cancelled(reading: asyncio.Task[Any]) -> None:
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


@on_ranks
async def test_a_read_is_cancelled_before_anything_came(end: End):
    comm = await end.pair()
    if end.left:
        reading = asyncio.create_task(comm.read())
        await asyncio.sleep(0)
        await cancelled(reading)
        assert comm.closed()
        await end.gather()
    else:
        await end.gather()
        # what is sent before this side knows is received all the same
        await until_refused(comm, to_serialize(numbered(3 * MIB)))
        await comm.close()


@on_ranks
async def test_a_read_is_cancelled_in_the_middle_of_a_header(end: End):
    for at in (3, 16, 20):
        comm = await end.pair()
        if end.left:
            reading = asyncio.create_task(comm.read())
            await end.gather()
            await end.gather()
            reading.cancel()
            # the rest may have been faster
            await asyncio.wait([reading])
            await comm.close()
            del reading
        else:
            message = ByHand(comm, [NIL, b"y" * 5 * MIB])
            await end.gather()
            message.announce(slice(0, at))
            await end.gather()
            message.announce(slice(at, None))
            message.send()
            await comm.close()
        await end.gather()


@on_ranks
async def test_a_read_is_cancelled_while_it_waits_for_frames(end: End):
    comm = await end.pair()
    if end.left:
        reading = asyncio.create_task(comm.read())
        await end.gather()
        await until(lambda: progress_engine.engine().outstanding)
        await cancelled(reading)
        assert comm.closed()
        await end.gather()
    else:
        message = ByHand(comm, [NIL, b"y" * 5 * MIB, b"z"])
        message.announce()
        await end.gather()
        await end.gather()
        # no task waits for them any more
        message.send()
        await comm.close()


@on_ranks
async def test_a_write_is_cancelled_at_any_time(end: End):
    for steps in range(6):
        comm = await end.pair()
        if end.left:
            writing = asyncio.create_task(comm.write([to_serialize(numbered(12 * MIB)), to_serialize(numbered(10))]))
            for _ in range(steps):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait([writing])
            await comm.close()
        else:
            for arrays in await until_closed(comm):
                np.testing.assert_array_equal(arrays[0], numbered(12 * MIB))
                np.testing.assert_array_equal(arrays[1], numbered(10))
                del arrays


@on_ranks
async def test_what_is_on_its_way_arrives_after_close_and_after_abort(end: End):
    for end_it in ("close", "abort"):
        comm = await end.pair()
        if end.left:
            for number in range(8):
                await comm.write([to_serialize(numbered(size, number)) for size in (10, 4 * MIB)])
            closing = getattr(comm, end_it)()
            with pytest.raises(CommClosedError):
                await comm.write({})
            if closing is not None:
                await closing
        else:
            messages = await until_closed(comm)
            assert len(messages) == 8
            for number, (small, large) in enumerate(messages):
                np.testing.assert_array_equal(small, numbered(10, number))
                np.testing.assert_array_equal(large, numbered(4 * MIB, number))
            del messages, small, large


@on_ranks
async def test_nobody_reads_what_was_sent_before_closing(end: End):
    comm = await end.pair()
    # in both directions, and neither side reads
    for number in range(5):
        await comm.write([to_serialize(numbered(3 * MIB, number)), 1] + [to_serialize(numbered(50))] * 50)
    await comm.close()


@on_ranks
async def test_a_peer_that_closes_at_once_is_written_to(end: End):
    comm = await end.pair()
    if end.left:
        await comm.close()
        await end.gather()
        return
    reading = asyncio.create_task(comm.read())
    await until_refused(comm, to_serialize(numbered(2 * MIB)))
    with pytest.raises(CommClosedError):
        await reading
    await comm.close()
    await end.gather()


@on_ranks
async def test_a_peer_closes_while_much_is_queued_for_the_socket(end: End):
    with dask.config.set({"workbench.comm.threshold": "16 MiB"}):
        comm = await end.pair()
    if end.left:
        reading = asyncio.create_task(comm.read())
        for _ in range(4):
            await comm.write(to_serialize(numbered(15 * MIB)))
        # its header waits behind all that
        await comm.write(to_serialize(numbered(17 * MIB)))
        await end.gather()
        with pytest.raises(CommClosedError):
            await reading
    else:
        await end.gather()
    await comm.close()


@on_ranks
async def test_a_connection_is_closed_in_the_moment_that_something_comes(end: End):
    for at in range(0, 45, 4):
        comm = await end.pair()
        if end.left:
            read_into = comm.stream.read_into

            def then_abort(piece, read_into=read_into, comm=comm):
                reading = read_into(piece)
                # called before the waiting task continues
                reading.add_done_callback(lambda _: comm.abort())
                return reading

            comm.stream.read_into = then_abort
            reading = asyncio.create_task(comm.read())
            await asyncio.sleep(0)
            await end.gather()
            with pytest.raises(CommClosedError):
                await reading
            del reading, read_into, then_abort
        else:
            message = ByHand(comm, [NIL, b"y" * MIB])
            await end.gather()
            message.announce(slice(0, 16 + at))
            message.announce(slice(16 + at, None))
            message.send()
            await until_refused(comm, [to_serialize(numbered(MIB))] * 3)
            await comm.close()
        await end.gather()


@on_ranks
async def test_mpi_refuses_a_send_while_the_peer_lives(end: End):
    us = member.current()
    refusing = SimpleNamespace(Issend=out_of_memory, Iprobe=us.communicator.Iprobe)
    changed = dataclasses.replace(us, communicator=refusing) if end.left else us
    with mock.patch.object(member, "current", return_value=changed):
        comm = await end.pair()
    if end.left:
        link, tags = comm.link, us.tags[end.partner]
        before = set(tags.used)
        await comm.write(to_serialize(numbered(3 * MIB)))
        assert link.stream.closed()
        # They are in use for good, but not beyond this test.
        for tag in tags.used - before:
            tags.give_back(tag)
        with pytest.raises(CommClosedError):
            await comm.write({})
        await end.gather()
    else:
        with pytest.raises(CommClosedError):
            await comm.read()
        await end.gather()
    await comm.close()
    # other connections continue
    comm = await end.pair()
    await comm.write(to_serialize(numbered(MIB)))
    np.testing.assert_array_equal(await comm.read(), numbered(MIB))
    await comm.close()


@on_ranks
async def test_a_receive_of_less_than_was_announced_fails(end: End):
    comm = await end.pair()
    if end.left:
        link = comm.link
        tag = link.take_tag()
        [header] = framing.pack([NIL, b"y" * MIB], [1, MIB], {1: tag})
        await comm.stream.write(header)
        link.send([(memoryview(bytearray(1000)), tag)], comm.stream.write(b""))
        assert await until_closed(comm) == []
    else:
        with pytest.raises(CommClosedError, match="received 1000 bytes, but 1048576 were announced"):
            await comm.read()
        await comm.close()
    await end.gather()


def out_of_memory(*_: Any) -> None:
    from mpi4py import MPI

    raise MPI.Exception(MPI.ERR_NO_MEM)


@on_ranks
async def test_a_connection_is_forgotten_without_being_closed(end: End):
    comm = await end.pair()
    await comm.write(to_serialize(numbered(3 * MIB)))
    if end.left:
        del comm
        gc.collect()
    else:
        np.testing.assert_array_equal(*await until_closed(comm), numbered(3 * MIB))


@on_ranks
async def test_connections_come_and_go(end: End):
    count, at_once = (60, 10) if end.encrypted else (500, 20)
    async with end.listener() as (listener, comms):
        address = await end.swap(listener.contact_address)

        async def ask(first):
            for number in range(first, count, at_once):
                comm = await end.connect(address)
                await comm.write([number, to_serialize(numbered(1000, number))])
                assert await comm.read() == number
                await comm.close()

        async def answer():
            for _ in range(0, count, at_once):
                comm = await comms.get()
                number, array = await comm.read()
                np.testing.assert_array_equal(array, numbered(1000, number))
                await comm.write(number)
                await until_closed(comm)

        await asyncio.gather(*[ask(n) if end.left else answer() for n in range(at_once)])
        await end.gather()


@on_ranks
async def test_two_thousand_frames_in_a_message(end: End):
    comm = await end.pair()
    before = sent_by_mpi(end.partner)
    await comm.write([to_serialize(numbered(1 + number % 100, number)) for number in range(2000)])
    for number, array in enumerate(await comm.read()):
        np.testing.assert_array_equal(array, numbered(1 + number % 100, number))
    await comm.close()
    await end.gather()
    await until(lambda: not progress_engine.engine().outstanding)
    assert sent_by_mpi(end.partner)[1] > before[1] + 2000


@on_ranks
async def test_there_are_fewer_tags_than_frames(end: End):
    comm = await end.pair()
    tags = member.current().tags[end.partner]
    before, tags.size = sent_by_mpi(end.partner), 8

    try:
        for number in range(40):
            await comm.write([to_serialize(numbered(1000 + place, number)) for place in range(number % 20)])
            for place, array in enumerate(await comm.read()):
                np.testing.assert_array_equal(array, numbered(1000 + place, number))
            assert len(tags.used) <= 8
            await until(lambda: not tags.used)
        messages, nbytes = np.subtract(sent_by_mpi(end.partner), before)
        # of each message MPI transferred eight frames, the socket the others
        assert messages == 40
        assert 0 < nbytes < 40 * 8 * 1100
        await end.gather()
    finally:
        tags.size = member.MAX_TAG + 1
    await comm.close()


@on_ranks
async def test_connections_between_the_same_ranks_do_not_hear_each_other(end: End):
    comms = [await end.pair() for _ in range(4)]

    async def write(which):
        for number in range(25):
            size = (10, 1000, 100_000, 2_000_000)[(3 * which + number) % 4]
            await comms[which].write([which, number, to_serialize(numbered(size, which + number))])

    async def read(which):
        for number in range(25):
            *names, array = await comms[which].read()
            assert names == [which, number]
            np.testing.assert_array_equal(array, numbered(len(array), which + number))

    await asyncio.gather(*[do(which) for which in range(4) for do in (write, read)])
    await asyncio.gather(*[comm.close() for comm in comms])


@on_ranks
async def test_both_directions_are_saturated_at_once(end: End):
    comm = await end.pair()

    async def read():
        for number in range(8):
            np.testing.assert_array_equal(await comm.read(), numbered(4 * MIB, number))

    reading = asyncio.create_task(read())
    for number in range(8):
        await comm.write(to_serialize(numbered(4 * MIB, number)))
    await reading
    await comm.close()


@on_ranks
async def test_long_frames_come_in_pieces(end: End):
    chunk, framing.CHUNK = framing.CHUNK, 1 << 16
    try:
        comm = await end.pair()
        sizes = (1 << 16, (1 << 16) + 1, 10 * MIB, 5 * MIB - 1)
        await comm.write([to_serialize(numbered(size)) for size in sizes])
        for size, array in zip(sizes, await comm.read(), strict=True):
            np.testing.assert_array_equal(array, numbered(size))
        # and so do those that no task reads
        await comm.write([to_serialize(numbered(size)) for size in sizes])
        await end.gather()
        await comm.close()
        await end.gather()
    finally:
        framing.CHUNK = chunk


@on_ranks
async def test_nonsense_closes_the_connection(end: End):
    for nonsense in (
        b"\xff" * 64,
        bytes(8) + b"\xff" * 56,
        b"GET / HTTP/1.1\r\n" * 4,
        framing.PROGRESS_REQUEST[:8] + b"\x01" * 8,
    ):
        comm = await end.pair()
        if end.left:
            await comm.stream.write(nonsense)
        with pytest.raises(CommClosedError):
            await comm.read()
        await comm.close()


@on_ranks
async def test_a_peer_that_says_nonsense_of_itself_stays_on_the_socket(end: End):
    async with end.listener() as (listener, comms):
        world = member.current().world
        for claim in ({"world": world, "rank": 99}, {"world": world, "rank": "1"}, {"world": world}, {}):
            comm = await end.connect(listener.contact_address, handshake_overrides={"workbench": claim})
            other = await comms.get()
            await other.write(to_serialize(numbered(MIB)))
            np.testing.assert_array_equal(await comm.read(), numbered(MIB))
            await asyncio.gather(comm.close(), other.close())


@on_ranks
async def test_a_stranger_without_certificate_is_refused(end: End):
    if not end.encrypted:
        return
    async with end.listener() as (listener, comms):
        address = listener.contact_address.removeprefix("mpi://")
        stranger = End(end.rank, end.size, None, end.gather)
        # refused immediately; an attempt that is cut off by its timeout is left open by Tornado
        with pytest.raises(OSError):  # noqa: PT011
            await stranger.connect(f"mpi://{address}")
        stranger.connect_args["ssl_context"] = ssl.create_default_context()
        stranger.connect_args["ssl_context"].check_hostname = False
        stranger.connect_args["ssl_context"].verify_mode = ssl.CERT_NONE
        with pytest.raises(OSError):  # noqa: PT011
            await stranger.connect(f"mpi://{address}")
        assert comms.empty()


@pytest.mark.parametrize("world", ["2-piecewise"], indirect=True)
@pytest.mark.parametrize(
    "test",
    [
        test_a_read_is_cancelled_while_it_waits_for_frames,
        test_what_is_on_its_way_arrives_after_close_and_after_abort,
        test_nobody_reads_what_was_sent_before_closing,
        test_connections_between_the_same_ranks_do_not_hear_each_other,
    ],
    ids=lambda test: test.__name__,
)
def test_where_mpi_moves_frames_piece_by_piece(test, world: World):
    test(world)


@on_ranks
async def test_who_closes_first_waits_for_frames_however_long_they_take(end: End):
    comm = await end.pair()
    with mock.patch.object(progress_engine, "_RECEIVE_TIMEOUT", 0.1):
        if end.left:
            reading = asyncio.create_task(comm.read())
            await end.gather()
            await until(lambda: progress_engine.engine().outstanding)
            # ends its half of the socket; the frames are not there yet, and are not sent for a while
            await cancelled(reading)
            await end.gather()
            await until(lambda: not progress_engine.engine().tasks)
            assert not progress_engine.engine().outstanding
        else:
            message = ByHand(comm, [NIL, b"y" * MIB])
            message.announce()
            await end.gather()
            await end.gather()
            with pytest.raises(CommClosedError):
                await comm.read()
            await asyncio.sleep(0.5)  # longer than one would wait for the frames of the dead
            message.send()
            await comm.close()
