"""`Spawn` on a rank: refused at once where the new processes could not reach the ranks."""
# ruff: noqa: N802  (the names are mpi4py's)

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

from mpi4py import MPI

from workbench.errors import InvalidRequest

# Transports of Open MPI within a world on one host.
_LOCAL = {"self", "sm", "vader"}
# The function of mpi4py's executor that spawns, on a thread.
_SPAWNS = "_manager_spawn"


class SpawningComm(MPI.Intracomm):
    """A communicator that starts processes only if Open MPI can connect them."""

    def Spawn(self, *args: Any, **options: Any) -> MPI.Intercomm:
        """Start processes; raise InvalidRequest if they could not reach the ranks."""
        _check()
        return super().Spawn(*args, **options)

    def Spawn_multiple(self, *args: Any, **options: Any) -> MPI.Intercomm:
        """Start processes of several programs; raise InvalidRequest if they could not reach the ranks."""
        _check()
        return super().Spawn_multiple(*args, **options)


def _check() -> None:
    """Raise InvalidRequest where Open MPI waits for new processes, and then fails, or starts processes that stay."""
    transports = os.environ.get("OMPI_MCA_btl")  # noqa: SIM112  (its name)
    if transports is None or MPI.get_vendor()[0] != "Open MPI" or not _LOCAL.issuperset(transports.split(",")):
        return
    error = InvalidRequest(
        "MPI cannot start processes here, because the ranks of one host use only shared memory, which new processes "
        "cannot join. Tasks of Dask need no new processes. Or start the cluster with OMPI_MCA_btl=self,sm,tcp in its "
        "environment, and with --map-by :oversubscribe in workbench.mpi.extra-args. Open MPI then opens TCP ports, "
        "which do not check who connects."
    )
    _tell_executor(sys._getframe(), str(error))  # noqa: SLF001  (documented)
    raise error


def _tell_executor(frame: FrameType | None, reason: str) -> None:
    """Fail the futures of an `MPIPoolExecutor` that spawns: they would wait for its thread, which an error ends."""
    while frame is not None and frame.f_code.co_name != _SPAWNS:
        frame = frame.f_back
    if frame is not None:
        frame.f_locals["pool"].broken(reason)
