"""Ends a process when its parent dies, also when the parent was killed with SIGKILL.

The head ties ``mpiexec`` to itself, a rank ties itself to the daemon that started it. So no world outlives
its head, however the head ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1


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


def main() -> None:
    """``tether.py PARENT COMMAND ...``: tie to PARENT, then become COMMAND."""
    tie(int(sys.argv[1]), signal.SIGTERM)
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606  (no shell is the point)


if __name__ == "__main__":
    main()
