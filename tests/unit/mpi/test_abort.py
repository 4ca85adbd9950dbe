"""The end of a whole world where MPI does not end the world."""

from __future__ import annotations

import signal
import subprocess
import sys

from support.patience import DEADLINE

_HANGING = """
import sys, threading, types

world = types.SimpleNamespace(Abort=lambda code: threading.Event().wait())
sys.modules["mpi4py"] = types.SimpleNamespace(
    rc=types.SimpleNamespace(),
    MPI=types.SimpleNamespace(COMM_WORLD=world, Is_initialized=lambda: True, Is_finalized=lambda: False),
)
from workbench.mpi import abort

abort._ABORT_TIMEOUT_S = 0.01
abort.abort_world(int(sys.argv[1]))
"""


def test_an_abort_that_hangs_ends_the_launcher() -> None:
    with subprocess.Popen(["sleep", str(DEADLINE)]) as launcher:
        try:
            rank = subprocess.run([sys.executable, "-c", _HANGING, str(launcher.pid)], timeout=DEADLINE, check=False)
            assert launcher.wait(DEADLINE) == -signal.SIGTERM
        finally:
            launcher.kill()

    assert rank.returncode == 1
