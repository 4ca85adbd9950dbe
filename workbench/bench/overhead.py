"""What the engines of our estimators cost: K-means and logistic regression, against the same kernels in bare MPI.

Cluster and bare program take turns of a second and more: see `workbench.bench.arms`.
"""

from __future__ import annotations

import math
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workbench.bench import plotting
from workbench.bench.arms import BARE, ENGINES, MODELS, Arms, bare_world, fit_options, rows_for
from workbench.bench.report import Report, machine, positive
from workbench.launch import mpi

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

    from workbench.ml.parts import Parts

TRIP = "round trip"
"""What is measured of the Dask engine beside."""
_TARGETS = {"mpi": 1.05, "dask": 1.10}
# Round trips that make up one measurement.
_TRIPS = 50


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--ranks", type=positive, default=2, help="of the cluster and of bare MPI (default: 2)")
    fit_options(parser, rounds=16, starts=8, iterations=15, milliseconds=100.0)


def run(options: Namespace) -> Report:
    """Measure on several starts of cluster and bare program, and return the report.

    Raises
    ------
    InvalidRequest
        If a fit converges before its iterations are made.
    LaunchError, StartError
        If the cluster or the bare world does not start.
    WorkbenchError
        If the arms come to different results, or do not run under the same conditions.
    """
    from distributed import Client

    from workbench import MPICluster
    from workbench.bench.training import Order

    found, ranks = mpi.find(), options.ranks
    rows = {model: options.rows for model in MODELS if options.rows}
    measured: list[dict[str, Any]] = []
    starts = min(options.starts, options.rounds)
    rounds = math.ceil(options.rounds / starts)
    for start in range(1, starts + 1):
        with bare_world(found, ranks) as bare:
            rows = rows or {model: rows_for(bare, model, options.iterations, options.iteration_ms) for model in MODELS}
            with MPICluster(ranks, quiet=True) as cluster, Client(cluster) as client:
                for model in MODELS:
                    arms = Arms(client, bare, Order(model, rows[model], options.iterations))
                    fits = [((model, arm, ranks, number), took) for number, arm, took in arms.measure(rounds)]
                    measured += [{"start": start} | _row(*fit) for fit in fits]
                measured += [{"start": start} | row for row in _round_trips(client, ranks, rounds)]
    facts = {f"rows of {model}": rows[model] for model in MODELS} | {"iterations": options.iterations}
    return Report("overhead", machine(found) | facts, measured, summarise(measured))


class _Nothing:
    """A part that computes nothing."""

    def __init__(self, *columns: Any) -> None:
        pass

    def nothing(self) -> float:
        """Return at once."""
        return 0.0


def _round_trips(client: Client, ranks: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Time calls of a method that does nothing of all parts of the Dask engine."""
    from workbench import run_on_ranks
    from workbench.bench import training
    from workbench.ml.checks import Checks
    from workbench.ml.data import Data
    from workbench.ml.fitting import fit
    from workbench.ml.task import Task

    X, _ = run_on_ranks(training.block, 1, client=client, result="blocks")
    task = Task(_trips, _TRIPS, _Nothing, Checks("RoundTrips"))
    for number in range(rounds + 1):
        times, _ = fit(task, Data(X, None, None, distributed=True), "dask", None)
        if number:
            yield _row((TRIP, "dask", ranks, number), statistics.median(times))


def _trips(parts: Parts, number: int) -> list[float]:
    times = []
    for _ in range(number):
        begin = time.perf_counter()
        parts.sum("nothing")
        times.append(time.perf_counter() - begin)
    return times


def _row(its: tuple[str, str, int, int], seconds: float) -> dict[str, Any]:
    return dict(zip(("what", "arm", "ranks", "round"), its, strict=True)) | {"seconds": seconds}


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures.

    Returns
    -------
    summary : dict
        ``kmeans_mpi``, ``kmeans_dask``, ``logistic_mpi`` and ``logistic_dask``: the median time of a fit over that of
        bare MPI. ``round_trip_ms``: of the Dask engine on all ranks; what is to be reached is meant for 2. Each with
        its ``target``; and the medians of all arms in seconds.
    """
    seconds = {
        (model, arm): statistics.median(_values(rows, model, arm)) for model in MODELS for arm in (*ENGINES, BARE)
    }
    summary: dict[str, Any] = {
        f"{model}_{engine}": seconds[model, engine] / seconds[model, BARE] for model in MODELS for engine in ENGINES
    }
    summary["round_trip_ms"] = statistics.median(_values(rows, TRIP, "dask")) * 1e3
    summary |= {f"{engine}_target": target for engine, target in _TARGETS.items()} | {"round_trip_target_ms": 5.0}
    return summary | {f"{model}_{arm}_seconds": median for (model, arm), median in seconds.items()}


def _values(rows: list[dict[str, Any]], what: str, arm: str) -> list[float]:
    return [row["seconds"] for row in rows if (row["what"], row["arm"]) == (what, arm)]


def plot(report: Report) -> Figure:
    """Draw every fit of each model by each engine beside those of bare MPI, with their medians."""
    trip = f"a round trip of Dask takes {report.summary['round_trip_ms']:.2g} ms"
    figure, panels = plotting.figure(report, f"Fits of our engines over pure MPI: lower is better; {trip}", 2, 2)
    each = [(model, engine) for model in MODELS for engine in ENGINES]
    for panel, (model, engine) in zip(panels, each, strict=True):
        arms = {f'engine="{engine}"': engine, "bare MPI": BARE}
        values = {label: _values(report.rows, model, arm) for label, arm in arms.items()}
        plotting.strips(panel, values, "what the fit runs on", "time of a fit (s)")
        panel.set_title(f"{model}: {engine} / bare = {report.summary[f'{model}_{engine}']:.3f}")
    return figure
