"""The MPI side of a rank in a bare world, with no cluster around it."""

from __future__ import annotations

import pytest
from support.processes import DEADLINE
from support.world import run_program

PROGRAM = """
import os, time
from workbench.rank import world
from workbench.mpi.context import SpmdThread

thread = SpmdThread()

def on_thread(function, *args):
    return thread.submit(function, *args).result(60)

def tell(*words):
    # In one piece: launchers mix what ranks print.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def finalize():
    from mpi4py import MPI
    MPI.Finalize()

{body}
on_thread(finalize)
"""


def _run(ranks: int, body: str) -> list[str]:
    return run_program(ranks, PROGRAM.format(body=body), DEADLINE)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_rank_0_reads_is_shared_with_all(ranks: int) -> None:
    body = f"""
context = on_thread(world.init_mpi, {ranks}, 2, thread)
soon = time.monotonic() + 30
line = on_thread(world.broadcast_line, context, lambda: "tls://" + "é" * 100 + f":{{context.rank}}", soon)
on_thread(world.barrier, context, soon)
tell(context.rank, context.size, context.world, context.node_ranks, len(line), line[-2:])
"""
    assert _run(ranks, body) == [f"{rank} {ranks} 2 {ranks} 108 :0" for rank in range(ranks)]


def test_a_world_of_another_size_than_was_started_is_refused() -> None:
    body = """
try:
    on_thread(world.init_mpi, 8, 0, thread)
except Exception as error:
    tell(type(error).__name__, str(error)[:52])
"""
    assert _run(2, body) == ["LaunchError the MPI world has 2 ranks, but 8 ranks were started:"] * 2


def test_ranks_wait_for_each_other_only_until_the_deadline() -> None:
    body = """
context = on_thread(world.init_mpi, 2, 0, thread)
if context.rank == 0:
    try:
        on_thread(world.barrier, context, time.monotonic() + 0.2)
    except TimeoutError as error:
        tell(error)
    on_thread(context.cells.Barrier)
else:
    on_thread(context.cells.Barrier)
    on_thread(world.barrier, context, time.monotonic() + 30)
    tell("met")
"""
    assert _run(2, body) == [
        "met",
        "the wait for all 2 ranks of the world has timed out. See the logs of the other ranks.",
    ]


def test_the_three_communicators_do_not_hear_each_other() -> None:
    body = """
context = on_thread(world.init_mpi, 2, 0, thread)

def talk():
    comms = [context.transport, context.spmd, context.cells]
    if context.rank == 0:
        # sent in one order, received in another, all under one tag
        for number, comm in enumerate(comms):
            comm.send(number, dest=1, tag=7)
        return None
    return [comm.recv(source=0, tag=7) for comm in reversed(comms)]

tell(context.rank, on_thread(talk))
"""
    assert _run(2, body) == ["0 None", "1 [2, 1, 0]"]
