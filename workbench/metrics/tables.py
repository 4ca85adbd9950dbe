"""Metrics as tidy frames, a row for each observation, and in the text format of OpenMetrics 1.0 (openmetrics.io)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import InvalidRequest
from workbench.metrics.schema import (
    KINDS,
    NODE,
    NODE_COLUMNS,
    OPERATION,
    OPERATION_COLUMNS,
    RANK,
    RANK_COLUMNS,
    TRAFFIC_COLUMNS,
)
from workbench.metrics.update import CallCost, percents
from workbench.mpi.counters import OPERATIONS, SIZE_BEGINS, SIZES

if TYPE_CHECKING:
    import pandas as pd

    from workbench.metrics.update import Update


# Columns of each record of a fit, before its values.
_FIT_COLUMNS = ("fit", "name", "time", "step")


def frame(update: Update, table: str) -> pd.DataFrame:
    """Return one table of the metrics.

    Parameters
    ----------
    update
        All metrics that the head keeps.
    table : {"ranks", "nodes", "cores", "traffic", "operations", "sizes", "fits", "calls"}
        ``ranks``, ``nodes``, ``cores``: the last ten minutes, two samples per second. ``traffic``, ``operations``,
        ``sizes``: totals since the start, of pairs of ranks (of nodes, with more than 64 ranks), of MPI
        operations and of message sizes. ``fits``: values logged by fits and `workbench.report`. ``calls``: the cost of
        the latest SPMD calls and cells, see `workbench.metrics.update.CallCost`.

    Returns
    -------
    pandas.DataFrame
        A row for each observation, a column for each variable: units as in `workbench.metrics.schema`, times in UTC by
        the clock of the head.

    Raises
    ------
    InvalidRequest
        If the name of the table is not valid.
    """
    if table not in TABLES:
        raise InvalidRequest(option="table", given=table, allowed=TABLES)
    import pandas as pd

    return pd.DataFrame(TABLES[table](update))


def _times(update: Update, columns: int) -> Any:
    import pandas as pd

    return pd.to_datetime(np.repeat(update.times, columns), unit="s", utc=True)


def _ranks(update: Update) -> dict[str, Any]:
    layout, ticks = update.layout, len(update.times)
    return {
        "time": _times(update, len(layout.ranks)),
        "rank": [place.rank for place in layout.ranks] * ticks,
        "host": [layout.nodes[place.node] for place in layout.ranks] * ticks,
        **{name: update.rank[:, :, column].ravel() for column, name in enumerate(RANK)},
    }


def _nodes(update: Update) -> dict[str, Any]:
    return {
        "time": _times(update, len(update.layout.nodes)),
        "host": list(update.layout.nodes) * len(update.times),
        **{name: update.node[:, :, column].ravel() for column, name in enumerate(NODE)},
    }


def _cores(update: Update) -> dict[str, Any]:
    layout, ticks = update.layout, len(update.times)
    return {
        "time": _times(update, sum(layout.cores)),
        "host": [host for host, cores in zip(layout.nodes, layout.cores, strict=True) for _ in range(cores)] * ticks,
        "core": [core for cores in layout.cores for core in range(cores)] * ticks,
        "percent": percents(update.core).ravel(),
    }


def places(update: Update) -> list[str]:
    """Return the names of the sources and targets of traffic: ranks, or nodes where the ranks are many."""
    layout = update.layout
    return [str(place.rank) for place in layout.ranks] if update.by == "rank" else list(layout.nodes)


def _traffic(update: Update) -> dict[str, Any]:
    names = places(update)
    number = len(names)
    return {
        "kind": np.repeat(KINDS, number * number),
        "source": np.tile(np.repeat(names, number), len(KINDS)),
        "target": np.tile(names, len(KINDS) * number),
        "bytes": update.traffic.bytes.ravel(),
        "messages": update.traffic.messages.ravel(),
    }


def _operations(update: Update) -> dict[str, Any]:
    used = np.flatnonzero(update.operations[:, 0])
    columns = {name: update.operations[used, column] for column, name in enumerate(OPERATION)}
    return {"operation": [OPERATIONS[index] for index in used], **columns}


def _sizes(update: Update) -> dict[str, Any]:
    return {
        "kind": np.repeat(KINDS, SIZES),
        "least": SIZE_BEGINS * len(KINDS),
        "most": (0.0, *(float(least - 1) for least in SIZE_BEGINS[2:]), np.inf) * len(KINDS),
        "messages": update.sizes.ravel(),
    }


def _fits(update: Update) -> Any:
    import pandas as pd

    columns = dict.fromkeys((*_FIT_COLUMNS, *(name for record in update.fits for name in record)))
    return _with_dates(pd.DataFrame(update.fits, columns=list(columns)), "time")


def _calls(update: Update) -> Any:
    import pandas as pd

    return _with_dates(pd.DataFrame(update.calls, columns=[column.name for column in fields(CallCost)]), "begin", "end")


def _with_dates(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return a table whose times in seconds since the epoch are dates."""
    import pandas as pd

    return table.assign(**{name: pd.to_datetime(table[name], unit="s", utc=True).dt.as_unit("ns") for name in columns})


TABLES: dict[str, Callable[[Update], Any]] = {
    "ranks": _ranks,
    "nodes": _nodes,
    "cores": _cores,
    "traffic": _traffic,
    "operations": _operations,
    "sizes": _sizes,
    "fits": _fits,
    "calls": _calls,
}
"""The function that makes the columns of each table."""


def openmetrics(update: Update) -> str:
    """Return the last tick of ranks and nodes, and the totals of traffic and operations.

    Returns
    -------
    str
        Lines like ``workbench_rank_cpu_percent{cluster="mpi",rank="3",host="n1"} 98.5``, and ``# EOF``.
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
    ranks = [_labels(cluster=cluster, rank=place.rank, host=layout.nodes[place.node]) for place in layout.ranks]
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
