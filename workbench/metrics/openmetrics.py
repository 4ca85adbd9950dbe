"""What was measured in the text format of OpenMetrics 1.0 (openmetrics.io), which Prometheus and others read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from workbench.metrics.frames import places
from workbench.metrics.schema import KINDS, NODE, OPERATION, RANK
from workbench.mpi.operation_names import OPERATIONS

if TYPE_CHECKING:
    from workbench.metrics.update import Update

_UNITS = {
    "cpu": "percent",
    "memory": "bytes",
    "memory_total": "bytes",
    "read": "bytes_per_second",
    "written": "bytes_per_second",
    "sent": "bytes_per_second",
    "received": "bytes_per_second",
    "net_sent": "bytes_per_second",
    "net_received": "bytes_per_second",
    "compute": "ratio",
    "mpi": "ratio",
    "waiting": "ratio",
    "idle": "ratio",
}


def text(update: Update) -> str:
    """Return how things stand: the last tick of ranks and nodes, and totals of traffic and operations.

    Returns
    -------
    str
        Lines as ``workbench_rank_cpu_percent{cluster="mpi",world="0",rank="3",host="n1"} 98.5``, and ``# EOF``.
    """
    lines: list[str] = []
    for family, kind, samples in _families(update):
        lines.append(f"# TYPE {family} {kind}")
        suffix = "_total" if kind == "counter" else ""
        lines += [f"{family}{suffix}{{{labels}}} {value!r}" for labels, value in samples]
    return "\n".join([*lines, "# EOF", ""])


def _families(update: Update) -> Iterator[tuple[str, str, Iterable[tuple[str, float]]]]:
    layout, cluster = update.layout, str(update.state.get("name", ""))
    ranks = [
        _labels(cluster=cluster, world=its.world, rank=its.rank, host=layout.nodes[its.node]) for its in layout.ranks
    ]
    nodes = [_labels(cluster=cluster, host=host) for host in layout.nodes]
    for room, names, labels, values in (("rank", RANK, ranks, update.rank), ("node", NODE, nodes, update.node)):
        if len(values):
            for column, name in enumerate(names):
                family = "_".join(filter(None, ("workbench", room, name, _UNITS.get(name))))
                yield family, "gauge", _known(labels, values[-1, :, column])
    between = places(update)
    pairs = [
        _labels(cluster=cluster, kind=kind, source=source, target=target)
        for kind in KINDS
        for source in between
        for target in between
    ]
    for what, totals in (("bytes", update.traffic.bytes), ("messages", update.traffic.messages)):
        yield f"workbench_traffic_{what}", "counter", _known(pairs, totals.ravel())
    operations = [_labels(cluster=cluster, operation=name) for name in OPERATIONS]
    used = update.operations[:, 0] > 0
    for column, what in enumerate(OPERATION):
        samples = np.where(used, update.operations[:, column], np.nan)
        yield f"workbench_operation_{what}", "counter", _known(operations, samples)


def _known(
    labels: Iterable[str], values: np.ndarray[tuple[int, ...], np.dtype[np.floating]]
) -> list[tuple[str, float]]:
    return [(label, value) for label, value in zip(labels, values.tolist(), strict=True) if not math.isnan(value)]


def _labels(**labels: object) -> str:
    escaped = {
        name: str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, value in labels.items()
    }
    return ",".join(f'{name}="{value}"' for name, value in escaped.items())
