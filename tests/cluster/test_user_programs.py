"""Calls and cells do what other programs do: they print, fork, use Dask, and send objects of user classes."""

from __future__ import annotations

import ctypes
import enum
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from dask.base import annotate
from distributed import get_client, get_worker
from distributed.diagnostics.plugin import Environ, UploadDirectory
from support import unpacked
from support.processes import DEADLINE, until
from support.raised import raises

from workbench import blocks, map_blocks, place, run_on_ranks, spmd
from workbench.cells import client as cells_client
from workbench.cells.output import grouped, with_label
from workbench.errors import InvalidRequest
from workbench.placement import pinning


class Point:
    def __init__(self, x):
        self.x = x

    def __add__(self, other):
        return Point(self.x + other.x)


class Color(enum.Enum):
    RED = 1


def double(x):
    return 2 * x


# As in a notebook, whose classes and functions ranks cannot import.
Point.__module__ = Color.__module__ = double.__module__ = "__main__"


def speak(comm):
    print("a print")  # noqa: T201  (the subject of the test)
    thread = threading.Thread(target=print, args=("a thread",))
    thread.start()
    thread.join()
    subprocess.run(["echo", "a program"], check=True)
    ctypes.CDLL(None).puts(b"C code")
    if comm.rank == 3:
        sys.stderr.write("only rank 3\n")
    return comm.rank


SPOKEN = "a print\na thread\na program\nC code\n"


def test_what_a_call_its_threads_programs_and_c_code_print_is_shown(client4, capsys):
    assert run_on_ranks(speak, client=client4) == [0, 1, 2, 3]
    assert capsys.readouterr().out == f"ranks 0-2:\n{SPOKEN}rank 3:\n{SPOKEN}only rank 3\n"

    assert spmd(client=client4, ranks=[1])(speak).submit().result(DEADLINE) == [0]
    assert capsys.readouterr().out == f"rank 1:\n{SPOKEN}"


def test_what_a_call_has_printed_before_its_error_is_shown_and_too_much_is_counted(client4, capsys):
    def fail(comm):
        print("x" * 300_000 if comm.rank == 2 else "short")  # noqa: T201  (as above)
        if comm.rank == 2:
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        run_on_ranks(fail, client=client4)

    shown = capsys.readouterr().out
    assert shown.endswith("rank 2: 37,857 more bytes of output are only in its log: cluster.logs(2)\n")
    assert len(shown) < 270_000


def test_prints_of_tasks_are_no_output_of_a_call_that_runs_meanwhile(client4, cluster4, capsys, tmp_path):
    over = tmp_path / "over"

    def wait_for(comm):
        until("the end", over.exists)

    call = spmd(client=client4)(wait_for).submit()
    client4.submit(print, "of a task", pure=False).result(DEADLINE)
    over.touch()
    call.result(DEADLINE)

    assert "of a task" in cluster4.logs()
    assert capsys.readouterr().out == ""


def test_what_programs_and_c_code_of_a_cell_print_is_shown(client4):
    code = """
import ctypes, os, subprocess
subprocess.run(["echo", "a program"])
ctypes.CDLL(None).puts(b"C code")
if os.fork() == 0:
    print("a copy")
else:
    os.wait()
"""
    result = cells_client.run(code, client=client4)

    assert "".join(with_label(piece) for piece in grouped(result.outputs)) == (
        "ranks 0-3:\na program\nC code\na copy\n"
    )


def test_a_copy_of_a_rank_that_leaves_its_call_or_its_cell_ends(client4, capsys):
    ranks = [rank.address for rank in pinning.target_workers(client4, "rank")]

    def fork(comm, error):
        child = os.fork()
        if child == 0 and error is not None:
            raise error
        if error is not None:
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # so that its error is output of the call
        return child

    for error, code in ((None, 0), (ValueError("in the copy"), 1), (SystemExit(3), 3)):
        copies = run_on_ranks(fork, error, client=client4)
        ended = [
            client4.run(os.waitpid, copy, 0, workers=[address]) for copy, address in zip(copies, ranks, strict=True)
        ]
        assert [os.waitstatus_to_exitcode(status) for each in ended for _, status in each.values()] == [code] * 4
    assert "ValueError: in the copy" in capsys.readouterr().out

    cell = "import os\nif (child := os.fork()) == 0: {}\nos.waitstatus_to_exitcode(os.waitpid(child, 0)[1])"
    for end, code in (("exit()", 0), ("1 / 0", 1), ("raise SystemExit(3)", 3)):
        result = cells_client.run(cell.format(end), client=client4, values=True)
        assert result.values() == [code] * 4
        assert ("ZeroDivisionError" in "".join(map(with_label, grouped(result.outputs)))) == (code == 1)
    assert run_on_ranks(lambda comm: comm.allreduce(1), client=client4) == [4] * 4


def test_a_copy_of_a_rank_that_leaves_a_task_or_a_function_of_the_client_ends(client4):
    def fork(error):
        child = os.fork()
        if child == 0 and error is not None:
            raise error
        return child and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    class Forks:
        def fork(self, error):
            return fork(error)

    actor = client4.submit(Forks, actor=True).result(DEADLINE)
    for error, code in ((None, 0), (ValueError("in the copy"), 1), (SystemExit(3), 3)):
        assert client4.submit(fork, error, pure=False).result(DEADLINE) == code
        assert actor.fork(error).result(DEADLINE) == code
        assert list(client4.run(fork, error).values()) == [code] * 4


def test_objects_that_end_a_program_when_they_are_read_end_no_process(client4):
    pids = client4.run(os.getpid)
    made = client4.submit(unpacked.Does, unpacked.leave, pure=False)
    with raises(pickle.UnpicklingError, args=("SystemExit: no license",)):
        made.result(DEADLINE)
    with pytest.raises(RuntimeError, match="deserialization of the task graph"):
        client4.submit(type, unpacked.Does(unpacked.leave)).result(DEADLINE)
    with raises(Exception, args=("UnpicklingError('SystemExit: no license')",)):
        client4.scatter(unpacked.Does(unpacked.leave), timeout=DEADLINE)
    assert client4.run(os.getpid) == pids


@pytest.mark.mpi_flavor
def test_objects_of_classes_of_the_notebook_are_sent_by_mpi_and_multiprocessing(client4):
    def send(comm):
        neighbor = comm.sendrecv(Point(comm.rank), dest=(comm.rank + 1) % 4)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            doubled = pool.map(double, [4])
        return neighbor.x, comm.allreduce(Point(1)).x, comm.bcast(Color.RED) is Color.RED, doubled

    assert run_on_ranks(send, client=client4) == [((rank - 1) % 4, 4, True, [8]) for rank in range(4)]
    result = cells_client.run("comm.bcast(point).x", {"point": Point(2)}, client=client4, values=True)
    assert result.values() == [2] * 4


def test_functions_of_dask_work_in_calls_and_cells_as_in_tasks(client4):
    def use(comm):
        return get_worker().name, get_client().submit(sum, [comm.rank, 1], pure=False).result(DEADLINE)

    assert run_on_ranks(use, client=client4) == [(rank, rank + 1) for rank in range(4)]
    code = "from distributed import get_client, get_worker\nget_worker().name, get_client().status"
    assert cells_client.run(code, client=client4, values=True).values() == [(rank, "running") for rank in range(4)]


@pytest.mark.parametrize("options", [{"allow_other_workers": True}, {"resources": {"GPU": 1}}, {"workers": "nobody"}])
def test_blocks_are_pinned_whatever_annotations_say(client4, options):
    def is_loose(keys, dask_scheduler):
        return {dask_scheduler.tasks[key].loose_restrictions for key in keys}

    with annotate(**options):
        X = place(np.arange(8.0), client=client4)
        futures = map_blocks(lambda block: float(block.sum()), X)
        assert [future.result(DEADLINE) for future in futures] == [1, 5, 9, 13]
    assert client4.run_on_scheduler(is_loose, [future.key for future in blocks(X)]) == {False}


def test_plugins_and_functions_for_nannies_are_refused(client4, tmp_path):
    (tmp_path / "package").mkdir()
    for refused in (
        lambda: client4.register_plugin(Environ({"SETTING": "1"})),
        lambda: client4.register_plugin(UploadDirectory(str(tmp_path / "package"))),
        lambda: client4.run(os.getpid, nanny=True),
    ):
        with pytest.raises(InvalidRequest):
            refused()
