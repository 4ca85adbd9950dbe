"""The table of all metrics, from which messages, arrays, frames, OpenMetrics and the dashboard derive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TICK = 0.5
"""Seconds between two samples."""

KEPT = 600.0
"""Seconds of samples that the head keeps."""

BY_NODE = 64
"""In worlds with more ranks than this, traffic is counted between nodes, not between ranks, and each rank sends fewer
samples of operations: the work of the head must grow with the ranks, not with their pairs."""


@dataclass(frozen=True)
class Column:
    """A number of every rank, or of every node, over one tick.

    Attributes
    ----------
    name : str
        Name of the column in tables, and part of the name of its OpenMetrics family.
    unit : str
        End of the name of its OpenMetrics family; empty for a plain number.
    help : str
        Description.
    source : {"gauge", "counter", "head"}
        ``gauge``: sampled directly. ``counter``: sampled as a total; the number is its growth per second.
        ``head``: computed by the head.
    """

    name: str
    unit: str
    help: str
    source: Literal["gauge", "counter", "head"] = "gauge"


RANK_COLUMNS = (
    Column("cpu", "percent", "CPU time, in percent of one core", "counter"),
    Column("memory", "bytes", "Resident memory"),
    Column("threads", "", "Threads of the process"),
    Column("read", "bytes_per_second", "Bytes read from files", "counter"),
    Column("written", "bytes_per_second", "Bytes written to files", "counter"),
    Column("compute", "ratio", "Part of the time in user code outside MPI", "head"),
    Column("mpi", "ratio", "Part of the time in MPI, without the time spent waiting for other ranks", "head"),
    Column("waiting", "ratio", "Part of the time in MPI spent waiting for other ranks", "head"),
    Column("idle", "ratio", "Part of the time without any code of users", "head"),
    Column("tasks", "", "Dask tasks that the rank executes"),
    Column("sent", "bytes_per_second", "Bytes sent to other ranks with Dask's transport and with MPI calls", "head"),
    Column(
        "received",
        "bytes_per_second",
        "Bytes received from other ranks with Dask's transport and with MPI calls",
        "head",
    ),
    Column("gpu", "percent", "Load of the GPUs that the rank sees, their mean; ranks that share a GPU have its load"),
    Column("gpu_memory", "bytes", "Memory in use of the GPUs that the rank sees, by all processes"),
    Column("gpu_memory_total", "bytes", "Memory of the GPUs that the rank sees"),
)
"""All numbers of a rank.

The sum of ``compute``, ``mpi``, ``waiting`` and ``idle`` is 1. `workbench.metrics.system.process_usage` measures the
numbers of a process, `workbench.metrics.sampler` the others, and `workbench.metrics.world_state` computes those of the
head.
"""

NODE_COLUMNS = (
    Column("memory", "bytes", "Memory in use"),
    Column("memory_total", "bytes", "Memory of the node"),
    Column("net_received", "bytes_per_second", "Bytes received by the network", "counter"),
    Column("net_sent", "bytes_per_second", "Bytes sent by the network", "counter"),
    Column("read", "bytes_per_second", "Bytes read from disks", "counter"),
    Column("written", "bytes_per_second", "Bytes written to disks", "counter"),
)
"""All numbers of a node."""

RANK = tuple(column.name for column in RANK_COLUMNS)
"""Names of the numbers of a rank, in the order of every array of them."""

NODE = tuple(column.name for column in NODE_COLUMNS)
"""Names of the numbers of a node, in the order of every array of them."""

COUNTERS = frozenset(column.name for column in RANK_COLUMNS if column.source == "counter")
"""Numbers of a rank that are sampled as totals."""

PARTS = ("busy", "stuck", "waits", "closed")
"""Fractions of the tick, from which the head computes ``compute``, ``mpi``, ``waiting`` and ``idle``.

``busy``: in code of users; ``stuck``: in the MPI operation in progress; ``waits``: in finished operations that only
wait; ``closed``: in other finished operations.
"""

SAMPLED = (*(column.name for column in RANK_COLUMNS if column.source != "head"), *PARTS)
"""Numbers that a rank samples, in the order of the message of its node."""

KINDS = ("dask", "mpi")
"""Senders of traffic: Dask's transport between ranks, or the communicators of SPMD calls and cells."""

OPERATION_COLUMNS = (
    Column("calls", "", "Calls of an MPI operation since the start"),
    Column("bytes", "", "Bytes sent by an MPI operation since the start"),
    Column("seconds", "", "Seconds of all ranks in an MPI operation since the start"),
    Column("waiting", "", "Seconds of all ranks in an MPI operation spent waiting for other ranks, since the start"),
)
"""All numbers of an MPI operation, of all ranks together."""

OPERATION = tuple(column.name for column in OPERATION_COLUMNS)
"""Names of the numbers of an MPI operation, in the order of every array of them."""

TRAFFIC_COLUMNS = (
    Column("bytes", "", "Bytes sent from one place to another since the start"),
    Column("messages", "", "Messages sent from one place to another since the start"),
)
"""The numbers of a pair of places, which are ranks or nodes."""
