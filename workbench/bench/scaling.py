"""How fits scale with ranks, and what memory they take: both of our engines and the same kernels in bare MPI.

Strong scaling shares the same rows among more ranks, weak scaling gives each rank as many. Where ranks share cores, the
report states that, and the cores limit the best possible value.
"""

from __future__ import annotations

import argparse
import math
import statistics
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from itertools import product
from typing import TYPE_CHECKING, Any

from workbench.bench import plotting
from workbench.bench.arms import BARE, ENGINES, MODELS, Arms, bare_world, fit_options, rows_for
from workbench.bench.report import Report, machine, positive
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distributed import Client
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from workbench.bench.bare_fits import Order
    from workbench.bench.measuring import Growth
    from workbench.bench.turns import Turns

KINDS = ("strong", "weak")
"""The same rows in all; the same rows on each rank."""
STATED, FIXED = {"kmeans": 11, "logistic": 18}, 8 << 20
"""Bytes that the parts of each model state as their work space: of each row, and for slices of a fixed size."""
_ARMS = (*ENGINES, BARE)
_LABELS = {"mpi": 'engine="mpi"', "dask": 'engine="dask"', BARE: "bare MPI"}


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument(
        "--ranks", type=_numbers, default=[1, 2, 4, 8], help="numbers of them, beside 1 (default: 1,2,4,8)"
    )
    # With numbers of ranks that ascend and descend in turn, a machine that slows down does not seem to scale badly.
    fit_options(parser, rounds=4, starts=2, iterations=10, milliseconds=20.0)


def _numbers(text: str) -> list[int]:
    """Return the numbers of ranks that an option gives, ascending; the first is 1.

    Raises
    ------
    argparse.ArgumentTypeError
        If one of them is no whole number above zero.
    """
    try:
        return sorted({1, *map(positive, text.split(","))})
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}, or several such as 1,2,4,8") from None


def run(options: Namespace) -> Report:
    """Measure on several starts of all worlds, and return the report.

    Raises
    ------
    InvalidRequest
        If a fit converges before its iterations are made.
    LaunchError, StartError
        If a cluster or a bare world does not start.
    WorkbenchError
        If the arms, or numbers of ranks that fit the same data, come to different results, or do not run under the
        same conditions.
    """
    from distributed import Client

    from workbench import MPICluster

    found = mpi_library.find()
    fits = _Fits(_rows(found, options), options)
    starts = min(options.starts, options.rounds)
    for start in range(starts):
        for ranks in options.ranks if start % 2 == 0 else reversed(options.ranks):
            with (
                bare_world(found, ranks) as bare,
                MPICluster(ranks, quiet=True) as cluster,
                Client(cluster) as client,
            ):
                fits.measure(client, bare, ranks, math.ceil(options.rounds / starts))
                if start == starts - 1:
                    fits.weigh(client, bare, ranks)
    facts = machine(found)
    table = list(fits.table(facts["cores"]))
    facts |= {f"rows of {model}": rows for model, rows in fits.rows.items()} | {"iterations": options.iterations}
    return Report("scaling", facts, table, summarize(table, facts["cores"]))


def _rows(found: mpi_library.MPI, options: Namespace) -> dict[str, int]:
    """Return the rows of 1 rank of each model, which all numbers of ranks can share."""
    rows = dict.fromkeys(MODELS, options.rows)
    if options.rows is None:
        with bare_world(found, 1) as bare:
            rows = {model: rows_for(bare, model, options.iterations, options.iteration_ms) for model in MODELS}
    pieces = math.lcm(*options.ranks)
    return {model: math.ceil(number / pieces) * pieces for model, number in rows.items()}


class _Fits:
    """What is fitted on all numbers of ranks, and what was measured of it."""

    def __init__(self, rows: dict[str, int], options: Namespace) -> None:
        self.rows = rows
        self._ranks, self._iterations = options.ranks, options.iterations
        # By number of ranks, what each of them fits, and arm.
        self._times: dict[tuple[int, Order, str], list[float]] = defaultdict(list)
        self._growths: dict[tuple[int, Order, str], Growth] = {}
        # What is found in the same data, by model and number of pieces.
        self._expected: dict[tuple[str, int], Any] = {}

    def _order(self, model: str, kind: str, ranks: int) -> Order:
        """Return what each rank fits; on 1 rank both kinds are the same."""
        from workbench.bench.bare_fits import Order

        share = ranks if kind == "strong" else 1
        return Order(model, self.rows[model] // share, self._iterations, math.lcm(*self._ranks) // share)

    def measure(self, client: Client, bare: Turns, ranks: int, rounds: int) -> None:
        """Measure times on a cluster and a bare program of so many ranks."""
        for order, arms in self._each(client, bare, ranks):
            for _, arm, seconds in arms.measure(rounds):
                self._times[ranks, order, arm].append(seconds)

    def weigh(self, client: Client, bare: Turns, ranks: int) -> None:
        """Measure memory there, after all times."""
        for order, arms in self._each(client, bare, ranks):
            for arm, growth in arms.growth().items():
                self._growths[ranks, order, arm] = growth

    def _each(self, client: Client, bare: Turns, ranks: int) -> Iterator[tuple[Order, Arms]]:
        for order in dict.fromkeys(self._order(model, kind, ranks) for model in MODELS for kind in KINDS):
            data = order.model, order.pieces * ranks
            arms = Arms(client, bare, order, self._expected.get(data))
            yield order, arms
            self._expected[data] = arms.expected

    def table(self, cores: int) -> Iterator[dict[str, Any]]:
        """Yield a row for each model, kind, number of ranks and arm."""
        for model, kind, ranks, arm in product(MODELS, KINDS, self._ranks, _ARMS):
            order, alone = (self._order(model, kind, number) for number in (ranks, 1))
            times, growth = self._times[ranks, order, arm], self._growths[ranks, order, arm]
            seconds, on_one = statistics.median(times), statistics.median(self._times[1, alone, arm])
            yield {
                "model": model,
                "scaling": kind,
                "ranks": ranks,
                "arm": arm,
                "rows": order.rows,
                "fits": len(times),
                "seconds": seconds,
                "fastest": min(times),
                "slowest": max(times),
                "efficiency": on_one * best(kind, ranks, cores) / seconds,
                "beyond_block": growth.nbytes,
                "of_block": growth.nbytes / order.nbytes,
                "stated": stated(model, order.rows),
                "memory_by": growth.how,
                "note": note(ranks, cores),
            }


def stated(model: str, rows: int) -> int:
    """Return the bytes that a rank takes at most, beyond so many rows, as the parts of the model state it."""
    return STATED[model] * rows + FIXED


def best(kind: str, ranks: int, cores: int) -> float:
    """Return the shortest time that so many cores allow, in times of 1 rank.

    Examples
    --------
    >>> best("strong", 4, 2), best("weak", 2, 2), best("weak", 4, 2)
    (0.5, 1.0, 2.0)
    """
    return (1 if kind == "strong" else ranks) / min(ranks, cores)


def note(ranks: int, cores: int) -> str:
    """Return a note for a number of ranks; an empty text if each rank has a core.

    Examples
    --------
    >>> note(4, 2)
    '2 cores: 4 ranks share them'
    """
    if ranks <= cores:
        return ""
    return f"{cores} cores: {ranks} ranks share them" if cores > 1 else f"1 core: {ranks} ranks share it"


def summarize(table: Sequence[dict[str, Any]], cores: int) -> dict[str, Any]:
    """Return the figures.

    Returns
    -------
    summary : dict
        ``kmeans_strong_mpi`` and so on, for each model, kind and arm: the time of 1 rank of this arm over that of
        ``ranks_with_cores``, the most ranks that have a core each, as a share of the best that can be.
        ``kmeans_memory`` and ``logistic_memory``: the most that a rank took beyond its block in a fit, over what the
        parts state, which is ``kmeans_stated_bytes_per_row`` and ``fixed_bytes``; and in bytes ``..._beyond_block``.
    """
    most = max(row["ranks"] for row in table if row["ranks"] <= cores)
    summary = {
        f"{row['model']}_{row['scaling']}_{row['arm']}": row["efficiency"] for row in table if row["ranks"] == most
    }
    for model in MODELS:
        chosen = [row for row in table if row["model"] == model]
        summary[f"{model}_memory"] = max(row["beyond_block"] / row["stated"] for row in chosen)
        summary[f"{model}_beyond_block"] = max(row["beyond_block"] for row in chosen)
        summary[f"{model}_stated_bytes_per_row"] = STATED[model]
    return {"ranks_with_cores": most} | summary | {"fixed_bytes": FIXED}


def plot(report: Report) -> Figure:
    """Draw the times of all arms over the number of ranks, and the best that the cores allow."""
    cores = report.machine["cores"]
    most = max(row["ranks"] for row in report.rows)
    title = f"Fits on 1 to {most} ranks on {cores} core{'s' * (cores > 1)}: lower is better"
    figure, panels = plotting.figure(report, title, len(MODELS), len(KINDS))
    each = [(model, kind) for model in MODELS for kind in KINDS]
    for panel, (model, kind) in zip(panels, each, strict=True):
        rows = [row for row in report.rows if (row["model"], row["scaling"]) == (model, kind)]
        _draw(panel, kind, rows, cores)
        of = "in all" if kind == "strong" else "on each rank"
        panel.set_title(f"{model}, {kind}: {rows[0]['rows']:,} rows {of}")
    # Once for all panels, where it covers none of them.
    plotting.legend(figure, panels[0])
    return figure


def _draw(panel: Axes, kind: str, rows: Sequence[dict[str, Any]], cores: int) -> None:
    from matplotlib.ticker import NullLocator

    ranks = sorted({row["ranks"] for row in rows})
    plotting.ratio_axis(panel)
    panel.set_xscale("log", base=2)
    panel.set_xticks(ranks, list(map(str, ranks)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set(xlabel="ranks", ylabel="time of a fit (s)")
    alone = next(row["seconds"] for row in rows if (row["ranks"], row["arm"]) == (1, BARE))
    corners = sorted({*ranks, min(cores, ranks[-1])})
    panel.plot(
        *(corners, [alone * best(kind, number, cores) for number in corners]),
        color=plotting.GRAY,
        linestyle="--",
        label=f"ideal, up to\n{cores} core{'s' * (cores > 1)}",
    )
    if ranks[-1] > cores:
        panel.axvspan(cores, 2 * ranks[-1], color="0.93", zorder=0, label="ranks share cores")
    # A little apart, so that arms with equal values can be distinguished.
    looks = zip(_ARMS, (plotting.BLUE, plotting.GREEN, plotting.ORANGE), "o^s", (0.96, 1.0, 1.04), strict=True)
    for arm, color, marker, shift in looks:
        chosen = [row for row in rows if row["arm"] == arm]
        at, seconds = [row["ranks"] * shift for row in chosen], [row["seconds"] for row in chosen]
        panel.plot(at, seconds, color=color, marker=marker, markersize=5, label=_LABELS[arm])
        panel.vlines(
            at, [row["fastest"] for row in chosen], [row["slowest"] for row in chosen], color=color, linewidth=1
        )
    panel.set_xlim(0.85, ranks[-1] * 1.18)
