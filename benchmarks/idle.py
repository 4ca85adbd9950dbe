"""CPU that a cluster takes without requests, with mpi:// against tcp://.

Both clusters are alive, and every window of time counts for both of them: head, launcher and ranks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

from benchmarks.clusters import ARMS, both
from workbench.bench import plotting
from workbench.bench.measuring import cpu_seconds, used
from workbench.bench.report import Report, above_zero, machine, positive
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TARGET = 1.1
# Seconds for a cluster that has just started to come to rest.
_SETTLE = 5.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--ranks", type=positive, default=4, help="ranks of each cluster (default: 4)")
    parser.add_argument("--windows", type=positive, default=9, help="measurements (default: 9)")
    parser.add_argument("--seconds", type=above_zero, default=10.0, help="length of each (default: 10)")


def run(options: argparse.Namespace) -> Report:
    """Measure both clusters simultaneously and return the report.

    Raises
    ------
    StartError
        If a cluster does not start.
    """
    rows = []
    with both(options.ranks) as clusters:
        heads = {arm: clusters[arm].record.process.pid for arm in ARMS}
        time.sleep(_SETTLE)
        for window in range(1, options.windows + 1):
            before, begin = {arm: cpu_seconds(heads[arm]) for arm in ARMS}, time.perf_counter()
            time.sleep(options.seconds)
            after, seconds = {arm: cpu_seconds(heads[arm]) for arm in ARMS}, time.perf_counter() - begin
            percent = {f"{arm}_percent": 100 * used(before[arm], after[arm]) / seconds for arm in ARMS}
            rows.append({"window": window, "seconds": seconds, **percent})
    return Report("idle", machine(mpi_library.find()) | {"ranks": options.ranks}, rows, summarize(rows))


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median over the windows of mpi over tcp, and of each in per cent of a core."""
    medians = {f"{arm}_percent": statistics.median(row[f"{arm}_percent"] for row in rows) for arm in ARMS}
    ratio = statistics.median(row["mpi_percent"] / row["tcp_percent"] for row in rows)
    return {"ratio": ratio, "target": TARGET, **medians}


def plot(report: Report) -> Figure:
    """Draw every window of both clusters and their medians."""
    title = f"CPU of an idle cluster of {report.machine['ranks']} ranks: lower is better"
    figure, (panel,) = plotting.figure(report, title, 1, 1)
    values = {f"{arm}://": [row[f"{arm}_percent"] for row in report.rows] for arm in ARMS}
    plotting.strips(panel, values, "protocol between ranks", "CPU of all its processes (% of a core)")
    panel.set_title(f"mpi / tcp = {report.summary['ratio']:.2f}, median of all windows")
    return figure
