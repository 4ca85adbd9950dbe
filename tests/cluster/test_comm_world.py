"""`MPI.COMM_WORLD` in calls and cells: their own communicator, also for a module that keeps it for many of them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest
from support.processes import DEADLINE, until
from support.raised import raises
from support.spmd import WAYS, doing, fail, hang, in_a_thread, total, wait_for

from workbench import run_on_ranks, spmd
from workbench.cells import client as cells_client
from workbench.errors import InvalidRequest
from workbench.launch import mpi_library
from workbench.launch.mpi_library import OPENMPI_AS_ROOT

pytestmark = pytest.mark.mpi_flavor

DOCS = Path(__file__).parents[2] / "docs" / "howto"


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


def place_in_a_thread(comm):
    """Return the same as `place`, in a thread of the call, and in a thread of this thread."""
    return in_a_thread(lambda: in_a_thread(lambda: place(comm)))


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


def spawn(comm, way):
    """Start a process from a call."""
    from mpi4py import MPI
    from mpi4py.futures import MPIPoolExecutor

    if way == "executor":
        with MPIPoolExecutor(1) as executor:
            return executor.submit(abs, -1).result()
    code = "from mpi4py import MPI; parent = MPI.Comm.Get_parent(); parent.send(1, 0); parent.Disconnect()"
    started = (comm if way == "comm" else MPI.COMM_SELF).Spawn(sys.executable, ["-c", code])
    got = started.recv(source=0)
    started.Disconnect()
    return got


def test_it_is_the_communicator_of_the_call_and_outside_that_of_all_ranks(client4):
    assert run_on_ranks(place, client=client4) == [(rank, 4, True) for rank in range(4)]
    assert run_on_ranks(place, client=client4, ranks=[3, 1]) == [(0, 2, True), (1, 2, True)]
    assert sorted(client4.run(of_all).values()) == [(rank, 4) for rank in range(4)]
    assert run_on_ranks(place_in_a_thread, client=client4, ranks=[2, 0]) == [(0, 2, True), (1, 2, True)]
    assert (
        cells_client.evaluate(
            "from mpi4py import MPI; from support.spmd import in_a_thread; in_a_thread(lambda: MPI.COMM_WORLD == comm)",
            client=client4,
        )
        == [True] * 4
    )


def test_a_program_replaces_it_until_the_end_of_the_call_and_pickle_stores_only_the_names(client4):
    def replace(comm):
        import pickle
        from unittest import mock

        from mpi4py import MPI

        half, duplicate = comm.Split(comm.rank % 2), MPI.COMM_SELF.Dup()
        sizes = []
        for _ in range(2):
            with mock.patch.object(MPI, "COMM_WORLD", half):
                sizes.append(MPI.COMM_WORLD.size)
            sizes.append(MPI.COMM_WORLD.size)
        with pytest.raises(ValueError, match="cannot serialize"):
            pickle.dumps(duplicate)
        duplicate.Free()
        MPI.COMM_WORLD = half
        return *sizes, MPI.COMM_WORLD.size

    assert run_on_ranks(replace, client=client4) == [(2, 4, 2, 4, 2)] * 4
    assert run_on_ranks(place, client=client4) == [(rank, 4, True) for rank in range(4)]


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
    with raises(ValueError, args=("this rank does not come",)):
        run_on_ranks(program, 2, client=client4)
    assert run_on_ranks(program, client=client4) == [(4, 6, 4, 4)] * 4
    code = "from support.mpi_program import MPI, comm as kept; kept.allreduce(1), kept.Compare(comm) == MPI.IDENT"
    assert cells_client.evaluate(code, client=client4) == [(4, True)] * 4


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_fails_ends_the_others_there(client4, way):
    with raises(ValueError) as caught:
        run_on_ranks(lambda comm: world_of(fail)(comm, way, 1), client=client4)
    assert caught.value.args[0] == "rank 1 does not come"
    assert run_on_ranks(total, client=client4, timeout=DEADLINE) == [6] * 4


@pytest.mark.parametrize("way", ["comm", "itself", "executor"])
def test_processes_are_started_or_refused_at_once_where_they_cannot_reach_the_ranks(client4, way):
    if mpi_library.find().flavor == "mpich":
        assert run_on_ranks(spawn, way, client=client4, ranks=[1]) == [1]
        return
    error = BrokenExecutor if way == "executor" else InvalidRequest
    with pytest.raises(error, match=r"OMPI_MCA_btl=self,sm,tcp"):
        run_on_ranks(spawn, way, client=client4, ranks=[1])


def test_a_wait_there_is_watched_and_ends_with_the_call(client4, tmp_path):
    waiting = spmd(world_of(hang), client=client4).submit("Barrier", 1, tmp_path / "end")
    until("three ranks in a barrier", lambda: sum(where == "Barrier" for _, where in client4.run(doing).values()) == 3)
    waiting.cancel()
    (tmp_path / "end").touch()
    until("the return of the last rank", lambda: run_on_ranks(total, client=client4, timeout=DEADLINE) == [6] * 4)


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("pi.py", "pi is about 3.141593, with 1000 intervals on 4 ranks"),
        ("plate.py", "189 steps, mean temperature 0.1614"),
        ("primes.py", "303 primes below 2000"),
    ],
)
def test_the_programs_of_the_page_for_mpiexec_print_the_same_in_a_cell_and_run_in_a_call(client4, program, printed):
    path = DOCS / "programs" / program
    assert f"programs/{program}" in (page := (DOCS / "from-mpiexec.md").read_text(encoding="utf-8"))
    assert f"\n{printed}\n" in page
    mpi = mpi_library.find()
    more = ["--oversubscribe"] if mpi.flavor == "openmpi" else []
    alone = subprocess.run(
        [mpi.mpiexec, *more, "-n", "4", sys.executable, path],
        env=os.environ | OPENMPI_AS_ROOT, capture_output=True, text=True, timeout=6 * DEADLINE, check=True,
    )  # fmt: skip
    assert alone.stdout == f"{printed}\n"

    result = cells_client.run(f"%run {path}", client=client4)
    result.check()
    assert "".join(output.text for output in result.outputs[0]) == alone.stdout
    assert not any(result.outputs.get(rank) for rank in (1, 2, 3))

    def call(_, path):
        import runpy

        runpy.run_path(path, run_name="__main__")

    assert run_on_ranks(call, str(path), client=client4) == [None] * 4
