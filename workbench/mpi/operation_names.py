"""Operations of a communicator that are counted separately, by their names in mpi4py."""

from __future__ import annotations

COLLECTIVE = (
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall",
    "Alltoallv", "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan",
)  # fmt: skip
"""Operations of all ranks on buffers."""

NEIGHBORS = tuple(f"Neighbor_{name}" for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"))
"""Operations of neighbors in a topology on buffers."""

MAKERS = (
    "Dup", "Dup_with_info", "Clone", "Idup", "Create", "Split", "Split_type", "Create_cart", "Create_graph",
    "Create_dist_graph", "Create_dist_graph_adjacent", "Sub",
)  # fmt: skip
"""Operations of all ranks that make a communicator."""

OPERATIONS = (
    "other",
    *COLLECTIVE,
    *NEIGHBORS,
    *(f"I{name.lower()}" for name in (*COLLECTIVE, *NEIGHBORS)),
    *(f"{name}_init" for name in (*COLLECTIVE, *NEIGHBORS)),
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
"""Operations of a communicator that are counted separately, by their names in mpi4py. All others are ``"other"``."""

WAITS = frozenset(
    ("Wait", "Waitany", "Waitall", "Waitsome", "wait", "waitany", "waitall", "waitsome", "Probe", "probe", "Mprobe",
     "mprobe")
)  # fmt: skip
"""Operations that only wait: all their time counts as wait time, including the time of the transfer.

To separate the two, a synchronization would need the time of the post besides the time of the wait, and it has only one
time of entry."""
