"""The ``mpi://`` protocol: Dask's messages between the ranks of one MPI world, large frames by MPI.

It is a plug-in for distributed (entry point group ``distributed.comm.backends``), and on the socket it is
distributed's own TCP or TLS protocol, which everybody outside the world goes on to speak with it. Between two
processes that have joined the same world, frames of at least ``workbench.comm.threshold`` bytes go by MPI,
from the sender's memory into a buffer of the receiver's pool.

Nothing here loads MPI or distributed before it is used: the names below do their imports themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI

    from workbench.comm.buffer_pool import Pool
    from workbench.comm.member import Membership


def join(communicator: MPI.Intracomm, world: str) -> None:
    """Make this process a member of a world: from now on ``mpi://`` sends large frames to other members by MPI.

    Parameters
    ----------
    communicator
        Used by the transport alone, from now on. All members have it; the rank in it is the member's.
    world
        Name of the world, the same for all members and for no other world, also not for one started later.

    Raises
    ------
    RuntimeError
        If MPI does not give MPI_THREAD_MULTIPLE, or this process has joined a world already.
    """
    from workbench.comm import member

    member.join(communicator, world)


def configure_memory(budget: int) -> None:
    """Tell how much memory this process may use, in bytes; without, it is that of its host."""
    from workbench.comm import receive_memory

    receive_memory.configure(budget)


def guard() -> None:
    """Have connections to this process that do not show the cluster's certificate cost little time and space."""
    from workbench.comm import listener

    listener.guard()


def leave(timeout: float) -> bool:
    """End the membership of this process, after its event loop has ended.

    Parameters
    ----------
    timeout
        Seconds to wait for transfers that are on their way.

    Returns
    -------
    bool
        Whether no transfer is outstanding, so that MPI may be finalised.
    """
    from workbench.comm import member, progress_engine

    if member.current() is None:
        return True
    done = progress_engine.finish(timeout)
    member.leave()
    return done


def membership() -> Membership | None:
    """Return what world this process is a member of, or None."""
    from workbench.comm import member

    return member.current()


def traffic() -> list[dict[str, Any]]:
    """Return what this process has sent and received over ``mpi://``, a row for each peer and way.

    Returns
    -------
    list of dict
        ``peer`` (rank in the same world, or ``"outside"``), ``way`` (``"mpi"`` or ``"socket"``), and
        ``messages``, ``bytes`` and ``seconds``, each ``sent_`` and ``received_``. A message with
        frames by MPI counts on both ways.
    """
    from workbench.comm import peer_traffic

    return peer_traffic.table()


def sizes() -> list[int]:
    """Return how many messages this process has sent to ranks of its world over ``mpi://``, by size.

    Returns
    -------
    list of int
        Bins as of `workbench.mpi.size_bins.size_bin`; what went by MPI and its header on the socket are two.
    """
    from workbench.comm import peer_traffic

    return peer_traffic.sizes()


def receive_pool() -> Pool:
    """Return the pool that this process receives into."""
    from workbench.comm import receive_memory

    return receive_memory.pool()


def summary() -> dict[str, int]:
    """Return bytes sent and received by MPI and on sockets, and what the receive pool holds, in short."""
    held = receive_pool().statistics()
    counts = {"pool_leased": held.leased, "pool_idle": held.idle, "pool_reused": held.reused}
    for row in traffic():
        for direction in ("sent", "received"):
            key = f"{row['way']}_{direction}"
            counts[key] = counts.get(key, 0) + row[f"{direction}_bytes"]
    return counts
