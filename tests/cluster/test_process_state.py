"""What a call or a cell changes in the processes of its ranks does not reach later calls and cells."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import DEADLINE
from support.process_state import CHANGES, ON_MAIN_THREAD, found
from support.processes import until

from workbench import MPICluster, run_on_ranks, spmd
from workbench.cells import client as cells_client

LATER = """
import subprocess
from support.process_state import CHANGES, ON_MAIN_THREAD, found
print("a print")
subprocess.run(["echo", "a program"], check=True)
found()
"""


def printed_and_found(comm):
    subprocess.run(["echo", "a program"], check=True)
    print("a print")  # noqa: T201  (a call shows this)
    return found()


def without_streams(comm, folder):
    sys.stdout = sys.stderr = None
    (folder / str(comm.rank)).touch()
    until("the end", (folder / "end").exists)


@pytest.mark.mpi_flavor
def test_a_call_or_a_cell_that_restores_nothing_leaves_the_process_to_later_ones_as_before(capsys, tmp_path):
    def seen():
        """Return what a call and a cell find; both must show what is printed."""
        in_call = run_on_ranks(printed_and_found, client=client, timeout=DEADLINE)
        shown = capsys.readouterr().out
        cell = cells_client.run(LATER, client=client, timeout=DEADLINE, values=True)
        shown_by_cell = ["".join(str(piece.text) for piece in pieces) for pieces in cell.outputs.values()]
        for text in (shown, *shown_by_cell):
            assert ("a print" in text, "a program" in text) == (True, True), (change, text)
        return in_call, cell.values()

    change = None
    with MPICluster(2, quiet=True) as cluster, cluster.get_client() as client:
        # A call that runs has no streams while the engines start, and while they run a cell.
        for round_ in range(2):
            folder = tmp_path / str(round_)
            folder.mkdir()
            call = spmd(without_streams, client=client).submit(folder)
            until("the call runs on both ranks", lambda folder=folder: len(list(folder.iterdir())) == 2)
            cell = cells_client.run("print('a print')", client=client, timeout=DEADLINE)
            (folder / "end").touch()
            call.result(DEADLINE)
            assert [[piece.text for piece in pieces] for pieces in cell.outputs.values()] == [["a print\n"]] * 2

        before = seen()
        for change, make in CHANGES.items():
            run_on_ranks(lambda _, make=make: make() and None, client=client, timeout=DEADLINE)
            assert seen() == before, f"{change} in a call"
        for change in CHANGES | ON_MAIN_THREAD:
            if change == "numpy":  # this notebook keeps its context variables
                continue
            cells_client.run(f"(CHANGES | ON_MAIN_THREAD)[{change!r}]()\nNone", client=client, timeout=DEADLINE)
            assert seen() == before, f"{change} in a cell"


def waits_for_task(comm, folder):
    (folder / str(comm.rank)).touch()
    until("the task runs", (folder / "task").exists)


def in_own_directory(folder):
    with contextlib.chdir(folder):
        (folder / "task").touch()
        until("the end of the call", (folder / "end").exists)
        return Path.cwd()


def test_the_end_of_a_call_leaves_the_directory_of_a_task_and_later_calls_have_that_before_both(client4, tmp_path):
    before = run_on_ranks(lambda _: Path.cwd(), client=client4, timeout=DEADLINE)
    call = spmd(waits_for_task, client=client4).submit(tmp_path)
    until("the call runs on all ranks", lambda: len(list(tmp_path.iterdir())) == 4)
    task = client4.submit(in_own_directory, tmp_path)
    call.result(DEADLINE)
    (tmp_path / "end").touch()

    assert task.result(DEADLINE) == tmp_path
    assert run_on_ranks(lambda _: Path.cwd(), client=client4, timeout=DEADLINE) == before


def test_a_directory_that_the_user_sets_between_calls_is_the_one_that_calls_leave(client4, tmp_path):
    first = run_on_ranks(lambda _: Path.cwd(), client=client4, timeout=DEADLINE)[0]
    client4.run(os.chdir, tmp_path)
    try:
        run_on_ranks(lambda _: os.chdir(first), client=client4, timeout=DEADLINE)
        assert run_on_ranks(lambda _: Path.cwd(), client=client4, timeout=DEADLINE) == [tmp_path] * 4
    finally:
        client4.run(os.chdir, first)
