"""Trials of an Optuna study on groups of ranks, against the same objectives in one call that needs no study.

In the reference each group runs its share of the trials one after the other, so the reference has the time of an ideal
scheduler. The objective waits, as one that computes on a device: the ranks may have fewer cores than groups.
"""

from __future__ import annotations

import statistics
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from workbench.bench import measuring
from workbench.bench.report import Report, above_zero, alternate, machine, positive
from workbench.errors import WorkbenchError
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from distributed import Client

OURS, IDEAL = "tune", "ideal"
"""The arms."""
TARGET = 1.25
"""Largest valid ratio of the time of `tune` over the ideal."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--ranks", type=positive, default=4, help="ranks of the cluster (default: 4)")
    parser.add_argument("--group", type=positive, nargs="+", default=[1, 2], help="ranks of a trial (default: 1 2)")
    parser.add_argument("--trials", type=positive, default=40, help="trials of a study (default: 40)")
    parser.add_argument("--seconds", type=above_zero, default=0.25, help="seconds of a trial (default: 0.25)")
    parser.add_argument("--rounds", type=positive, default=9, help="measurements of each arm (default: 9)")


def run(options: Namespace) -> Report:
    """Measure both arms on one cluster, and return the report.

    Raises
    ------
    StartError
        If the cluster does not start.
    WorkbenchError
        If Optuna is not installed, a group has more ranks than the cluster, or the arms have different values.
    """
    from distributed import Client

    from workbench.cluster import MPICluster

    rows = []
    with MPICluster(options.ranks, quiet=True) as cluster, Client(cluster) as client:
        for group in options.group:
            arms: dict[str, Callable[[], list[float]]] = {
                OURS: lambda group=group: tuned(client, options.trials, options.seconds, group),  # type: ignore[misc]
                IDEAL: lambda group=group: shared(client, options.trials, options.seconds, group),  # type: ignore[misc]
            }
            for number, arm in alternate([*arms], options.rounds):
                begin = time.perf_counter()
                values = arms[arm]()
                seconds = time.perf_counter() - begin
                if values != [_value(point) for point in range(options.trials)]:
                    raise WorkbenchError(f"{arm} with groups of {group} ranks has the values {values}")
                if number:  # round 0 warms up
                    rows.append({"group": group, "round": number, "arm": arm, "seconds": seconds})
    facts = {"ranks": options.ranks, "optuna": version("optuna"), "trials": options.trials, "of": options.seconds}
    return Report("tune", machine(mpi_library.find()) | facts, rows, summarize(rows))


def tuned(client: Client, trials: int, seconds: float, group: int) -> list[float]:
    """Return the values of the trials of a study that `workbench.tune.tune` runs, in the order of their parameters."""
    import optuna

    from workbench.tune import tune

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.GridSampler({"point": list(range(trials))})
    study = tune(_objective, optuna.create_study(sampler=sampler), trials, seconds, ranks=group, client=client)
    values = {trial.params["point"]: trial.values[0] for trial in study.trials}
    return [values[point] for point in range(trials)]


def shared(client: Client, trials: int, seconds: float, group: int) -> list[float]:
    """Return the same values, from one call in which each group has its share of the trials."""
    from workbench.collective.api import run_on_ranks

    def share(comm: Any) -> dict[int, float]:
        mine = range(comm.rank // group, trials, comm.size // group) if comm.rank < comm.size // group * group else ()
        values = {}
        for point in mine:
            threading.Event().wait(seconds)
            values[point] = _value(point)
        return values

    values: dict[int, float] = {}
    for part in run_on_ranks(share, client=client):
        values |= part
    return [values[point] for point in range(trials)]


def _objective(_: Any, trial: Any, seconds: float) -> float:
    point = trial.suggest_int("point", 0, 1_000_000)
    threading.Event().wait(seconds)
    return _value(point)


def _value(point: int) -> float:
    return (point - 7.0) ** 2


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of the paired ratios for each size of a group, with their intervals, and the median times."""
    summary: dict[str, Any] = {}
    for group in dict.fromkeys(row["group"] for row in rows):
        times = {
            arm: [row["seconds"] for row in sorted(rows, key=lambda row: row["round"]) if _is(row, group, arm)]
            for arm in (OURS, IDEAL)
        }
        summary |= measuring.figures(f"groups_of_{group}", times[OURS], times[IDEAL])
        summary[f"groups_of_{group}_seconds"] = statistics.median(times[OURS])
    return summary | {"target": TARGET}


def _is(row: dict[str, Any], group: int, arm: str) -> bool:
    return bool(row["group"] == group and row["arm"] == arm)
