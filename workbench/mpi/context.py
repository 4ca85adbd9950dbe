"""The place of this process in its MPI world, if it is a rank."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from mpi4py import MPI

    from workbench.mpi.threads import SpmdThread


@dataclass(frozen=True)
class RankContext:
    """One rank's place in its MPI world and its communicators.

    Notes
    -----
    The communicators are duplicates of ``MPI_COMM_WORLD`` for separate uses, so that their messages cannot be confused;
    ``MPI_COMM_WORLD`` itself is not used. If `threads` is not ``multiple``, only the SPMD thread may use them.
    """

    rank: int
    """Rank in the world, and name of the worker in world 0."""
    size: int
    """Number of ranks of the world."""
    world: int
    """Index of the world in its cluster."""
    nodes: tuple[int, ...]
    """For each rank the first rank on its node."""
    threads: str
    """Thread level of MPI: ``single``, ``funneled``, ``serialized`` or ``multiple``."""
    library: str
    """Version string of the MPI library."""
    transport: MPI.Intracomm
    """Communicator for frames of the Dask transport."""
    spmd: MPI.Intracomm
    """Communicator for SPMD calls."""
    cells: MPI.Intracomm
    """Communicator for ``%%mpi`` cells."""
    spmd_thread: SpmdThread
    """The thread that makes the rank's MPI calls."""

    @property
    def node_ranks(self) -> int:
        """Ranks of the world on this node."""
        return self.nodes.count(self.nodes[self.rank])


# The context of this process, if the process is a rank.
_contexts: list[RankContext] = []


def is_rank() -> bool:
    """Return whether this process is a rank.

    Returns
    -------
    bool
        False in the notebook and in the head.
    """
    return bool(_contexts)


def is_in_cell() -> bool:
    """Return whether a ``%%mpi`` cell calls this, because no other code runs on the main thread of a rank."""
    return is_rank() and threading.current_thread() is threading.main_thread()


def current() -> RankContext:
    """Return the context of the rank that this code runs on.

    Returns
    -------
    RankContext
        The context.

    Raises
    ------
    RuntimeError
        If this process is not a rank, for example in the notebook.
    """
    if not _contexts:
        raise RuntimeError("this process is not a rank of a cluster. Call it on a rank, for example with client.run.")
    return _contexts[0]


def everyone() -> MPI.Intracomm:
    """Return the communicator of all ranks, for which ``MPI.COMM_WORLD`` is a name only outside calls and cells."""
    from mpi4py import MPI

    return cast("MPI.Intracomm", vars(MPI)["COMM_WORLD"])


def enter(context: RankContext) -> None:
    """Make this process the rank of `context`; called one time, at the start of a rank."""
    _contexts[:] = [context]
