"""The ``mpi://`` protocol: Dask's messages between the ranks of one MPI world, with large frames over MPI.

Doors: `buffer_pool`, `certificates`, `listener`, `unix_http`.

The protocol is a plug-in for distributed (entry point group ``distributed.comm.backends``). On the socket it is
distributed's own TCP or TLS protocol, which peers outside the world also use. Between two processes that have joined
the same world, frames of at least ``workbench.comm.threshold`` bytes are sent over MPI, from the sender's memory into
a buffer of the receiver's pool.

The functions import MPI and distributed when they are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI

    from workbench.comm.buffer_pool import Pool
    from workbench.comm.member import Membership


def join(communicator: MPI.Intracomm, world: str) -> None:
    """Make this process a member of a world: ``mpi://`` then sends large frames to other members over MPI.

    Parameters
    ----------
    communicator
        A communicator of all members, which only the transport uses.
    world
        Name of the world: the same for all members, and different from the name of each other world, also a later one.

    Raises
    ------
    RuntimeError
        If MPI does not support MPI_THREAD_MULTIPLE, or this process has already joined a world.
    """
    from workbench.comm import member

    member.join(communicator, world)


def configure_memory(budget: int) -> None:
    """Set how much memory this process may use, in bytes. The default is the memory of the host."""
    from workbench.comm import buffer_pool

    buffer_pool.configure(budget)


def guard() -> None:
    """Limit the time and the files of connections to this process that do not present the cluster's certificate.

    This process also tries again to connect to a peer that ends during the attempt.
    """
    from workbench.comm import listener

    listener.guard_listeners()
    listener.use_retrying_connector()


def leave(timeout: float) -> bool:
    """End the membership of this process, after its event loop has ended.

    Parameters
    ----------
    timeout
        Seconds to wait for outstanding transfers.

    Returns
    -------
    bool
        Whether all transfers are complete, so that MPI may be finalized.
    """
    from workbench.comm import member, progress_engine

    if member.current() is None:
        return True
    done = progress_engine.finish(timeout)
    member.leave()
    return done


def membership() -> Membership | None:
    """Return the membership of this process in a world, or None."""
    from workbench.comm import member

    return member.current()


def traffic() -> list[dict[str, Any]]:
    """Return the traffic of this process over ``mpi://``, one row per peer and way.

    Returns
    -------
    list of dict
        ``peer`` (rank in the same world, or ``"outside"``), ``way`` (``"mpi"`` or ``"socket"``), and
        ``messages``, ``bytes`` and ``seconds``, each with the prefixes ``sent_`` and ``received_``. A message with
        frames over MPI counts on both ways.
    """
    from workbench.comm import member

    return member.traffic_table()


def sizes() -> list[int]:
    """Return how many messages this process has sent to ranks of the same world over ``mpi://``, by size.

    Returns
    -------
    list of int
        The bins of `workbench.mpi.counters.size_bin`. Frames over MPI and their header on the socket are two messages.
    """
    from workbench.comm import member

    return member.message_sizes()


def receive_pool() -> Pool:
    """Return the memory pool for messages that this process receives."""
    from workbench.comm import buffer_pool

    return buffer_pool.pool()


def summary() -> dict[str, int]:
    """Return the bytes sent and received over MPI and on sockets, and the sizes of the receive pool."""
    pool = receive_pool().statistics()
    counts = {"pool_leased": pool.leased, "pool_idle": pool.idle, "pool_reused": pool.reused}
    for row in traffic():
        for direction in ("sent", "received"):
            key = f"{row['way']}_{direction}"
            counts[key] = counts.get(key, 0) + row[f"{direction}_bytes"]
    return counts
