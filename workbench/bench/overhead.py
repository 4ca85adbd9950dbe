"""What the engines of our estimators cost: K-means and logistic regression, against the same kernels in bare MPI.

Cluster and bare program are both alive and take turns of a second and more on data that agree. While the bare ranks
compute, those of the cluster are stopped; while the cluster computes, the bare ones sleep.
"""

from __future__ import annotations

import math
import os
import statistics
import time
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workbench.bench import plotting, turns
from workbench.bench.halting import halted
from workbench.bench.report import Report, above_zero, alternate, machine, positive
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.launch import mpi

if TYPE_CHECKING:
    from dask.array import Array
    from distributed import Client
    from matplotlib.figure import Figure

    from workbench.bench.training import Fit, Order
    from workbench.bench.turns import Turns
    from workbench.ml.parts import Parts

MODELS, ENGINES, BARE = ("kmeans", "logistic"), ("mpi", "dask"), "bare"
"""What is fitted, by which of our engines, and the reference."""
TRIP = "round trip"
"""What is measured of the Dask engine beside."""
_TARGETS = {"mpi": 1.05, "dask": 1.10}
_PROGRAM = "workbench.bench.training"
# Rows of the fits that tell how many make up an iteration; round trips that make up one measurement.
_TRIAL, _TRIPS = 100_000, 50
# Seconds for a bare world to start, and for a fit of it.
_START, _WITHIN = 60.0, 300.0


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--ranks", type=positive, default=2, help="of the cluster and of bare MPI (default: 2)")
    parser.add_argument("--rounds", type=positive, default=15, help="measurements of each arm (default: 15)")
    # Where memory lies changes from start to start, and with it the time of a kernel by some percent.
    parser.add_argument("--starts", type=positive, default=3, help="of all worlds, to share the rounds (default: 3)")
    parser.add_argument("--iterations", type=positive, default=15, help="of a fit (default: 15)")
    parser.add_argument("--iteration-ms", type=above_zero, default=100.0, help="time of an iteration (default: 100)")
    parser.add_argument("--rows", type=positive, help="of each rank (default: as many as take --iteration-ms)")


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

    found, ranks = mpi.find(), options.ranks
    rows = {model: options.rows for model in MODELS if options.rows}
    measured: list[dict[str, Any]] = []
    starts = min(options.starts, options.rounds)
    rounds = math.ceil(options.rounds / starts)
    for start in range(1, starts + 1):
        with turns.taking(found, ranks, _PROGRAM, _START) as bare:
            rows = rows or {model: _enough(bare, model, options) for model in MODELS}
            with MPICluster(ranks, quiet=True) as cluster, Client(cluster) as client:
                for model in MODELS:
                    arms = _Arms(client, bare, model, rows[model], options.iterations)
                    measured += [{"start": start} | row for row in arms.measure(ranks, rounds)]
                measured += [{"start": start} | row for row in _round_trips(client, ranks, rounds)]
    facts = {f"rows of {model}": rows[model] for model in MODELS} | {"iterations": options.iterations}
    return Report("overhead", machine(found) | facts, measured, summarise(measured))


def _enough(bare: Turns, model: str, options: Namespace) -> int:
    """Return the rows of each rank that make an iteration as long as it is wanted."""
    from workbench.bench.training import Order

    order = Order(model, _TRIAL, options.iterations)
    seconds: float = min(max(fit.seconds for fit in bare.take(order, _WITHIN)) for _ in range(3))
    share: float = options.iteration_ms / 1e3 * options.iterations / seconds
    return max(1, round(_TRIAL * share))


class _Arms:
    """The ways of fitting one model, on data that agree."""

    def __init__(self, client: Client, bare: Turns, model: str, rows: int, iterations: int) -> None:
        from workbench import run_on_ranks
        from workbench.bench import training

        self._bare, self._model = bare, model
        self._order = training.Order(model, rows, iterations)
        self._pids = list(client.run(os.getpid).values())
        self._data: tuple[Array, Array] = run_on_ranks(training.block, rows, client=client, result="blocks")
        self._settings = run_on_ranks(training.setting, self._data[0], client=client)

    def measure(self, ranks: int, rounds: int) -> Iterator[dict[str, Any]]:
        """Yield a row for each fit."""
        expected: Any = None
        for number, arm in alternate((*ENGINES, BARE), rounds):
            seconds, found, made = self._fit_bare() if arm == BARE else self._fit(arm)
            expected = found if expected is None else expected
            require_same(self._order, arm, made, found, expected)
            if number:
                yield _row((self._model, arm, ranks, number), seconds)

    def _fit_bare(self) -> tuple[float, Any, int]:
        with halted(self._pids):
            fits: list[Fit] = self._bare.take(self._order, _WITHIN)
        settings = [fit.setting for fit in fits]
        if settings != self._settings:
            raise WorkbenchError(f"world, threads, cores and alignment are {settings}, in the cluster {self._settings}")
        return max(fit.seconds for fit in fits), fits[0].found, fits[0].iterations

    def _fit(self, engine: str) -> tuple[float, Any, int]:
        import numpy as np
        from sklearn.exceptions import ConvergenceWarning

        from workbench.bench.training import CLUSTERS, centers
        from workbench.ml import KMeans, LogisticRegression

        X, y = self._data
        most: dict[str, Any] = {"max_iter": self._order.iterations, "tol": 0.0, "engine": engine}
        with warnings.catch_warnings():
            # To end before is what is asked for.
            warnings.simplefilter("ignore", ConvergenceWarning)
            begin = time.perf_counter()
            if self._model == "kmeans":
                clusters = KMeans(CLUSTERS, init=centers(), **most).fit(X)
                took = time.perf_counter() - begin
                return took, np.append(clusters.cluster_centers_, clusters.inertia_), clusters.n_iter_
            classes = LogisticRegression(**most).fit(X, y)
            took = time.perf_counter() - begin
            return took, np.append(classes.coef_, classes.intercept_), int(classes.n_iter_[0])


def require_same(order: Order, arm: str, made: int, found: Any, expected: Any) -> None:
    """Raise if a fit has made other iterations than were ordered, or came to something else than the first one.

    Raises
    ------
    InvalidRequest
        If it has converged before.
    WorkbenchError
        If the results are not the same, but for rounding.
    """
    import numpy as np

    if made != order.iterations:
        raise InvalidRequest(
            f"--iterations {order.iterations}: {order.model} by {arm} was done after {made}; "
            "ask for fewer, or for more --rows"
        )
    if not np.allclose(found, expected, rtol=1e-6, atol=1e-8):
        apart = float(np.abs(found - expected).max())
        raise WorkbenchError(f"{order.model} by {arm} came to another result than the first fit, apart by {apart:g}")


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
    from workbench.ml.fitting import Task, fit

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
