"""What metrics cost: operations of MPI and fits with them and without, the head and the dashboard at 512 ranks.

Both arms take turns on the ranks of one cluster, where counting is switched on and off. Head and dashboard do for
simulated ranks what they do for real ones, each in a separate process.
"""

from __future__ import annotations

import statistics
import time
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workbench.bench import measuring
from workbench.bench.report import Report, above_zero, alternate, machine, positive
from workbench.errors import WorkbenchError
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from distributed import Client

ARMS = ("on", "off")
SIZES = (1, 64, 1024, 4096, 65_536)
_TARGETS = {"call_us": 1.0, "fit_ratio": 1.01, "head_cpu_percent": 5.0, "panel_cpu_percent": 10.0}
# Calls of MPI between two turns of the arms: few, so that what else the machine does meets both alike.
_BURST = 50


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--ranks", type=positive, default=2, help="of the cluster (default: 2)")
    parser.add_argument("--bursts", type=positive, default=400, help=f"of {_BURST} operations, an arm (default: 400)")
    parser.add_argument("--rounds", type=positive, default=12, help="fits of an arm (default: 12)")
    parser.add_argument("--rows", type=positive, default=1_000_000, help="of a fit, a rank (default: a million)")
    parser.add_argument("--simulated", type=positive, default=512, help="ranks for head and dashboard (default: 512)")
    parser.add_argument("--nodes", type=positive, default=32, help="that these are on (default: 32)")
    parser.add_argument("--seconds", type=above_zero, default=30.0, help="for head and dashboard (default: 30)")
    parser.add_argument("--hour", type=above_zero, help="seconds for an hour of a dashboard's memory (default: none)")


def run(options: Namespace) -> Report:
    """Measure, and return the report.

    Raises
    ------
    InvalidRequest
        If no browser can show the dashboard; nothing was started.
    StartError
        If the cluster does not start.
    WorkbenchError
        If fits of the two arms come to different results, or a simulated program does not start.
    """
    from distributed import Client

    from benchmarks import watching
    from workbench.cluster import MPICluster
    from workbench.collective.api import run_on_ranks

    watching.require_browser()
    rows: list[dict[str, Any]] = []
    with MPICluster(options.ranks, quiet=True) as cluster, Client(cluster) as client:
        for took in run_on_ranks(calls, options.bursts, client=client, result="root"):
            rows += [
                {"what": f"call of {took['bytes']} B", "arm": arm, "value": took[arm], "unit": "us"} for arm in ARMS
            ]
        rows += _fits(client, options.rows, options.rounds)
    for what, percent in watching.measure(options.simulated, options.nodes, options.seconds):
        rows.append({"what": what, "arm": "on", "value": percent, "unit": "% of a core"})
    if options.hour:
        for when, *kept in watching.hour(options.simulated, options.nodes, options.hour):
            rows += [
                {"what": f"{what} after {when}", "arm": "on", "value": value, "unit": "MiB"}
                for what, value in zip(("dashboard", "page"), kept, strict=True)
            ]
    return Report("metrics", machine(mpi_library.find()) | {"simulated": options.simulated}, rows, summarize(rows))


def calls(comm: Any, bursts: int) -> list[dict[str, Any]]:
    """Return what an Allreduce takes with counters and without, in microseconds: medians of bursts that alternate."""
    import numpy as np

    from workbench.mpi.counters import Counters

    counters = {"on": comm.watch.counters or Counters(), "off": None}
    measured = []
    for nbytes in SIZES:
        sent, received = np.ones(nbytes, "b"), np.ones(nbytes, "b")
        times: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for number, arm in alternate(ARMS, bursts):
            comm.watch.counters = counters[arm]
            comm.Barrier()
            begin = time.perf_counter()
            for _ in range(_BURST):
                comm.Allreduce(sent, received)
            if number:
                times[arm].append((time.perf_counter() - begin) / _BURST)
        measured.append({"bytes": nbytes} | {arm: 1e6 * statistics.median(times[arm]) for arm in ARMS})
    comm.watch.counters = counters["on"]
    return measured


def _fits(client: Client, rows: int, rounds: int) -> Iterator[dict[str, Any]]:
    from workbench.bench import bare_fits
    from workbench.collective.api import run_on_ranks
    from workbench.ml import KMeans

    X, _ = run_on_ranks(bare_fits.block, rows, 1, client=client, result="blocks")
    expected = None
    for number, arm in alternate(ARMS, rounds):
        client.run(_count, arm == "on")
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the number of iterations is fixed, so the fit does not converge
            model = KMeans(16, engine="mpi", init="random", random_state=0, n_init=1, max_iter=15, tol=0).fit(X)
        took = time.perf_counter() - begin
        expected = model.inertia_ if expected is None else expected
        if abs(model.inertia_ - expected) > 1e-9 * expected:
            raise WorkbenchError(f"with metrics {arm} the fit came to {model.inertia_}, before to {expected}")
        if number:
            yield {"what": "K-means", "arm": arm, "value": took, "unit": "s"}
    client.run(_count, True)


def _count(enabled: bool, dask_worker: Any) -> None:
    dask_worker.activity.enabled = enabled


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures.

    Returns
    -------
    summary : dict
        ``call_us``: what counting adds to an operation, of the size where it adds most. ``fit_ratio``: a fit with
        metrics over its neighbor without, median of the rounds, with the ends of its interval, ``fit_ratio_low`` and
        ``fit_ratio_high``, as `paired` has them. ``head_cpu_percent`` and ``panel_cpu_percent``: of a
        core. Each with its target. If an hour was asked for, ``panel_growth`` and ``page_growth``: memory after it
        over that after half of it.
    """

    def values(what: str, arm: str) -> list[float]:
        return [row["value"] for row in rows if (row["what"], row["arm"]) == (what, arm)]

    sized = [f"call of {nbytes} B" for nbytes in SIZES]
    summary = {
        "call_us": max(values(what, "on")[0] - values(what, "off")[0] for what in sized),
        **measuring.figures("fit_ratio", values("K-means", "on"), values("K-means", "off")),
        "head_cpu_percent": values("head", "on")[0],
        "panel_cpu_percent": values("dashboard", "on")[0],
    }
    for name, what in (("panel", "dashboard"), ("page", "page")):
        if half := values(f"{what} after half an hour", "on"):
            summary[f"{name}_growth"] = values(f"{what} after an hour", "on")[0] / half[0]
    return summary | {f"{name}_target": target for name, target in _TARGETS.items()}
