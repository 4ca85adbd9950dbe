"""Operations of a communicator that are told apart, by the names that mpi4py has for them."""

from __future__ import annotations

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
