"""Our estimators against those of dask-ml, of daal4py and of Heat, and against the decomposition of Dask itself.

All fit the same blocks, and their results must agree. dask-ml, Heat and Dask run on the cluster that ours run on;
daal4py on a separate MPI world, during whose turns the ranks of the cluster are stopped.
"""

from __future__ import annotations

import os
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchmarks import contests, daal
from benchmarks.contests import DAAL, DASK, DASK_ML, HEAT, ITERATIONS, OURS, UNSCALED, Contest, Timed
from benchmarks.peer_data import DATA
from workbench.bench import measuring, plotting, turns
from workbench.bench.report import Report, above_zero, alternate, machine, positive
from workbench.errors import WorkbenchError
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from dask.array import Array
    from distributed import Client
    from matplotlib.figure import Figure

    from workbench.bench.turns import Turns

TARGETS = {
    ("kmeans", DASK_ML): 3.0,
    ("kmeans", DAAL): 1.0,
    ("kmeans", HEAT): None,
    ("logistic", DASK_ML): 5.0,
    ("logistic", UNSCALED): None,
    ("svd", DASK): 4.0,
}
"""Target ratio: time of the peer over ours; None: reported only."""
_PACKAGES = {DASK_ML: "dask-ml", DAAL: "scikit-learn-intelex", HEAT: "heat"}
_HOW = {
    DASK_ML: "make bench-peers, or pip install 'mpi-workbench[mpich,bench,peers]' in a separate environment",
    HEAT: "pip install 'mpi-workbench[bench,heat]', which brings PyTorch",
}
"""How to install a peer; the first installs daal4py, too."""
# Seconds for a bare world to start, and for a fit of it.
_START, _WITHIN = 60.0, 300.0


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--ranks", type=positive, default=2, help="of the cluster and of bare MPI (default: 2)")
    parser.add_argument("--rounds", type=positive, default=7, help="measurements of each arm (default: 7)")
    parser.add_argument("--scale", type=above_zero, default=1.0, help="factor for the number of rows (default: 1)")


def run(options: Namespace) -> Report:
    """Measure all that is installed and return the report.

    Raises
    ------
    LaunchError, StartError
        If the cluster or the bare world does not start.
    WorkbenchError
        If the arms come to different results, or do not run under the same conditions.
    """
    from distributed import Client

    from workbench.cluster import MPICluster

    found, ranks = mpi_library.find(), options.ranks
    absent = missing(found)
    rows = {what: data.per_rank(ranks, options.scale) for what, data in DATA.items()}
    facts: dict[str, Any] = {f"rows of {what}": number for what, number in rows.items()} | {"iterations": ITERATIONS}
    facts |= {package: version(package) for peer, package in _PACKAGES.items() if peer not in absent}
    measured: list[dict[str, Any]] = []
    with MPICluster(ranks, quiet=True) as cluster, Client(cluster) as client:
        for what, number in rows.items():
            # No peer is installed: only svd_compressed comes with Dask.
            if not any(_is_there(peer, absent) for of, peer in TARGETS if of == what):
                continue
            with _contest(client, found, what, number, takes_daal=DAAL not in absent) as contest:
                facts |= contest.facts
                arms = [arm for arm in contest.arms if _is_there(arm, absent)]
                measured += _measure(contest, arms, ranks, options.rounds)
    summary = summarize(measured) | {"left_out": how_to_get(absent)}
    return Report("peers", machine(found) | facts, measured, summary)


def missing(found: mpi_library.MPI) -> dict[str, str]:
    """Return the peers that cannot take part here, and why.

    Parameters
    ----------
    found
        The MPI of this environment.
    """
    why = {peer: f"{package} is not installed" for peer, package in _PACKAGES.items() if find_spec(peer) is None}
    if DAAL not in why and found.flavor == "openmpi":
        why[DAAL] = f"daal4py needs the library of MPICH, and this is {found}"
    return why


def _is_there(arm: str, absent: dict[str, str]) -> bool:
    return not any(arm.startswith(peer) for peer in absent)


def how_to_get(absent: dict[str, str]) -> str | None:
    """Return a sentence with the missing packages and how to install them; None if no package is missing."""
    if not absent:
        return None
    ways = dict.fromkeys(_HOW[HEAT if peer == HEAT else DASK_ML] for peer in absent)
    return f"{' and '.join(absent.values())}; to get them: {'; and '.join(ways)}"


@contextmanager
def _contest(client: Client, found: mpi_library.MPI, what: str, rows: int, *, takes_daal: bool) -> Iterator[Contest]:
    """Make the data of a contest, and start what it needs."""
    from workbench.collective.api import run_on_ranks

    data = run_on_ranks(DATA[what].block, rows, client=client, result="blocks")
    if what == "logistic":
        yield contests.logistic(*data)
    elif what == "svd":
        yield contests.svd(data)
    elif takes_daal:
        with turns.taking(found, len(client.nthreads()), daal.__name__, _START) as bare:
            yield contests.kmeans(data, _Daal(client, bare, data, rows).fit)
    else:
        yield contests.kmeans(data, None)


class _Daal:
    """Fits of K-means in the bare world."""

    def __init__(self, client: Client, bare: Turns, X: Array, rows: int) -> None:
        from workbench.bench.bare_fits import setting
        from workbench.collective.api import run_on_ranks

        self._bare, self._order = bare, daal.Order(rows, ITERATIONS)
        self._pids = list(client.run(os.getpid).values())
        self._settings = run_on_ranks(setting, X, client=client)

    def fit(self) -> Timed:
        """Return the time of the slowest rank, and the centers, while the ranks of the cluster are stopped."""
        with measuring.halted(self._pids):
            fits: list[daal.Fit] = self._bare.take(self._order, _WITHIN)
        settings = [fit.setting for fit in fits]
        if settings != self._settings:
            raise WorkbenchError(f"world, threads, cores and alignment are {settings}, in the cluster {self._settings}")
        contests.require_all(fits[0].iterations)
        return max(fit.seconds for fit in fits), fits[0].centers


def _measure(contest: Contest, arms: list[str], ranks: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each fit."""
    expected: Any = None
    for number, arm in alternate(arms, rounds):
        seconds, found = contest.arms[arm]()
        expected = contest.value(found) if expected is None else expected
        contest.require_same(arm, found, expected)
        if number:
            yield {"what": contest.what, "arm": arm, "ranks": ranks, "round": number, "seconds": seconds}


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures.

    Returns
    -------
    summary : dict
        ``kmeans_vs_dask_ml``, ``kmeans_vs_daal4py``, ``kmeans_vs_heat``, ``logistic_vs_dask_ml``,
        ``logistic_vs_dask_ml_unscaled`` and ``svd_vs_svd_compressed``: the median time of the peer over ours; None
        where it was not measured. Each with its ``target``, if it has one; and the medians of all arms in seconds.
    """
    measured = dict.fromkeys((row["what"], row["arm"]) for row in rows)
    medians = {(what, arm): statistics.median(_values(rows, what, arm)) for what, arm in measured}
    summary: dict[str, Any] = {}
    for (what, peer), target in TARGETS.items():
        name = f"{what}_vs_{peer}"
        summary[name] = medians[what, peer] / medians[what, OURS] if (what, peer) in medians else None
        if target:
            summary[f"{name}_target"] = target
    return summary | {f"{what}_{arm}_seconds": median for (what, arm), median in medians.items()}


def _values(rows: list[dict[str, Any]], what: str, arm: str) -> list[float]:
    return [row["seconds"] for row in rows if (row["what"], row["arm"]) == (what, arm)]


def plot(report: Report) -> Figure:
    """Draw every fit of ours beside those of each peer, with their medians."""
    measured = [(what, peer) for what, peer in TARGETS if report.summary[f"{what}_vs_{peer}"] is not None]
    title = f"Our estimators and their peers on {report.rows[0]['ranks']} ranks: lower is better"
    figure, panels = plotting.figure(report, title, 1, len(measured), width=4.5)
    for panel, (what, peer) in zip(panels, measured, strict=True):
        values = {arm: _values(report.rows, what, arm) for arm in (OURS, peer)}
        plotting.strips(panel, values, "whose estimator", "time of a fit (s)")
        panel.set_title(f"{what}: {peer} / {OURS} = {report.summary[f'{what}_vs_{peer}']:.2f}")
    return figure
