"""Data-parallel training of three nets of PyTorch on our process group, against gloo and a parameter server of Dask.

All arms train in one world, from the same weights on the same rows, and their losses have to agree. What counts is the
ratio of two turns of one round: see `workbench.bench.measuring`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from benchmarks import nets, parameter_server
from benchmarks.nets import BATCHES, GLOO, LOADER, OURS, STREAM, Turn
from benchmarks.parameter_server import SERVER
from workbench.bench import measuring, plotting
from workbench.bench.report import Report, above_zero, alternate, machine, positive
from workbench.errors import WorkbenchError
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

FEEDING, STREAMING = "feeding", "streaming"
"""What is measured beside the nets: batches of rows in memory, and of rows in Parquet files."""
WHAT = (*nets.NETS, FEEDING, STREAMING)
"""What is measured."""
TARGETS = {
    ("mlp", GLOO): 1.15,
    ("small", GLOO): 1.15,
    ("resnet", GLOO): 1.0,
    ("mlp", SERVER): 1.8,
    (FEEDING, LOADER): 10.0,
    (STREAMING, LOADER): 2.0,
}
"""Target ratio: time of the peer over ours."""
# Steps of a turn, which takes about a second; rows of each rank that are fed in one.
_STEPS, _ROWS = {"mlp": 10, "small": 400, "resnet": 5}, 64_000
# Steps of the trainings whose losses are compared in double precision, and how far losses may be apart.
_CHECKED, _APART = 2, {"float64": 1e-12, "float32": 1e-5}
# Busy processes beside the ranks; rounds and starts of the full form over those of the short one.
_LOOPS, _FULL = 2, 3
# Ends with its parent, however that ends.
_LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(1_000_000): pass"
# Seconds for the ranks to be done with one turn.
_WITHIN = 300.0


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--ranks", type=positive, default=2, help="of the cluster (default: 2)")
    parser.add_argument("--rounds", type=positive, default=9, help="measurements of each arm (default: 9)")
    parser.add_argument("--scale", type=above_zero, default=1.0, help="factor for the length of a turn (default: 1)")
    parser.add_argument(
        "--only", nargs="+", choices=WHAT, default=WHAT, help=f"what to measure (default: {' '.join(WHAT)})"
    )
    parser.add_argument("--busy", action="store_true", help=f"measure beside {_LOOPS} busy processes, too")
    full = f"{_FULL} starts of the cluster, with as many rounds each"
    parser.add_argument("--full", action="store_true", help=full)


def run(options: Namespace) -> Report:
    """Measure on a separate cluster, or several one after the other, and return the report.

    Raises
    ------
    InvalidRequest
        If PyTorch is not installed.
    StartError
        If a cluster does not start.
    WorkbenchError
        If the arms come to different results.
    """
    from distributed import Client

    from workbench.cluster import MPICluster
    from workbench.torch.context import require_torch

    require_torch()
    measured: list[dict[str, Any]] = []
    listening: dict[str, int] = {}
    for start in range(1, (_FULL if options.full else 1) + 1):
        with MPICluster(options.ranks, quiet=True) as cluster, Client(cluster) as client:
            bench = Bench(client, options.scale, options.only)
            listening = bench.check()
            for loops in (0, _LOOPS) if options.busy else (0,):
                with busy(loops):
                    measured += [{"start": start, "busy": loops} | row for row in bench.measure(options.rounds)]
    facts = {"ranks": options.ranks, "torch": version("torch"), "rows of a batch": nets.BATCH * options.ranks}
    return Report("training", machine(mpi_library.find()) | facts, measured, summarize(measured) | listening)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep this number of processes busy meanwhile."""
    words = [sys.executable, "-I", "-S", "-c", _LOOP, str(os.getpid())]
    started = [subprocess.Popen(words, stdin=subprocess.DEVNULL) for _ in range(loops)]
    try:
        yield
    finally:
        for loop in started:
            loop.kill()
            loop.wait()


class Bench:
    """The arms on one cluster.

    Parameters
    ----------
    client
        Of the cluster.
    scale
        Factor for the length of a turn.
    what
        What is measured.
    """

    def __init__(self, client: Client, scale: float, what: Sequence[str] = WHAT) -> None:
        self._client, self._scale, self._what = client, scale, what
        self._rows = nets.BATCH * self._scaled(_ROWS // nets.BATCH)
        self._data = self._on_ranks(nets.block, self._rows, result="blocks")
        self._expected: dict[tuple[str, str], list[float]] = {}

    def check(self) -> dict[str, int]:
        """Compare the losses of all arms in double precision, and return how many sockets more listen on a rank."""
        listening: dict[str, int] = {}
        for net in nets.NETS:
            for arm in _arms(net) if net in self._what else []:
                turns = self._train(net, arm, _CHECKED, "float64")
                if arm != SERVER:
                    listening[f"listening_{arm}"] = max(turn.listening for turn in turns)
        return listening

    def measure(self, rounds: int) -> Iterator[dict[str, Any]]:
        """Yield a row for each turn: milliseconds of a step, or of an epoch that is fed."""
        ranks = self._data[0].numblocks[0]
        for what in self._what:
            with self._turn(what) as turn:
                for number, arm in alternate(_arms(what), rounds):
                    took = turn(what, arm, number)
                    if number:
                        yield {"what": what, "arm": arm, "ranks": ranks, "round": number, "ms": took}

    @contextmanager
    def _turn(self, what: str) -> Iterator[Callable[[str, str, int], float]]:
        """Return the function that measures a turn, with its files."""
        if what != STREAMING:
            yield self._ms if what in nets.NETS else partial(self._feed, nets.feed, self._data)
            return
        import dask.dataframe as dd

        from workbench.torch import stream

        with tempfile.TemporaryDirectory(prefix="workbench-bench-") as folder:
            self._on_ranks(nets.write, *self._data, folder)
            frame = dd.read_parquet(folder)
            data = stream(frame[[*frame.columns[:-1]]], frame["number"])
            yield partial(self._feed, nets.feed_files, (data, folder))

    def _ms(self, net: str, arm: str, _: int) -> float:
        steps = self._scaled(_STEPS[net])
        seconds: float = max(turn.seconds for turn in self._train(net, arm, steps, "float32"))
        return 1e3 * seconds / steps

    def _train(self, net: str, arm: str, steps: int, dtype: str) -> list[Turn]:
        if arm == SERVER:
            turns = [parameter_server.train(self._client, net, steps, dtype)]
        else:
            turns = self._on_ranks(nets.train, arm, net, steps, dtype)
        for turn in turns:
            require_same(f"the losses of {net} by {arm}", turn.losses, self._expected, (net, dtype))
        return turns

    def _feed(self, feed: Callable[..., Any], source: Sequence[Any], what: str, arm: str, number: int) -> float:
        fed: list[tuple[float, int]] = self._on_ranks(feed, *source, arm, number)
        count = self._rows * len(fed)
        if sum(total for _, total in fed) != count * (count - 1) // 2:
            raise WorkbenchError(f"{what} by {arm} did not have every row once")
        return 1e3 * max(seconds for seconds, _ in fed)

    def _on_ranks(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        from workbench.collective.api import run_on_ranks

        return run_on_ranks(function, *args, client=self._client, timeout=_WITHIN, **options)

    def _scaled(self, number: int) -> int:
        return max(1, round(number * self._scale))


def _arms(what: str) -> list[str]:
    """Return the ways that are compared, ours first."""
    return [{FEEDING: BATCHES, STREAMING: STREAM}.get(what, OURS), *(peer for of, peer in TARGETS if of == what)]


def require_same(
    what: str, found: list[float], expected: dict[tuple[str, str], list[float]], key: tuple[str, str]
) -> None:
    """Raise an error unless two arms of a contest have the same losses."""
    first = expected.setdefault(key, found)
    apart = [abs(one - other) for one, other in zip(found, first, strict=True)]
    # Not a number is not the same.
    if not all(each <= _APART[key[1]] for each in apart):
        raise WorkbenchError(f"{what} are not those of {OURS} in {key[1]}: the losses {found} are not {first}")


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures.

    Returns
    -------
    summary : dict
        ``mlp_vs_gloo``, ``small_vs_gloo``, ``resnet_vs_gloo``, ``mlp_vs_server``, ``feeding_vs_DataLoader`` and
        ``streaming_vs_DataLoader``: the time of the peer over ours, median of the rounds, with the ends of its interval
        (``_low``, ``_high``) and the ratio of the lowest times (``_lowest``); with ``_busy`` in the name the same
        beside busy processes. Each with its ``target``. The medians and the lowest times of all arms in ms.
    """
    summary: dict[str, Any] = {}
    for what, peer, loops in _comparisons(rows):
        theirs, ours = (_values(rows, what, arm, loops) for arm in (peer, _arms(what)[0]))
        name = f"{what}_vs_{peer}{_ending(loops)}"
        summary |= measuring.figures(name, theirs, ours)
        summary |= {f"{name}_lowest": min(theirs) / min(ours), f"{name}_target": TARGETS[what, peer]}
    for what, arm, loops in dict.fromkeys((row["what"], row["arm"], row["busy"]) for row in rows):
        times = _values(rows, what, arm, loops)
        name = f"{what}_{arm}{_ending(loops)}"
        summary |= {f"{name}_ms": statistics.median(times), f"{name}_lowest_ms": min(times)}
    return summary


def _comparisons(rows: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """Return what was measured of ours and of a peer, with the peer and the number of busy processes."""
    measured = {(row["what"], row["busy"]) for row in rows}
    loads = sorted({row["busy"] for row in rows})
    return [(what, peer, loops) for loops in loads for what, peer in TARGETS if (what, loops) in measured]


def _ending(loops: int) -> str:
    return "_busy" if loops else ""


def _values(rows: list[dict[str, Any]], what: str, arm: str, loops: int) -> list[float]:
    """Return the times of an arm in the order of starts and rounds, which those of all arms share."""
    chosen = [row for row in rows if (row["what"], row["arm"], row["busy"]) == (what, arm, loops)]
    return [row["ms"] for row in sorted(chosen, key=lambda row: (row["start"], row["round"]))]


def plot(report: Report) -> Figure:
    """Draw every turn of ours beside those of each peer, with their medians."""
    shown = _comparisons(report.rows)
    lines = len({loops for _, _, loops in shown})
    title = f"Training on {report.machine['ranks']} ranks: lower is better"
    figure, panels = plotting.figure(report, title, lines, len(shown) // lines, width=4.0)
    for panel, (what, peer, loops) in zip(panels, shown, strict=True):
        arms = (_arms(what)[0], peer)
        unit = "time of a step (ms)" if what in nets.NETS else "time of an epoch (ms)"
        plotting.strips(panel, {arm: _values(report.rows, what, arm, loops) for arm in arms}, "arm", unit)
        ratio = report.summary[f"{what}_vs_{peer}{_ending(loops)}"]
        panel.set_title(f"{what}{', busy' if loops else ''}: {peer} / {arms[0]} = {ratio:.2f}")
    return figure
