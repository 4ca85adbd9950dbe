"""Wall times of Dask programs on workers with mpi:// and on workers with tcp://, all alive and taking turns.

The target is for two bare clusters of one kind, ``tcp`` and ``mpi``, neither under TLS. The same on clusters as users
have them, always under TLS, is reported as ``tls`` and ``mpi_tls``: blocks that MPI transfers do not pass through TLS,
which is why mpi:// looks better there. The data lie on the workers before the time is taken. The data are the same for
all arms of a round, and the results must be the same, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.clusters import both
from benchmarks.pipelines import PIPELINES
from workbench.bench import plotting
from workbench.bench.report import Report, above_zero, alternate, machine, positive
from workbench.errors import WorkbenchError
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

TARGET = 1.05
PLAIN, TLS = ("tcp", "mpi"), ("tls", "mpi_tls")
"""Arms that are compared with each other: the reference, and ours."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--pairs", type=positive, default=8, help="measurements of each arm (default: 8)")
    parser.add_argument("--ranks", type=positive, default=2, help="workers of each arm (default: 2)")
    parser.add_argument("--scale", type=above_zero, default=1.0, help="factor for the size of the data (default: 1)")
    parser.add_argument("--plain-only", action="store_true", help="leave out the arms under TLS, which do not count")


def run(options: argparse.Namespace) -> Report:
    """Measure all programs on all arms and return the report.

    Raises
    ------
    LaunchError, StartError
        If an arm does not start.
    WorkbenchError
        If two arms come to different results, or one to none in time.
    """
    found, rows = mpi_library.find(), []
    with _arms(found, options.ranks, plain_only=options.plain_only) as clients:
        for app in PIPELINES:
            results: dict[int, np.ndarray] = {}
            for pair, arm in alternate(list(clients), options.pairs):
                seconds, result = _measure(clients[arm], app, arm, pair, options.scale)
                if not np.allclose(results.setdefault(pair, result), result, rtol=1e-9):
                    raise WorkbenchError(f"{app}: {arm} comes to {result}, another arm to {results[pair]}")
                if pair:
                    rows.append({"app": app, "pair": pair, "arm": arm, "seconds": seconds})
    return Report("apps", machine(found) | {"ranks": options.ranks}, rows, summarize(rows))


@contextmanager
def _arms(found: mpi_library.MPI, ranks: int, *, plain_only: bool) -> Iterator[dict[str, Client]]:
    from distributed import Client

    from workbench.bench import bare

    with ExitStack() as stack:
        clients = {arm: stack.enter_context(bare.start(found, arm, ranks)) for arm in PLAIN}
        if not plain_only:
            clusters = stack.enter_context(both(ranks))
            clients |= {arm: stack.enter_context(Client(clusters[of])) for arm, of in zip(TLS, PLAIN, strict=True)}
        yield clients


def _measure(client: Client, app: str, arm: str, seed: int, scale: float) -> tuple[float, np.ndarray]:
    pipeline = PIPELINES[app]
    try:
        data = pipeline.prepare(client, seed, scale)
        begin = time.perf_counter()
        result = pipeline.run(client, data)
    except TimeoutError as error:
        raise WorkbenchError(f"{app}: {arm} did not end in time: {error}") from error
    return time.perf_counter() - begin, result


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of every program.

    Returns
    -------
    summary : dict
        By the name of a program the time of mpi over that of tcp, both plain; with ``_tls`` the same under TLS, None
        where it was not measured; ``target`` of the plain ones; the median of every arm in seconds.
    """
    medians: dict[tuple[str, str], float] = {}
    for app, arm in dict.fromkeys((row["app"], row["arm"]) for row in rows):
        medians[app, arm] = statistics.median(_seconds(rows, app, arm))
    summary: dict[str, Any] = {}
    for ending, (theirs, ours) in (("", PLAIN), ("_tls", TLS)):
        for app in dict.fromkeys(row["app"] for row in rows):
            measured = (app, ours) in medians
            summary[app + ending] = medians[app, ours] / medians[app, theirs] if measured else None
    return summary | {"target": TARGET} | {f"{app}_{arm}_seconds": time for (app, arm), time in medians.items()}


def _seconds(rows: list[dict[str, Any]], app: str, arm: str) -> list[float]:
    return [row["seconds"] for row in rows if (row["app"], row["arm"]) == (app, arm)]


def plot(report: Report) -> Figure:
    """Draw a panel for each program, plain and under TLS, with every measurement of both arms and their medians."""
    names = list(dict.fromkeys(row["app"] for row in report.rows))
    arms = {row["arm"] for row in report.rows}
    kinds = [kind for kind in (("", PLAIN, "plain"), ("_tls", TLS, "TLS")) if arms.issuperset(kind[1])]
    title = f"Wall time of Dask programs on {report.machine['ranks']} ranks: lower is better"
    figure, axes = plotting.figure(report, title, len(kinds), len(names), width=4)
    panels = iter(axes)
    for ending, (theirs, ours), kind in kinds:
        for name in names:
            panel = next(panels)
            labels = {"mpi://": ours, "tcp://": theirs}
            times = {label: _seconds(report.rows, name, arm) for label, arm in labels.items()}
            plotting.strips(panel, times, f"protocol between ranks, {kind}", "time (s)")
            panel.set_title(f"{name}, {kind}: mpi / tcp = {report.summary[name + ending]:.2f}")
    return figure
