"""`MPI.COMM_WORLD` in calls and cells: their own communicator, also for a module that keeps it for many of them."""

from __future__ import annotations

import importlib

import pytest
from support.processes import DEADLINE, until
from support.spmd import WAYS, doing, fail, hang, total, wait_for

from workbench import run_on_ranks, spmd
from workbench.cells import client as cells_client

pytestmark = pytest.mark.mpi_flavor


def place(comm):
    """Return where this rank is in MPI.COMM_WORLD, and whether that is the communicator, also for C code."""
    import pickle

    from mpi4py import MPI

    world = MPI.COMM_WORLD
    again = pickle.loads(pickle.dumps(world)) is world  # noqa: S301  (made in the same line)
    count = comm.watch.count
    world.Barrier()
    same = (
        comm.watch.count == count + 1
        and world == comm
        and world.handle == comm.handle
        and MPI.Comm.Compare(comm, world) == MPI.IDENT
    )
    return world.rank, world.size, same and again and world.Get_attr(MPI.TAG_UB) > 0


def of_all(_=None):
    """Return where this rank is in MPI.COMM_WORLD."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


def program(_, fail=None):
    """Run a program that keeps its communicator from its first run on."""
    return importlib.import_module("support.mpi_program").main(fail)


def world_of(way):
    """Return a way to wait for a rank of MPI.COMM_WORLD."""

    def wait(_, *args):
        from mpi4py import MPI

        return way(MPI.COMM_WORLD, *args)

    return wait


def test_it_is_the_communicator_of_the_call_and_outside_that_of_all_ranks(client4):
    assert run_on_ranks(place, client=client4) == [(rank, 4, True) for rank in range(4)]
    assert run_on_ranks(place, client=client4, ranks=[3, 1]) == [(0, 2, True), (1, 2, True)]
    assert sorted(client4.run(of_all).values()) == [(rank, 4) for rank in range(4)]


def test_it_is_another_one_in_a_cell_beside_a_call(client4, tmp_path):
    def held(comm, begun, end):
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        (begun / str(comm.rank)).touch()
        wait_for(end)
        return world.size, world.allreduce(world.rank), MPI.Comm.Compare(world, comm) == MPI.IDENT

    (tmp_path / "begun").mkdir()
    call = spmd(held, client=client4, ranks=[2, 0]).submit(tmp_path / "begun", tmp_path / "end")
    until("the call on two ranks", lambda: len([*(tmp_path / "begun").iterdir()]) == 2)
    result = cells_client.evaluate(
        "from mpi4py import MPI; MPI.COMM_WORLD.size, MPI.COMM_WORLD.allreduce(rank), MPI.COMM_WORLD == comm",
        client=client4,
    )
    (tmp_path / "end").touch()

    assert result == [(4, 6, True)] * 4
    assert call.result(DEADLINE) == [(2, 1, True)] * 2


def test_a_module_keeps_it_for_all_calls_and_cells_and_what_it_derives_outlives_the_first(client4):
    assert run_on_ranks(program, client=client4) == [(4, 6, 4, 4)] * 4
    with pytest.raises(ValueError, match="this rank does not come"):
        run_on_ranks(program, 2, client=client4)
    assert run_on_ranks(program, client=client4) == [(4, 6, 4, 4)] * 4
    code = "from support.mpi_program import MPI, comm as kept; kept.allreduce(1), kept.Compare(comm) == MPI.IDENT"
    assert cells_client.evaluate(code, client=client4) == [(4, True)] * 4


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_fails_ends_the_others_there(client4, way):
    with pytest.raises(ValueError, match="rank 1 does not come"):
        run_on_ranks(lambda comm: world_of(fail)(comm, way, 1), client=client4)
    assert run_on_ranks(total, client=client4, timeout=DEADLINE) == [6] * 4


def test_a_wait_there_is_watched_and_ends_with_the_call(client4, tmp_path):
    waiting = spmd(world_of(hang), client=client4).submit("Barrier", 1, tmp_path / "end")
    until("three ranks in a barrier", lambda: sum(where == "Barrier" for _, where in client4.run(doing).values()) == 3)
    waiting.cancel()
    (tmp_path / "end").touch()
    until("the return of the last rank", lambda: run_on_ranks(total, client=client4, timeout=DEADLINE) == [6] * 4)
