"""Ends a process when its parent dies, also when the parent was killed with SIGKILL.

A rank ties itself to the daemon that started it. Between the head and ``mpiexec`` stands this module as a process of
its own, tied to the head: it ends ``mpiexec``, kills it if that hangs, and removes what it leaves. So no world
outlives its head, however the head ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_AWAITED = {signal.SIGTERM, signal.SIGCHLD}
# Seconds for mpiexec to end its ranks: some hang when they are asked while their ranks are ending by themselves.
_PATIENCE = 3.0


def tie(parent: int, number: signal.Signals) -> None:
    """Have the kernel send this process signal `number` when its parent is gone.

    Parameters
    ----------
    parent
        Pid that the parent is expected to have.
    number
        Signal to be sent.

    Notes
    -----
    Linux: ``prctl(PR_SET_PDEATHSIG)``, which holds across ``exec`` and works while the process is stuck in C
    code. Elsewhere nothing happens here: use `watch`.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        # It died before the call above.
        os.kill(os.getpid(), number)


def watch(parent: int, interval: float = 1.0) -> None:
    """End this process when its parent is another one than `parent`; from a thread, for systems without `tie`."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(interval)
        os._exit(1)

    threading.Thread(target=look, name="tether", daemon=True).start()


def main() -> NoReturn:
    """``tether.py PARENT FOLDER COMMAND ...``: run COMMAND for as long as PARENT lives; FOLDER goes with PARENT.

    It ends COMMAND on SIGTERM, or when PARENT has died, and ends as COMMAND does. If it is killed, so is COMMAND.
    """
    parent, folder, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    # Blocked and waited for, they cannot come at a bad moment.
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    tie(parent, signal.SIGTERM)
    this, child = os.getpid(), os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
        tie(this, signal.SIGKILL)
        os.execv(command[0], command)  # noqa: S606  (no shell is the point)
    status = None
    while status is None:
        status = _end(child) if signal.sigwait(_AWAITED) == signal.SIGTERM else _status(child)
    if os.getppid() != parent:
        _remove(folder)
    if os.WIFSIGNALED(status):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
        os.kill(this, os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _status(child: int) -> int | None:
    """Return how a child has ended, or None while it runs."""
    pid, status = os.waitpid(child, os.WNOHANG)
    return status if pid else None


def _end(child: int) -> int:
    """Ask a child to end, kill it if it does not, and return how it has ended."""
    os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if (status := _status(child)) is not None:
            return status
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _remove(folder: str) -> None:
    import shutil
    from pathlib import Path

    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # other worlds of the cluster are there yet
        Path(folder).parent.rmdir()


if __name__ == "__main__":
    main()
