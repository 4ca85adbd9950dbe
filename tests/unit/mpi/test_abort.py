"""The end of a whole world where MPI does not end the world."""

from __future__ import annotations

import signal
import subprocess
import sys

from support.patience import DEADLINE

_HANGING = """
import ctypes, sys, threading, types

world = types.SimpleNamespace(Abort=lambda code: {wait})
sys.modules["mpi4py"] = types.SimpleNamespace(
    rc=types.SimpleNamespace(),
    MPI=types.SimpleNamespace(COMM_WORLD=world, Is_initialized=lambda: True, Is_finalized=lambda: False),
)
from workbench.mpi import context as abort

abort._ABORT_TIMEOUT_S, abort._EXIT_DELAY_S = 0.01, {delay}
abort.abort_world(int(sys.argv[1]))
"""


def _ends(wait: str, delay: float, launcher: int) -> None:
    program = _HANGING.format(wait=wait, delay=delay)
    rank = subprocess.run([sys.executable, "-c", program, str(launcher)], timeout=DEADLINE, check=False)
    assert rank.returncode == 1


def test_an_abort_that_hangs_ends_the_launcher() -> None:
    with subprocess.Popen(["sleep", str(DEADLINE)]) as launcher:
        try:
            _ends("threading.Event().wait()", DEADLINE, launcher.pid)
            assert launcher.wait(DEADLINE) == -signal.SIGTERM
        finally:
            launcher.kill()


def test_an_abort_that_hangs_with_the_lock_of_the_interpreter_ends_the_process() -> None:
    with subprocess.Popen(["sleep", str(DEADLINE)]) as launcher:
        try:
            # A function of PyDLL keeps the lock, as mpi4py's Abort does.
            _ends("ctypes.PyDLL(None).pause()", 0.01, launcher.pid)
        finally:
            launcher.kill()
