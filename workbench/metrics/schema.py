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
