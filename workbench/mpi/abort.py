"""End a whole MPI world from one of its ranks, even where ``MPI_Abort`` hangs."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
from typing import NoReturn

# Seconds for MPI to end the world, and seconds more until this process ends in any case.
_ABORT_TIMEOUT_S, _EXIT_DELAY_S = 5.0, 1.0


def abort_world(launcher: int | None) -> NoReturn:
    """End the world, and this process.

    Parameters
    ----------
    launcher
        Pid of the launcher's process that started this rank. The process gets SIGTERM if MPI does not end the world
        in 5 s: MPI does not notice the loss of a process that is not a rank yet, and ``MPI_Abort`` of two ranks at
        the same time can hang. None: no process gets a signal.

    Notes
    -----
    mpi4py holds the lock of the interpreter during ``MPI_Abort``, so no Python code runs if that hangs. The watchdog of
    `faulthandler`, which needs no lock, then ends this process, and the launcher reacts to the end of a rank.
    """
    from mpi4py import rc

    rc.initialize = False
    from mpi4py import MPI

    if MPI.Is_initialized() and not MPI.Is_finalized():
        faulthandler.dump_traceback_later(_ABORT_TIMEOUT_S + _EXIT_DELAY_S, exit=True, file=2)
        aborting = threading.Thread(target=MPI.COMM_WORLD.Abort, args=(1,), daemon=True)
        aborting.start()
        aborting.join(_ABORT_TIMEOUT_S)
    if launcher is not None:
        with contextlib.suppress(OSError):  # the launcher has ended meanwhile, or belongs to root
            os.kill(launcher, signal.SIGTERM)
    os._exit(1)
