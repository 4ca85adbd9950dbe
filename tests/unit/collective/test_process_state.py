"""What code of the user changes in the process of a rank does not reach later calls and cells."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.patience import DEADLINE
from support.process_state import CHANGES

from workbench.collective import process_state
from workbench.collective.process_state import restored

TESTS = Path(__file__).parents[2]
PROGRAM = """
import os, threading

from support.process_state import CHANGES, ON_MAIN_THREAD, found
from workbench.collective.process_state import keep_output, restored
from workbench.host import output

output.keep_on()
print("begin", flush=True)
keep_output()
before = found()

def check(name):
    print("after", name, flush=True)
    os.system(f"echo program {name}")
    assert found() == before, (name, found())

for name, change in CHANGES.items():
    thread = threading.Thread(target=restored, args=[change])
    thread.start()
    thread.join()
    check(f"{name} in a call")
for name, change in (CHANGES | ON_MAIN_THREAD).items():
    restored(change)
    check(f"{name} in a cell")
"""


def test_later_code_finds_the_process_as_before_each_change_and_its_output_is_in_the_log(tmp_path):
    variables = {**os.environ, "PYTHONPATH": str(TESTS)}
    with open(tmp_path / "log", "wb") as log:
        program = [sys.executable, "-c", PROGRAM]
        ended = subprocess.run(program, check=False, stdout=log, stderr=log, cwd=tmp_path, env=variables)
    lines = (tmp_path / "log").read_text().splitlines()
    assert ended.returncode == 0, lines[-5:]
    for change in [*(f"{name} in a call" for name in CHANGES), *(f"{name} in a cell" for name in CHANGES)]:
        assert {f"after {change}", f"program {change}"} < set(lines)


@pytest.fixture
def rank_streams(monkeypatch):
    """Streams of a rank in this process."""
    streams = {name: io.StringIO() for name in ("stdin", "stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setitem(process_state.streams, name, stream)
        monkeypatch.setattr(sys, name, stream)
    return streams


def test_the_state_before_two_at_once_is_restored_at_the_end_of_the_last(tmp_path, monkeypatch, rank_streams):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    begun, end = threading.Event(), threading.Event()

    def first():
        begun.set()
        end.wait(DEADLINE)

    def second():
        os.chdir("other")
        sys.stderr = None
        sys.stdout = captured

    captured = io.StringIO()
    thread = threading.Thread(target=restored, args=[first])
    thread.start()
    assert begun.wait(DEADLINE)
    restored(second)
    meanwhile = Path.cwd(), sys.stdout, sys.stderr
    end.set()
    thread.join(DEADLINE)

    assert meanwhile == (tmp_path / "other", captured, rank_streams["stderr"]), (
        "the other one may need its directory and capture"
    )
    assert (Path.cwd(), sys.stdout) == (tmp_path, rank_streams["stdout"])


def test_a_stream_that_a_task_has_set_for_a_while_does_not_come_back(rank_streams):
    with contextlib.ExitStack() as task:
        task.enter_context(contextlib.redirect_stdout(io.StringIO()))
        restored(task.close)

    assert sys.stdout is rank_streams["stdout"]


def test_a_directory_and_a_umask_that_a_task_has_set_for_a_while_do_not_come_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task").mkdir()
    umask = restored(os.umask, 0o022)
    with contextlib.ExitStack() as task:
        task.enter_context(contextlib.chdir("task"))
        task.callback(os.umask, os.umask(0o007))
        monkeypatch.setattr(process_state, "tasks", ["task"])
        task.callback(monkeypatch.setattr, process_state, "tasks", [])
        restored(task.close)
    current = os.umask(umask)
    os.umask(current)

    assert (Path.cwd(), current) == (tmp_path, umask)


def test_a_task_keeps_the_directory_that_it_has_set_during_a_call_whose_change_is_restored_later(tmp_path, monkeypatch):
    for name in ("task", "call"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    restored(Path.cwd)
    monkeypatch.setattr(process_state, "tasks", ["task"])
    restored(os.chdir, tmp_path / "call")
    with contextlib.ExitStack() as task:
        restored(task.enter_context, contextlib.chdir(tmp_path / "task"))
        of_task = Path.cwd()
    monkeypatch.setattr(process_state, "tasks", [])
    restored(Path.cwd)

    assert (of_task, Path.cwd()) == (tmp_path / "task", tmp_path)


def test_a_signal_handler_that_raises_after_the_end_of_a_cell_keeps_nothing_from_restoration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, set_timer, errors = signal.getsignal(signal.SIGALRM), signal.setitimer, [TimeoutError()]

    def interrupted(*args):
        if errors:
            raise errors.pop()
        return set_timer(*args)

    def change():
        os.chdir("/")
        signal.signal(signal.SIGALRM, lambda *_: None)

    monkeypatch.setattr(signal, "setitimer", interrupted)
    restored(change)

    assert (errors, Path.cwd(), signal.getsignal(signal.SIGALRM)) == ([], tmp_path, before)


def test_a_change_before_a_call_stays_in_force(tmp_path, monkeypatch, rank_streams):
    monkeypatch.chdir(tmp_path)
    sys.stdout = mine = io.StringIO()
    restored(print, "text")

    assert (Path.cwd(), sys.stdout, mine.getvalue()) == (tmp_path, mine, "text\n")


def test_a_deleted_directory_ends_no_call(tmp_path, monkeypatch):
    (tmp_path / "deleted").mkdir()
    monkeypatch.chdir(tmp_path / "deleted")

    def delete():
        os.chdir("..")
        Path("deleted").rmdir()

    assert restored(delete) is None
    assert restored(Path.cwd) == tmp_path
