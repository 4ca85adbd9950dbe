"""Metrics in the text format of OpenMetrics 1.0 (openmetrics.io), which Prometheus and others read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from workbench.metrics.frames import places
from workbench.metrics.schema import KINDS, NODE_COLUMNS, OPERATION_COLUMNS, RANK_COLUMNS, TRAFFIC_COLUMNS
from workbench.mpi.operation_names import OPERATIONS

if TYPE_CHECKING:
    from workbench.metrics.update import Update


def text(update: Update) -> str:
    """Return the last tick of ranks and nodes, and the totals of traffic and operations.

    Returns
    -------
    str
        Lines like ``workbench_rank_cpu_percent{cluster="mpi",world="0",rank="3",host="n1"} 98.5``, and ``# EOF``.
    """
    lines: list[str] = []
    for family, kind, description, samples in _families(update):
        lines += [f"# TYPE {family} {kind}", f"# HELP {family} {description}."]
        suffix = "_total" if kind == "counter" else ""
        lines += [f"{family}{suffix}{{{labels}}} {value!r}" for labels, value in samples]
    return "\n".join([*lines, "# EOF", ""])


def _families(update: Update) -> Iterator[tuple[str, str, str, Iterable[tuple[str, float]]]]:
    """Return the name, the type, the help and the samples of each family."""
    layout, cluster = update.layout, str(update.state.get("name", ""))
    ranks = [
        _labels(cluster=cluster, world=place.world, rank=place.rank, host=layout.nodes[place.node])
        for place in layout.ranks
    ]
    nodes = [_labels(cluster=cluster, host=host) for host in layout.nodes]
    for scope, columns, labels, values in (
        ("rank", RANK_COLUMNS, ranks, update.rank),
        ("node", NODE_COLUMNS, nodes, update.node),
    ):
        if len(values):
            for index, column in enumerate(columns):
                family = "_".join(filter(None, ("workbench", scope, column.name, column.unit)))
                yield family, "gauge", column.help, _valid(labels, values[-1, :, index])
    between = places(update)
    pairs = [
        _labels(cluster=cluster, kind=kind, source=source, target=target)
        for kind in KINDS
        for source in between
        for target in between
    ]
    for column, totals in zip(TRAFFIC_COLUMNS, (update.traffic.bytes, update.traffic.messages), strict=True):
        yield f"workbench_traffic_{column.name}", "counter", column.help, _valid(pairs, totals.ravel())
    operations = [_labels(cluster=cluster, operation=name) for name in OPERATIONS]
    used = update.operations[:, 0] > 0
    for index, column in enumerate(OPERATION_COLUMNS):
        samples = np.where(used, update.operations[:, index], np.nan)
        yield f"workbench_operation_{column.name}", "counter", column.help, _valid(operations, samples)


def _valid(
    labels: Iterable[str], values: np.ndarray[tuple[int, ...], np.dtype[np.floating]]
) -> list[tuple[str, float]]:
    return [(label, value) for label, value in zip(labels, values.tolist(), strict=True) if not math.isnan(value)]


def _labels(**labels: object) -> str:
    escaped = {
        name: str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, value in labels.items()
    }
    return ",".join(f'{name}="{value}"' for name, value in escaped.items())
