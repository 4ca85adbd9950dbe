"""Wall times of Dask programs on a cluster with mpi:// and on one with tcp://, both alive and taking turns.

The data lie on the workers before the time is taken; those of a pair are the same on both clusters, and so have to be
the results. Both are under TLS, as every cluster is, which blocks that go by MPI do not pass through.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.bench import plotting
from workbench.bench.clusters import ARMS, both
from workbench.bench.pipelines import PIPELINES
from workbench.bench.report import Report, above_zero, alternate, machine, positive
from workbench.errors import WorkbenchError
from workbench.launch import mpi

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

TARGET = 1.05


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--pairs", type=positive, default=7, help="measurements of each arm (default: 7)")
    parser.add_argument("--ranks", type=positive, default=2, help="ranks of each cluster (default: 2)")
    parser.add_argument("--scale", type=above_zero, default=1.0, help="factor for the size of the data (default: 1)")


def run(options: argparse.Namespace) -> Report:
    """Measure all programs on both clusters and return the report.

    Raises
    ------
    StartError
        If a cluster does not start.
    WorkbenchError
        If the two clusters come to different results.
    """
    from distributed import Client

    rows = []
    with both(options.ranks) as clusters, Client(clusters["mpi"]) as ours, Client(clusters["tcp"]) as theirs:
        clients = {"mpi": ours, "tcp": theirs}
        for app in PIPELINES:
            results: dict[int, np.ndarray] = {}
            for pair, arm in alternate(ARMS, options.pairs):
                seconds, result = _measure(clients[arm], app, pair, options.scale)
                if not np.allclose(results.setdefault(pair, result), result, rtol=1e-9):
                    raise WorkbenchError(f"{app}: {arm} comes to {result}, the other arm to {results[pair]}")
                if pair:
                    rows.append({"app": app, "pair": pair, "arm": arm, "seconds": seconds})
    return Report("apps", machine(mpi.find()) | {"ranks": options.ranks}, rows, summarise(rows))


def _measure(client: Client, app: str, seed: int, scale: float) -> tuple[float, np.ndarray]:
    pipeline = PIPELINES[app]
    data = pipeline.prepare(client, seed, scale)
    begin = time.perf_counter()
    result = pipeline.run(client, data)
    return time.perf_counter() - begin, result


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return of every program the time of mpi over that of tcp, and the medians of both in seconds."""
    summary: dict[str, Any] = {}
    medians: dict[str, Any] = {}
    for app in dict.fromkeys(row["app"] for row in rows):
        for arm in ARMS:
            medians[f"{app}_{arm}"] = statistics.median(_seconds(rows, app, arm))
        summary[app] = medians[f"{app}_mpi"] / medians[f"{app}_tcp"]
    return summary | {"target": TARGET} | medians


def _seconds(rows: list[dict[str, Any]], app: str, arm: str) -> list[float]:
    return [row["seconds"] for row in rows if (row["app"], row["arm"]) == (app, arm)]


def plot(report: Report) -> Figure:
    """Draw a panel for each program, with every measurement of both arms and their medians."""
    names = list(dict.fromkeys(row["app"] for row in report.rows))
    title = f"Wall time of Dask programs on {report.machine['ranks']} ranks: lower is better"
    figure, axes = plotting.figure(report, title, 1, len(names), width=4)
    for panel, name in zip(axes, names, strict=True):
        times = {f"{arm}://": _seconds(report.rows, name, arm) for arm in ARMS}
        plotting.strips(panel, times, "protocol between ranks", "time (s)")
        panel.set_title(f"{name}: mpi / tcp = {report.summary[name]:.2f}")
    return figure
