"""The MPI side of a rank: initialize, check the world, duplicate communicators, wait without spinning.

These functions import ``mpi4py.MPI``; no module that the kernel loads does.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.errors import LaunchError
from workbench.gpu.mpi_support import is_gpu_aware
from workbench.gpu.nvml import visible_gpus
from workbench.hints import Command
from workbench.mpi.context import RankContext
from workbench.mpi.threads import SpmdThread

if TYPE_CHECKING:
    from mpi4py import MPI

_THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")


def init_mpi(ranks: int, world: int, thread: SpmdThread) -> RankContext:
    """Initialize MPI and return this rank's context. Runs on the SPMD thread; collective.

    Raises
    ------
    LaunchError
        If the size of the MPI world is not the number of started ranks; most often each rank is a world of its own.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    # At exit an MPI_Finalize of one rank would wait for dead ranks, or end the other ranks.
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    level = MPI.Init_thread(_THREAD_LEVELS.index(mpi4py.rc.thread_level or "multiple"))
    everyone = MPI.COMM_WORLD
    library = MPI.Get_library_version().split(",")[0].strip("\0 \n")
    if everyone.size != ranks:
        raise LaunchError(
            f"the MPI world has {everyone.size} ranks, {ranks} were started: mpiexec and the library of mpi4py "
            f"({library}) do not belong together, or the launcher of the ranks does not support its interface (PMI).",
            hint=("Run ", Command("doctor"), ". In a Slurm job, try the setting workbench.mpi.launcher: mpiexec"),
        )
    node = everyone.Split_type(MPI.COMM_TYPE_SHARED)
    nodes = tuple(everyone.allgather(node.bcast(everyone.rank)))
    node.Free()
    return RankContext(
        rank=everyone.rank,
        size=everyone.size,
        world=world,
        nodes=nodes,
        threads=_THREAD_LEVELS[level],
        library=library,
        transport=everyone.Dup(),
        spmd=everyone.Dup(),
        cells=everyone.Dup(),
        spmd_thread=thread,
    )


def can_transport(context: RankContext) -> bool:
    """Return whether MPI can transport Dask's messages from the event loop's thread, at the same time as SPMD calls."""
    return context.threads == "multiple"


def broadcast_line(context: RankContext, read: Callable[[], str], deadline: float) -> str:
    """Return on every rank the line that `read` returns on rank 0. Runs on the SPMD thread; collective.

    Parameters
    ----------
    deadline
        Time (``time.monotonic``) by which each rank needs the line.
    """
    import numpy as np

    # Any address fits into 4 kB; a fixed size saves a second message with the length.
    buffer = np.zeros(4096, dtype=np.uint8)
    if context.rank == 0:
        line = read().encode()
        buffer[: len(line)] = bytearray(line)
    wait(context.spmd.Ibcast(buffer, root=0), deadline, "the scheduler's address from rank 0")
    return buffer.tobytes().rstrip(b"\0").decode()


def barrier(context: RankContext, deadline: float) -> None:
    """Return when all ranks have called it. Runs on the SPMD thread; collective."""
    wait(context.spmd.Ibarrier(), deadline, f"all {context.size} ranks of the world")


def wait(request: MPI.Request, deadline: float, event: str) -> None:
    """Wait for a request without occupying the core, which a blocking MPI call would do.

    Raises
    ------
    TimeoutError
        If the request is not complete at `deadline`.
    """
    pause = 0.0005
    while not request.Test():
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out while waiting for {event}; see the logs of the other ranks")
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def rank_info(context: RankContext) -> dict[str, Any]:
    """Return what a rank registers with the head: its place, process and MPI library."""
    import mpi4py
    import psutil
    from mpi4py import MPI

    return {
        "rank": context.rank,
        "size": context.size,
        "world": context.world,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "cores": psutil.cpu_count() or 1,
        "threads": context.threads,
        "library": context.library,
        "mpi4py": mpi4py.__version__,
        "gpus": [asdict(gpu) for gpu in visible_gpus()],
        "gpu_aware": is_gpu_aware(MPI),
    }
