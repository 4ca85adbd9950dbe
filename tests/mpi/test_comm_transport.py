"""Where frames travel, where they end up, and what is counted of them."""

from __future__ import annotations

import asyncio
import dataclasses
import resource
from typing import Any
from unittest import mock

import dask
import numpy as np
import pytest
from distributed.comm import CommClosedError
from distributed.protocol import to_serialize
from support.ends import End, sent_by_mpi, until
from support.world import on_ranks

from workbench import comm as transport
from workbench.comm import framing, member, progress_engine

NEVER = {"workbench.comm.threshold": "1 TiB"}
MIB = 1 << 20
# Around every border of the readers and of the pool.
SIZES = (1, 63, 64, 65, 1000, 65535, 65536, 65537, 131072, 200_000, 262143, 262144, 3 * MIB)


def numbered(size: int, number: int = 0) -> np.ndarray:
    return np.resize(np.arange(256, dtype=np.uint8), size) + np.uint8(number % 256)


async def check_arrays(end: End, comm: Any, *, aligned: bool = True) -> None:
    """Send arrays of many sizes both ways, alone and together."""
    for sizes in [[size] for size in SIZES] + [SIZES, [100] * 500, [0, 5, 0, 0, MIB, 0]]:
        await comm.write([to_serialize(numbered(size, number)) for number, size in enumerate(sizes)])
        arrays = await comm.read()
        for number, (array, size) in enumerate(zip(arrays, sizes, strict=True)):
            np.testing.assert_array_equal(array, numbered(size, number))
            assert array.flags.writeable
            assert array.ctypes.data % 64 == 0 or not size or not aligned
    del array, arrays
    await end.gather()
    await comm.close()


@on_ranks
async def test_arrays_that_come_by_mpi_are_aligned_and_writable(end: End):
    before = sent_by_mpi(end.partner)
    await check_arrays(end, await end.pair())
    assert sent_by_mpi(end.partner)[1] - before[1] >= 2 * sum(SIZES)


@on_ranks
async def test_arrays_that_come_by_the_socket_are_aligned_and_writable(end: End):
    before = sent_by_mpi(end.partner)
    with dask.config.set(NEVER):
        comm = await end.pair()
    await check_arrays(end, comm)
    assert sent_by_mpi(end.partner) == before


@on_ranks
async def test_a_client_of_tcp_speaks_with_a_listener_of_mpi(end: End):
    comm = await end.pair("mpi", left=end.plain_scheme)
    await check_arrays(end, comm, aligned=not end.left)


@on_ranks
async def test_a_client_of_mpi_speaks_with_a_listener_of_tcp(end: End):
    comm = await end.pair(end.plain_scheme, left="mpi")
    await check_arrays(end, comm, aligned=end.left)


@on_ranks
async def test_a_member_of_another_world_stays_on_the_socket(end: End):
    us, before = member.current(), sent_by_mpi(end.partner)
    changed = dataclasses.replace(us, world="another") if end.left else us
    with mock.patch.object(member, "current", return_value=changed):
        comm = await end.pair()
    await check_arrays(end, comm)
    assert sent_by_mpi(end.partner) == before


@on_ranks
async def test_memory_of_a_message_is_used_again_for_the_next(end: End):
    comm = await end.pair()
    pool = transport.receive_pool()
    addresses, taken = [], pool.statistics().taken
    for number in range(4):
        await comm.write(to_serialize(numbered(5 * MIB, number)))
        array = await comm.read()
        addresses.append(array.ctypes.data)
        part = array[10:20]
        del array
        # it is kept as long as anything can be seen of it
        assert pool.statistics().leased >= 5 * MIB
        np.testing.assert_array_equal(part, numbered(5 * MIB, number)[10:20])
        del part
        assert pool.statistics().leased == 0
    assert len(set(addresses)) == 1
    assert pool.statistics().taken == taken + 4
    assert pool.statistics().idle >= 5 * MIB
    await end.gather()
    await comm.close()


def counted(peer: Any, way: str) -> np.ndarray:
    keys = ("sent_messages", "sent_bytes", "received_messages", "received_bytes")
    rows = [[row[key] for key in keys] for row in transport.traffic() if (row["peer"], row["way"]) == (peer, way)]
    return np.array(rows or [[0] * 4])[0]


@on_ranks
async def test_every_message_is_counted_once_on_each_way(end: End):
    with dask.config.set({"workbench.comm.threshold": "1 MiB"}):
        comm = await end.pair()
    ways = "mpi", "socket"
    before = {way: counted(end.partner, way) for way in ways}
    if end.left:
        for sizes in ([MIB], [2 * MIB, 3 * MIB], [MIB - 1], [10, 4 * MIB], []):
            await comm.write([to_serialize(numbered(size)) for size in sizes])
        assert await comm.read() == "all"
    else:
        for _ in range(5):
            await comm.read()
        await comm.write("all")
    # the last message may be counted by its reader before its writer, which counts it when it is known to have arrived
    await end.gather()
    await until(lambda: not progress_engine.engine().outstanding)
    now = {way: counted(end.partner, way) - before[way] for way in ways}
    # three messages have large frames, four in all
    assert list(now["mpi"]) == ([3, 10 * MIB, 0, 0] if end.left else [0, 0, 3, 10 * MIB])
    assert list(now["socket"][::2]) == ([5, 1] if end.left else [1, 5])
    assert MIB < now["socket"][1 if end.left else 3] < MIB + 5000
    # what one has sent is what the other has received
    theirs = await end.swap({way: list(its) for way, its in now.items()})
    assert theirs == {way: [*its[2:], *its[:2]] for way, its in now.items()}
    await comm.close()


@on_ranks
async def test_nothing_runs_where_nothing_is_outstanding(end: End):
    comm = await end.pair()
    reading = asyncio.ensure_future(comm.read())
    if end.left:
        await comm.write(to_serialize(numbered(MIB)))
    else:
        await reading
        await comm.write(to_serialize(numbered(MIB)))
        reading = asyncio.ensure_future(comm.read())
    if end.left:
        await reading
        reading = asyncio.ensure_future(comm.read())
    # both wait for a message now, and after the arrival of the last one is known, no task polls
    await until(lambda: not progress_engine.engine().outstanding)
    assert progress_engine.engine().next_poll is None
    await end.gather()
    await comm.close()
    with pytest.raises(CommClosedError):
        await reading


@on_ranks
async def test_frames_go_by_mpi_from_a_process_that_can_have_no_more_files(end: End):
    comm = await end.pair()
    # once, for what this opens files for: imports
    await comm.write(to_serialize(numbered(MIB)))
    await comm.read()
    await end.gather()
    await until(lambda: not progress_engine.engine().outstanding)
    before, (soft, hard) = sent_by_mpi(end.partner), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        await comm.write(to_serialize(numbered(3 * MIB)))
        array = await comm.read()
        await end.gather()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    np.testing.assert_array_equal(array, numbered(3 * MIB))
    del array
    await comm.close()
    assert sent_by_mpi(end.partner)[1] - before[1] >= 3 * MIB


@pytest.mark.long
@pytest.mark.parametrize("world", ["2"], indirect=True)
@on_ranks
async def test_a_frame_may_be_longer_than_mpi_can_count(end: End):
    comm = await end.pair()
    size = (1 << 31) + 12345
    # where one message of MPI ends and the next begins
    marks = [0, *[at + by for at in range(framing.CHUNK, size, framing.CHUNK) for by in (-1, 0)], size - 1]
    if end.left:
        long = np.zeros(size, np.uint8)
        long[marks] = np.arange(len(marks)) + 1
        await comm.write(to_serialize(long))
    else:
        long = await comm.read()
        assert long.nbytes == size
        np.testing.assert_array_equal(long[marks], np.arange(len(marks)) + 1)
        assert not long[100 : framing.CHUNK - 1].any()
    del long
    await end.gather()
    await comm.close()
    transport.receive_pool().trim()
