"""What is measured, by name: the order of columns wherever numbers travel or are kept."""

from __future__ import annotations

TICK = 0.5
"""Seconds between two samples."""

KEPT = 600.0
"""Seconds of samples that are kept, so that one can look back."""

BY_NODE = 64
"""Ranks of a world above which traffic is told between nodes, not between ranks."""

RANK = (
    "cpu", "memory", "threads", "read", "written", "compute", "mpi", "waiting", "idle", "tasks", "sent", "received",
)  # fmt: skip
"""Of a rank, over one tick.

``cpu``: percent of one core; ``memory``: bytes, resident; ``threads``: number; ``read``, ``written``: bytes a second
from and to files; ``compute``, ``mpi``, ``waiting``, ``idle``: parts of the time that come to 1, of which ``mpi`` is
the time in MPI less that for which it has waited for other ranks; ``tasks``: Dask tasks that it executes; ``sent``,
``received``: bytes a second to and from other ranks, by Dask's transport and by MPI together.
"""

NODE = ("memory", "memory_total", "net_received", "net_sent", "read", "written")
"""Of a node, over one tick: ``memory`` and ``memory_total`` in bytes, everything else in bytes a second."""

KINDS = ("dask", "mpi")
"""Who sends: Dask's transport between ranks, or calls on all ranks and cells by their communicator."""

OPERATION = ("calls", "bytes", "seconds", "waiting")
"""Of an operation: ``bytes`` that the rank has sent by it, ``seconds`` in it, ``waiting``: the part of these in which
other ranks had not come yet."""

SIZES = 48
"""Bins of message sizes: bin 0 is for empty messages, bin b for 2**(b - 1) to 2**b - 1 bytes, the last for the rest."""

SIZE_BEGINS = (0, *(1 << (number - 1) for number in range(1, SIZES)))
"""The fewest bytes of the messages of each bin."""


def size_bin(nbytes: int) -> int:
    """Return the bin of a message of so many bytes."""
    # not min(): this is done for each message
    return number if (number := nbytes.bit_length()) < SIZES else SIZES - 1


COLLECTIVE = (
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall",
    "Alltoallv", "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan",
)  # fmt: skip
"""Operations of all ranks on buffers."""

NEIGHBOURS = tuple(f"Neighbor_{name}" for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"))
"""Operations of the neighbours in a topology on buffers."""

MAKERS = (
    "Dup", "Dup_with_info", "Clone", "Idup", "Create", "Split", "Split_type", "Create_cart", "Create_graph",
    "Create_dist_graph", "Create_dist_graph_adjacent", "Sub",
)  # fmt: skip
"""Operations of all ranks that make a communicator."""

OPERATIONS = (
    "other",
    *COLLECTIVE,
    *NEIGHBOURS,
    *(f"I{name.lower()}" for name in (*COLLECTIVE, *NEIGHBOURS)),
    *(f"{name}_init" for name in (*COLLECTIVE, *NEIGHBOURS)),
    "barrier", "bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan",
    "neighbor_allgather", "neighbor_alltoall",
    "Send", "Bsend", "Ssend", "Rsend", "Recv", "Sendrecv", "Sendrecv_replace", "Probe", "Mprobe",
    "send", "bsend", "ssend", "recv", "sendrecv", "probe", "mprobe",
    "Isend", "Ibsend", "Issend", "Irsend", "Irecv", "Isendrecv", "Isendrecv_replace",
    "isend", "ibsend", "issend", "irecv",
    "Send_init", "Bsend_init", "Ssend_init", "Rsend_init", "Recv_init", "Psend_init", "Precv_init",
    "Start", "Startall", "Wait", "Waitany", "Waitall", "Waitsome", "wait", "waitany", "waitall", "waitsome",
    *MAKERS, "Create_group", "Agree", "Iagree", "Shrink", "Ishrink", "Iflush_buffer",
)  # fmt: skip
"""Operations of a communicator that are told apart, by the names that mpi4py has for them. All else is ``"other"``."""

WAITS = frozenset(
    ("Wait", "Waitany", "Waitall", "Waitsome", "wait", "waitany", "waitall", "waitsome", "Probe", "probe", "Mprobe",
     "mprobe")
)  # fmt: skip
"""Operations that do nothing but wait: all their time is waiting, also for bytes on their way.

To tell these apart would take when others have posted their part, beside when this rank began to wait: of a meeting
there is one time of entry."""
