"""A rank dies with frames on their way: the others detect the loss, and continue."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest import mock

import numpy as np
import pytest
from distributed.comm import CommClosedError
from distributed.protocol import to_serialize
from support.ends import Check, End, until
from support.member import back_to, level
from support.world import World, found, run_program

from workbench.comm import framing, progress_engine

MIB = 1 << 20


@pytest.fixture
def mortal() -> Iterator[World]:
    world = World(2)
    yield world
    world.stop(finalize=False)


def leaving_traces(check: Check) -> Check:
    """Mark a check that looks itself at what is left."""
    check.leaves_traces = True  # type: ignore[attr-defined]
    return check


def die(*comms: Any) -> None:
    """End this process; where that would end the whole world, let it seem dead to its peers."""
    from mpi4py import MPI

    if "Open MPI" in MPI.Get_library_version():
        os.kill(os.getpid(), signal.SIGKILL)
    for comm in comms:
        if comm.stream is not None:
            comm.stream.close()


@leaving_traces
async def the_sender_dies_before_its_frames(end: End):
    before = level()
    comm = await end.pair()
    if not end.left:
        link = comm.link
        tags = {1: link.take_tag(), 2: link.take_tag()}
        frames = [b"\xc0", b"x" * MIB, b"y"]
        # announces what is never sent
        await comm.stream.write(framing.pack(frames, list(map(len, frames)), tags)[0])
        await end.gather()
        die(comm)
        return
    reading = asyncio.create_task(comm.read())
    await until(lambda: progress_engine.engine().outstanding)
    await end.gather()
    with pytest.raises(CommClosedError):
        await reading
    assert comm.closed()
    del comm, reading
    await back_to(before)


@leaving_traces
@mock.patch("workbench.comm.progress_engine._SEND_TIMEOUT", 0.5)
async def the_receiver_dies_with_frames_on_their_way_to_it(end: End):
    before = level()
    comm = await end.pair()
    if not end.left:
        await end.gather()
        die(comm)
        return
    await comm.write(to_serialize(np.ones(50 * MIB, np.uint8)))
    assert progress_engine.engine().outstanding
    await end.gather()
    with pytest.raises(CommClosedError):
        await comm.read()
    await comm.close()
    # Tasks that waited for the frames continue. Memory and tags of the frames are in use until MPI releases them.
    await until(lambda: not progress_engine.engine().tasks)
    await back_to(before, but=("transfers", "tags in use", "files", "plans to poll"))


@leaving_traces
@mock.patch("workbench.comm.progress_engine._SEND_TIMEOUT", 0.5)
async def a_peer_dies_in_the_midst_of_everything(end: End):
    comms = [await end.pair() for _ in range(3)]

    async def talk(comm):
        with suppress(CommClosedError):
            for number in range(1000):
                await comm.write([to_serialize(np.ones(size, np.uint8)) for size in (7 * MIB, 70_000)])
                if number >= 3:
                    large, small = await comm.read()
                    assert large.all()
                    assert small.all()
                if number == 7 and not end.left:
                    die(*comms)

    await asyncio.gather(*map(talk, comms))
    for comm in comms:
        await comm.close()
    if end.left:
        await until(lambda: not progress_engine.engine().tasks and not progress_engine.engine()._active)
        del comms, comm
        # a frame of which a part had come already is MPI's for good
        await until(lambda: not level()["bytes leased"] or progress_engine.engine().outstanding)


@pytest.mark.parametrize(
    "check",
    [
        the_sender_dies_before_its_frames,
        the_receiver_dies_with_frames_on_their_way_to_it,
        a_peer_dies_in_the_midst_of_everything,
    ],
    ids=lambda check: check.__name__,
)
def test_survivors_go_on_when(check: Check, mortal: World):
    mortal.run(check, mortal=[1])
    assert mortal.dead == ({1} if found().flavor == "openmpi" else set())


LEAVING = """
import asyncio, os
from workbench import comm
from workbench.comm import progress_engine
import dask, numpy as np
from mpi4py import MPI
from distributed.comm import connect, listen
from distributed.protocol import to_serialize

MPI.Init_thread(MPI.THREAD_MULTIPLE)
world = MPI.COMM_WORLD
comm.join(world.Dup(), "a world")
dask.config.set({"workbench.comm.threshold": "1 B"})

async def write(address):
    peer = await connect(address)
    await peer.write(to_serialize(np.ones(5_000_000, np.uint8)))
    return peer

async def serve():
    peers = asyncio.Queue()
    listener = await listen("mpi://127.0.0.1", peers.put)
    world.send(listener.contact_address, dest=1)
    return await peers.get()

async def drain(peer):
    assert (await peer.read()).all()

words = []
# No task reads while the loop of this rank does not run.
with asyncio.Runner() as loop:
    if world.rank == 0:
        peer = loop.run(serve())
        world.Barrier()
        world.Barrier()
        loop.run(drain(peer))
        world.Barrier()
    else:
        peer = loop.run(write(world.recv(source=0)))
        world.Barrier()
        words.append(progress_engine.finish(0.1))
        world.Barrier()
        words.append(progress_engine.finish(50))
        world.Barrier()
    words.append(comm.leave(50))
    peer.abort()
os.write(1, f"{world.rank} {words}\\n".encode())
MPI.Finalize()
"""


def test_mpi_is_finalized_only_when_no_transfer_is_outstanding():
    assert run_program(2, LEAVING, 100) == ["0 [True]", "1 [False, True, True]"]
