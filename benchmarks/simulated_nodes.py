"""Simulated nodes: the messages that their ranks would send the head, twice per second."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.metrics.node_message import OPERATION_TOTALS, SENT, SIZED
from workbench.metrics.schema import KINDS, NODE, SAMPLED
from workbench.mpi.counters import OPERATIONS, SIZES

# Operations of each rank, and synchronizations that it sends per tick: as many as those of a rank in a training.
_USED, _MET = ("Allreduce", "Bcast", "Sendrecv", "bcast", "Barrier", "Wait"), 8


def host(node: int) -> str:
    """Return the name of a node."""
    return f"node{node:03}"


def messages(node: int, nodes: int, ranks: int, *, cores: int = 16) -> Iterator[dict[str, Any]]:
    """Return the messages of one node, one each tick, for ever: everything has changed at each tick.

    Parameters
    ----------
    node
        Its number, of `nodes`.
    ranks
        Of each node.
    """
    rng = np.random.default_rng(node)
    mine = np.arange(node * ranks, (node + 1) * ranks)
    # In worlds of this size the first rank of each node reports what is sent.
    pairs = np.array(list(itertools.product(mine, np.arange(nodes) * ranks, range(len(KINDS)))), np.float64)
    used = np.array(list(itertools.product(mine, map(OPERATIONS.index, _USED))), np.float64)
    kinds = np.array(list(itertools.product(mine, range(len(KINDS)))), np.float64)
    for tick in itertools.count(1):
        now = time.time()
        sent = np.column_stack([pairs, np.full((len(pairs), len(SENT) - 3), tick * 1e6)])
        operations = np.column_stack([used, np.full((len(used), len(OPERATION_TOTALS) - 2), float(tick))])
        sizes = np.column_stack([kinds, np.full((len(kinds), SIZES), float(tick))])
        who = np.array([(rank, 7, tick * _MET + met, 1) for rank in mine for met in range(_MET)], np.int64)
        begin = now - 0.5 + np.tile(np.arange(_MET), ranks) * 0.5 / _MET + rng.random(len(who)) * 0.01
        yield {
            "world": 0,
            "start": "",
            "host": host(node),
            "node": np.ones(len(NODE), np.float32).tobytes(),
            "cores": rng.integers(0, 101, cores, dtype=np.uint8).tobytes(),
            "ranks": mine.tolist(),
            "values": rng.random((ranks, len(SAMPLED))).tobytes(),
            "now": [("KMeans.fit", "Allreduce", now, 0.0)] * ranks,
            "sent": sent.tobytes(),
            "operations": operations.tobytes(),
            "sizes": sizes[:, : len(SIZED)].tobytes(),
            "ended": [],
            "who": who.tobytes(),
            "when": np.column_stack([begin, begin + 0.012]).tobytes(),
        }
