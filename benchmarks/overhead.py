"""What the engines of our estimators cost: K-means and logistic regression, against the same kernels in bare MPI.

Cluster and bare program take turns of a second and more: see `workbench.bench.arms`. What counts is the ratio of two
fits that are neighbors in time: see `workbench.bench.measuring`.
"""

from __future__ import annotations

import math
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workbench.bench import measuring, plotting
from workbench.bench.arms import BARE, ENGINES, MODELS, Arms, bare_world, fit_options, rows_for
from workbench.bench.report import Report, machine, positive
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

    from workbench.ml.engine.parts import Parts

TRIP = "round trip"
"""What is measured of the Dask engine beside."""
_PAIRS = [(model, engine) for model in MODELS for engine in ENGINES]
_TARGETS = {"mpi": 1.05, "dask": 1.10}
# Round trips that make up one measurement.
_TRIPS = 50
# So many times the starts and the rounds of the short form are those of the full one.
_FULL = 4


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--ranks", type=positive, default=2, help="of the cluster and of bare MPI (default: 2)")
    fit_options(parser, rounds=18, starts=3, iterations=15, milliseconds=80.0)
    full = f"{_FULL} times as many starts and measurements: 20 minutes on 2 cores where the short form takes 5"
    parser.add_argument("--full", action="store_true", help=full)


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

    from workbench.bench.bare_fits import Order
    from workbench.cluster import MPICluster

    found, ranks = mpi_library.find(), options.ranks
    rows = {model: options.rows for model in MODELS if options.rows}
    measured: list[dict[str, Any]] = []
    times = _FULL if options.full else 1
    starts = min(options.starts, options.rounds) * times
    rounds = math.ceil(options.rounds * times / starts)
    for start in range(1, starts + 1):
        with bare_world(found, ranks) as bare:
            rows = rows or {model: rows_for(bare, model, options.iterations, options.iteration_ms) for model in MODELS}
            with MPICluster(ranks, quiet=True) as cluster, Client(cluster) as client:
                for model in MODELS:
                    arms = Arms(client, bare, Order(model, rows[model], options.iterations))
                    measured += [
                        {"start": start} | _row((model, engine, arm, ranks, number), took)
                        for number, engine, arm, took in arms.pairs(rounds)
                    ]
                measured += [{"start": start} | row for row in _round_trips(client, ranks, rounds)]
    facts = {f"rows of {model}": rows[model] for model in MODELS} | {"iterations": options.iterations}
    return Report("overhead", machine(found) | facts, measured, summarize(measured))


class _Nothing:
    """A part that computes nothing."""

    def __init__(self, *columns: Any) -> None:
        pass

    def nothing(self) -> float:
        """Return immediately."""
        return 0.0


def _round_trips(client: Client, ranks: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Time calls of a method that does nothing of all parts of the Dask engine."""
    from workbench.bench import bare_fits
    from workbench.collective.api import run_on_ranks
    from workbench.ml.checks import Checks
    from workbench.ml.data import Data
    from workbench.ml.engine.fitting import fit
    from workbench.ml.engine.mpi_parts import Task

    X, _ = run_on_ranks(bare_fits.block, 1, client=client, result="blocks")
    task = Task(_trips, _TRIPS, _Nothing, Checks("RoundTrips"))
    for number in range(rounds + 1):
        times, _ = fit(task, Data(X, None, None, distributed=True), "dask", None)
        if number:
            yield _row((TRIP, "dask", "dask", ranks, number), statistics.median(times))


def _trips(parts: Parts, number: int) -> list[float]:
    times = []
    for _ in range(number):
        begin = time.perf_counter()
        parts.sum("nothing")
        times.append(time.perf_counter() - begin)
    return times


def _row(key: tuple[str, str, str, int, int], seconds: float) -> dict[str, Any]:
    return dict(zip(("what", "engine", "arm", "ranks", "round"), key, strict=True)) | {"seconds": seconds}


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures.

    Returns
    -------
    summary : dict
        ``kmeans_mpi``, ``kmeans_dask``, ``logistic_mpi`` and ``logistic_dask``: the time of a fit over that of its
        neighbor in bare MPI, median of the pairs, with the ends of its interval, ``_low`` and ``_high``. Pairs of one
        start share where its memory lies, so that the interval is that of these starts; others may be outside of it.
        ``round_trip_ms``: of the Dask engine on all ranks; the target is for 2 ranks. Each with its
        ``target``; and the medians of all arms in seconds.
    """
    summary: dict[str, Any] = {}
    for model, engine in _PAIRS:
        summary |= measuring.figures(
            f"{model}_{engine}", *(_values(rows, model, engine, arm) for arm in (engine, BARE))
        )
    summary["round_trip_ms"] = statistics.median(_values(rows, TRIP, "dask", "dask")) * 1e3
    summary |= {f"{engine}_target": target for engine, target in _TARGETS.items()} | {"round_trip_target_ms": 5.0}
    for model, engine in _PAIRS:
        summary[f"{model}_{engine}_seconds"] = statistics.median(_values(rows, model, engine, engine))
    for model in MODELS:
        bare = [second for engine in ENGINES for second in _values(rows, model, engine, BARE)]
        summary[f"{model}_{BARE}_seconds"] = statistics.median(bare)
    return summary


def _values(rows: list[dict[str, Any]], what: str, engine: str, arm: str) -> list[float]:
    """Return the seconds of an arm in the order of starts and rounds, which pairs share."""
    chosen = [row for row in rows if (row["what"], row["engine"], row["arm"]) == (what, engine, arm)]
    return [row["seconds"] for row in sorted(chosen, key=lambda row: (row["start"], row["round"]))]


def plot(report: Report) -> Figure:
    """Draw every fit of each model by each engine beside its neighbors in bare MPI, with their medians."""
    trip = f"a round trip of Dask takes {report.summary['round_trip_ms']:.2g} ms"
    figure, panels = plotting.figure(report, f"Fits of our engines over pure MPI: lower is better; {trip}", 2, 2)
    for panel, (model, engine) in zip(panels, _PAIRS, strict=True):
        arms = {f'engine="{engine}"': engine, "bare MPI": BARE}
        values = {label: _values(report.rows, model, engine, arm) for label, arm in arms.items()}
        plotting.strips(panel, values, "what the fit runs on", "time of a fit (s)")
        ratio, low, high = (report.summary[f"{model}_{engine}{end}"] for end in ("", "_low", "_high"))
        panel.set_title(f"{model}: {engine} / bare = {ratio:.3f} ({low:.3f} to {high:.3f})")
    return figure
