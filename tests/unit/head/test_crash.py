"""What the text of `faulthandler` at the end of the log of a rank says about the crash of the rank."""

from __future__ import annotations

import asyncio
import os
import sysconfig
import time

import pytest
from support.patience import DEADLINE

from workbench.head import lost_ranks

LIBRARY, PACKAGES = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
START = "rank 1 of 2, Open MPI v5.0.11, MPI_THREAD_MULTIPLE\n"
WAITS = f"""\
Thread 0x00007fe0bcfc16c0 (most recent call first):
  File "{LIBRARY}/threading.py", line 327 in wait
  File "/home/user/other.py", line 4 in waits
  File "{LIBRARY}/threading.py", line 1002 in _bootstrap

"""
CURRENT = "Current thread 0x00007fe0bde2fb80 (most recent call first):\n"
IN_LIBRARY = f'  File "{LIBRARY}/ctypes/__init__.py", line 519 in string_at\n'
IN_CELL = '  File "/tmp/ipykernel_17374/2604618891.py", line 4 in f\n'
BY_VALUE = '  File "<dynamic-code>", line 9 in slow\n'
IN_DASK = f'  File "{PACKAGES}/distributed/worker.py", line 2821 in _run_task_simple\n'
USERS = '  File "/home/user/fit.py", line 15 in solve\n  File "/home/user/fit.py", line 20 in <module>\n'
MODULES = "\nExtension modules: mpi4py.MPI, numpy.linalg._umath_linalg (total: 2)\n"


def text(name, *parts):
    return "".join((START, "a line of output\n", f"Fatal Python error: {name}\n\n", *parts))


# As Python 3.11 to 3.14 write them.
CRASHES = {
    "another thread first": (
        text("Segmentation fault", WAITS, CURRENT, USERS),
        "signal 11 (SIGSEGV) at fit.py:15 in solve",
    ),
    "below the line of the user": (
        text("Segmentation fault", CURRENT, IN_LIBRARY, USERS, "\n", WAITS, MODULES),
        "signal 11 (SIGSEGV) at fit.py:15 in solve, in a call of string_at (ctypes/__init__.py:519)",
    ),
    "no line of the user": (
        text("Segmentation fault", CURRENT, IN_LIBRARY, IN_DASK, "\n", WAITS),
        "signal 11 (SIGSEGV) at ctypes/__init__.py:519 in string_at",
    ),
    "a cell": (
        text("Bus error", CURRENT, IN_CELL, IN_DASK, MODULES),
        "signal 7 (SIGBUS) at line 4 of the cell with f",
    ),
    "a function by value": (text("Aborted", CURRENT, BY_VALUE), "signal 6 (SIGABRT) at line 9 of slow"),
    "3.11": (text("Floating point exception", CURRENT, USERS), "signal 8 (SIGFPE) at fit.py:15 in solve"),
    "3.13": (text("Floating-point exception", CURRENT, USERS), "signal 8 (SIGFPE) at fit.py:15 in solve"),
    "instruction": (text("Illegal instruction", CURRENT, USERS), "signal 4 (SIGILL) at fit.py:15 in solve"),
    "of Python itself": (
        text("no lock", "Python runtime state: initialized\n\n", WAITS, CURRENT, USERS),
        "signal 6 (SIGABRT), no lock at fit.py:15 in solve",
    ),
    "a thread of C": (text("Segmentation fault", WAITS, MODULES), "signal 11 (SIGSEGV)"),
    "no frame": (text("Aborted", CURRENT, "  <no Python frame>\n"), "signal 6 (SIGABRT)"),
    "3.14": (
        text(
            "Segmentation fault",
            "Current thread 0x00007fe0bde2fb80 [python] (most recent call first):\n",
            USERS,
            "\nCurrent thread's C stack trace (most recent call first):\n",
            '  Binary file "/usr/bin/python3.14", at _Py_DumpStack+0x48 [0x5f]\n',
        ),
        "signal 11 (SIGSEGV) at fit.py:15 in solve",
    ),
    "in the workbench, by a signal of another process": (
        text("Segmentation fault", CURRENT, f'  File "{lost_ranks.__file__}", line 45 in run\n'),
        "signal 11 (SIGSEGV)",
    ),
    "not of ASCII": (
        text("Aborted", CURRENT, '  File "/home/user/fu\\xdf\\U0001f600.py", line 3 in gr\\xf6\\u0161e\n'),
        "signal 6 (SIGABRT) at fuß\U0001f600.py:3 in gröše",
    ),
    "in a line of output": (
        START + "40 %" + "Fatal Python error: Aborted\n\n" + CURRENT + USERS,
        "signal 6 (SIGABRT) at fit.py:15 in solve",
    ),
}


@pytest.mark.parametrize(("log", "words"), CRASHES.values(), ids=CRASHES)
def test_the_signal_and_the_innermost_line_of_the_user_are_named(log, words):
    assert lost_ranks.describe(log) == f" with {words}"


@pytest.mark.parametrize(
    "log",
    [
        "",
        START,
        START + "killed\n",
        text("Segmentation fault", CURRENT, USERS) + START,
        text("Segmentation fault", CURRENT, USERS) + "a child of the rank has crashed, and the rank has not\n",
        START + "Fatal Python error: ",
    ],
    ids=["no log", "no output", "another end", "an earlier start", "a child", "cut"],
)
def test_a_log_that_does_not_end_in_a_crash_says_nothing(log):
    assert lost_ranks.describe(log) == ""


async def test_the_text_of_the_log_is_the_cause(tmp_path):
    log = tmp_path / "rank-1.log"
    assert await lost_ranks.read(log) == ""
    log.write_text(text("Segmentation fault", CURRENT, USERS))
    assert await lost_ranks.read(log) == " with signal 11 (SIGSEGV) at fit.py:15 in solve"


async def test_a_log_that_cannot_be_read_in_time_is_no_cause(tmp_path, monkeypatch):
    log = tmp_path / "rank-1.log"
    os.mkfifo(log)  # an open waits for a writer
    monkeypatch.setattr(lost_ranks, "_WITHIN", 0.01)
    try:
        async with asyncio.timeout(DEADLINE):
            assert await lost_ranks.read(log) == ""
    finally:
        os.close(os.open(log, os.O_RDWR | os.O_NONBLOCK))


async def test_the_text_of_a_child_that_has_crashed_long_ago_is_not_the_cause(tmp_path):
    log = tmp_path / "rank-1.log"
    log.write_text(text("Segmentation fault", CURRENT, USERS))
    long_ago = time.time() - 600
    os.utime(log, (long_ago, long_ago))
    assert await lost_ranks.read(log) == ""
