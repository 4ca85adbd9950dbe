"""Messages of nodes to the head, as `workbench.metrics.node_reporter` makes them, with what a test says."""

from __future__ import annotations

import numpy as np

from workbench.metrics.node_message import pack_rows
from workbench.metrics.schema import NODE, SAMPLED
from workbench.mpi.counters import OPERATIONS, SIZES


def joined(store, size=4, nodes=("a", "b"), *, world=0, start="first", cpus=lambda _: (0, 1)):
    """Have all ranks of a world join, in blocks of equal size on the nodes, of which each has one core more.

    By default a rank may use the first two of them.
    """
    for rank in range(size):
        node = rank * len(nodes) // size
        facts = {"size": size, "host": nodes[node], "cores": 2 + node, "cpus": cpus(rank), "start": start}
        store.joined(world, rank, facts)


def message(
    ranks,
    host="a",
    world=0,
    *,
    now=None,
    sent=(),
    operations=(),
    sizes=(),
    synchronizations=(),
    ended=(),
    cores=2,
    start="first",
    **values,
):
    """Return the message of a node.

    Parameters
    ----------
    sent
        Rank, peer, kind, bytes, messages.
    operations
        Rank, name, calls, bytes, seconds.
    synchronizations
        Rank, key, number, name, entered, left.
    ended
        As of `workbench.metrics.shared_slots.FinishedCall`, dicts.
    **values
        Of all ranks, of `SAMPLED`; 0 where nothing is said.
    """
    who = [(rank, key, number, OPERATIONS.index(name)) for rank, key, number, name, _, _ in synchronizations]
    return {
        "world": world,
        "start": start,
        "host": host,
        "node": np.arange(len(NODE), dtype=np.float32).tobytes(),
        "cores": np.full(cores, 50, np.uint8).tobytes(),
        "ranks": list(ranks),
        "values": np.array([[values.get(name, 0.0) for name in SAMPLED] for _ in ranks], np.float64).tobytes(),
        "now": now or [("", None, 0.0, 0.0)] * len(ranks),
        "sent": pack_rows(sent),
        "operations": pack_rows((rank, OPERATIONS.index(name), *counts) for rank, name, *counts in operations),
        "sizes": pack_rows((rank, kind, *[count] * SIZES) for rank, kind, count in sizes),
        "ended": list(ended),
        "who": np.array(who, np.int64).tobytes(),
        "when": np.array([its[4:] for its in synchronizations], np.float64).tobytes(),
    }
