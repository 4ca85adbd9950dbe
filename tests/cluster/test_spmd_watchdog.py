"""The watchdog reports the positions of the ranks of a call without progress."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import dask
from support.processes import DEADLINE, until
from support.spmd import hang, total, wait_for

from workbench import run_on_ranks
from workbench.commands import actions
from workbench.commands.format import where_text


@contextmanager
def first_words(capsys, go, patience, *call, **options) -> Iterator[str]:
    """Make a call, and return the first message about it; then let it end."""
    with dask.config.set({"workbench.spmd.watchdog": patience}), ThreadPoolExecutor(1) as thread:
        result = thread.submit(run_on_ranks, *call, **options)
        said = []

        def told():
            said.append(capsys.readouterr().out)
            return "\n" in "".join(said)

        try:
            until("where the ranks are", told)
            yield "".join(said).splitlines()[0]
        finally:
            go.touch()
        result.result(DEADLINE)


def test_who_waits_is_told_where_the_ranks_are_after_the_time_that_is_set(client4, tmp_path, capsys):
    go = tmp_path / "go"
    run_on_ranks(total, client=client4)  # the import of its module is code of the user, too
    with first_words(capsys, go, "1 s", hang, "Allreduce", 3, str(go), client=client4) as words:
        [seconds] = re.findall(
            r"^hang: ranks 0-2 are in Allreduce for ([0-9.]+) s; rank 3 is in user code at spmd", words
        )
        assert float(seconds) >= 1


def test_where_names_the_task_of_a_rank(cluster4, client4, tmp_path):
    begun, go = tmp_path / "begun", tmp_path / "go"

    def wait_in_a_task():
        begun.touch()
        wait_for(go)

    task = client4.submit(wait_in_a_task, workers=[2], pure=False)
    try:
        until("the task to run", begun.exists)
        told = where_text(actions.where(cluster4.record, cluster4), stacks=False)
    finally:
        go.touch()
    task.result(DEADLINE)
    # The innermost line of the user is in `wait_for`.
    words = r"no SPMD call: rank 2 is in the task wait_in_a_task at spmd\.py:\d+ for .* s; ranks 0-1, 3 are idle"
    assert re.fullmatch(words, told)


def test_a_rank_whose_c_code_lets_nobody_else_run_is_named(client4, tmp_path, capsys):
    def hold(comm, path):
        if comm.rank == 3:
            # With the lock of the interpreter, which `CDLL` would give away.
            ctypes.PyDLL(None).system(f"until test -e '{path}'; do sleep 0.02; done".encode())
        comm.Barrier()

    go = tmp_path / "go"
    with first_words(capsys, go, "0.4 s", hold, str(go), client=client4) as words:
        assert re.match(r"^hold: ranks 0-2 are in Barrier for .*; rank 3 does not answer$", words)
