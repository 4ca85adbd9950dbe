"""No child outlives its parent, however the parent ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from support.processes import DEADLINE, until

from workbench.host import parent_death, processes

# Each prints its pid, then waits for ever.
TIED = """
import os, signal, sys
from workbench.host import parent_death
parent_death.set_signal(int(sys.argv[1]), signal.SIGTERM)
print(os.getpid(), flush=True)
signal.pause()
"""
STUCK = """
import ctypes, os, signal, sys
from workbench.host import parent_death
parent_death.set_signal(int(sys.argv[1]), signal.SIGKILL)
print(os.getpid(), flush=True)
ctypes.PyDLL(None).sleep(600)  # holds the GIL
"""
WATCHED = """
import os, signal, sys
from workbench.host import parent_death
parent_death.poll_parent(int(sys.argv[1]), interval=0.01)
print(os.getpid(), flush=True)
signal.pause()
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([word.replace("PARENT", str(os.getpid())) for word in sys.argv[1:]])
sys.stdin.read()
"""
SLEEP = "import os, signal; print(os.getpid(), flush=True); signal.pause()"


def start(*command):
    """Start a parent of `command`, in which the word PARENT becomes its pid; return it and the child's pid."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return parent, int(parent.stdout.readline())


def await_end(pid):
    """Return when an orphaned process has ended."""
    until(f"the end of process {pid}", lambda: processes.start_time(pid) is None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize(
    "command",
    [
        (sys.executable, "-c", TIED, "PARENT"),
        (sys.executable, "-c", STUCK, "PARENT"),
        (sys.executable, "-c", WATCHED, "PARENT"),
        (sys.executable, parent_death.__file__, "PARENT", "/nowhere/folder", sys.executable, "-c", SLEEP),
        (
            sys.executable,
            parent_death.__file__,
            "--guard",
            "",
            "PARENT",
            "/nowhere/folder",
            sys.executable,
            "-c",
            SLEEP,
        ),
    ],
    ids=["tied", "stuck in C code", "watched", "tied across exec", "guarded"],
)
def test_a_child_ends_when_its_parent_is_killed(command, number):
    parent, child = start(*command)
    assert processes.start_time(child) is not None
    with parent:
        parent.send_signal(number)
    await_end(child)


@pytest.mark.parametrize("program", [TIED, STUCK, WATCHED], ids=["tied", "stuck", "watched"])
def test_a_child_whose_parent_died_before_it_was_tied_ends_at_once(program):
    with subprocess.Popen([sys.executable, "-c", program, "0"], stdout=subprocess.PIPE) as child:
        assert child.wait(DEADLINE) != 0


def test_a_child_is_left_alone_while_its_parent_lives():
    parent, child = start(sys.executable, "-c", TIED, "PARENT")
    with parent:
        with pytest.raises(subprocess.TimeoutExpired):
            parent.wait(timeout=0.2)
        assert processes.start_time(child) is not None
        parent.kill()
    await_end(child)


def test_the_command_is_run_as_it_is_given():
    words = ["a b", "'", "$HOME", ""]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, sys.executable, parent_death.__file__, "PARENT", "/nowhere/folder",
         sys.executable, "-c", "import sys; print(sys.argv[1:])", *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout.readline() == f"{words}\n"


OBSTINATE = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    ("number", "options"),
    [(signal.SIGKILL, ()), (signal.SIGTERM, ("--guard", ""))],
    ids=["killed", "guarded and ended"],
)
def test_an_obstinate_command_is_killed_and_its_folder_goes_with_the_parent(tmp_path, number, options):
    folder = tmp_path / "cluster" / "world-0"
    folder.mkdir(parents=True)
    (folder / "segment").touch()
    run = (sys.executable, parent_death.__file__, *options, "PARENT", str(folder), sys.executable, "-c", OBSTINATE)
    parent, child = start(*run)
    with parent:
        parent.send_signal(number)
    await_end(child)
    until("the folder to be removed", lambda: not folder.parent.exists())


@pytest.mark.parametrize(("ends", "code"), [("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("pass", 0)])
@pytest.mark.parametrize("options", [(), ("--guard", "")], ids=["", "guarded"])
def test_it_ends_as_its_command_does_and_leaves_the_folder_to_the_parent(tmp_path, ends, code, options):
    line = [sys.executable, "-c", f"import os; {ends}"]
    run = [sys.executable, parent_death.__file__, *options, str(os.getpid()), str(tmp_path), *line]
    assert subprocess.run(run, check=False, timeout=DEADLINE).returncode == code
    assert tmp_path.exists()


@pytest.mark.parametrize("options", [(), ("--guard", "")], ids=["", "guarded"])
def test_it_ends_with_its_command_also_where_a_program_above_ignores_the_ends_of_children(options):
    ignore = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    line = [sys.executable, "-c", "raise SystemExit(3)"]
    run = [sys.executable, parent_death.__file__, *options, str(os.getpid()), "/nowhere/folder", *line]
    with subprocess.Popen([sys.executable, "-c", ignore, *run]) as tether:
        try:
            assert tether.wait(DEADLINE) == 3
        finally:
            tether.kill()


def test_the_command_does_not_outlive_a_tether_that_is_killed():
    run = [sys.executable, parent_death.__file__, str(os.getpid()), "/nowhere/folder", sys.executable, "-c", SLEEP]
    with subprocess.Popen(run, stdout=subprocess.PIPE) as tied:
        child = int(tied.stdout.readline())
        tied.kill()
    await_end(child)
