"""Training of a deep residual net in layouts of stages and replicas, against one process.

The layouts train in one world, from the same weights on the same rows, and their losses must agree. Memory is measured
in a separate world for each layout, since memory that a process has used once is not seen to grow again.
"""

from __future__ import annotations

import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from workbench.bench import measuring
from workbench.bench.report import Report, alternate, machine, positive
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from distributed import Client

    from benchmarks.layouts import Arm, Net

ONE = "one"
"""The arm of one process, which passes a batch as a whole."""
ALLOWANCE = 1.15
"""Memory of a rank with one stage for each rank, over an equal share of that of one process, at most."""
# Steps of the trainings whose losses are compared, and the largest valid difference.
_CHECKED, _APART = 3, {"float64": 1e-10, "float32": 1e-5}
# Imported one time for all ranks, and not counted as memory of a training.
_IMPORTED = ["workbench.torch.pipelines.cutting"]
# Seconds for the ranks to be done with one turn.
_WITHIN = 1800.0


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--ranks", type=positive, default=4, help="ranks of the cluster (default: 4)")
    parser.add_argument("--depth", type=positive, default=110, help="layers of the net, 9 n + 2 (default: 110)")
    parser.add_argument("--width", type=positive, default=16, help="channels of the first layer (default: 16)")
    parser.add_argument("--image", type=positive, default=32, help="height and width of an image (default: 32)")
    parser.add_argument("--size", type=positive, default=32, help="rows of a batch (default: 32)")
    parser.add_argument("--microbatches", type=positive, default=8, help="parts of a batch (default: 8)")
    parser.add_argument("--steps", type=positive, default=1, help="steps of a measurement (default: 1)")
    parser.add_argument("--rounds", type=positive, default=3, help="measurements of each layout (default: 3)")


def run(options: Namespace) -> Report:
    """Measure on several clusters, one after the other, and return the report.

    Raises
    ------
    InvalidRequest
        If PyTorch is not installed, there is one rank only, or the batch cannot be shared.
    StartError
        If a cluster does not start.
    WorkbenchError
        If the losses of two layouts differ.
    """
    from workbench.torch.context import require_torch

    require_torch()
    if options.ranks < 2:
        raise InvalidRequest("--ranks 1 is not valid: a pipeline needs 2 ranks or more")
    from benchmarks.layouts import Net

    net = Net(options.depth, options.width, options.image, options.size, options.microbatches)
    with _bench(options.ranks, net) as bench:
        apart = bench.check()
        rows = list(bench.measure(options.rounds, options.steps))
    for arm in arms(options.ranks):
        with _bench(options.ranks, net) as bench:
            rows.append(bench.memory(arm))
    facts = {"ranks": options.ranks, "torch": version("torch"), "layers": net.depth, "width": net.width}
    facts |= {"image": net.image, "rows of a batch": net.size, "microbatches": net.microbatches}
    return Report("hybrid", machine(mpi_library.find()) | facts, rows, summarize(rows, options.ranks) | apart)


def arms(ranks: int) -> list[Arm]:
    """Return the arms on a number of ranks: one process, each layout by 1F1B, and other schedules of all stages."""
    from benchmarks.layouts import Arm

    stages = [number for number in range(1, ranks + 1) if ranks % number == 0]
    return [Arm(0), *map(Arm, stages), Arm(ranks, "gpipe"), Arm(ranks, "bidirectional")]


@contextmanager
def _bench(ranks: int, net: Net) -> Iterator[Bench]:
    """Start a cluster, and end the cluster after the measurements."""
    from distributed import Client

    from workbench.cluster import MPICluster

    with MPICluster(ranks, preload=_IMPORTED, quiet=True) as cluster, Client(cluster) as client:
        yield Bench(client, ranks, net)


class Bench:
    """The arms on one cluster.

    Parameters
    ----------
    client
        Client of the cluster.
    ranks
        Number of ranks.
    net
        The net and its batches.
    """

    def __init__(self, client: Client, ranks: int, net: Net) -> None:
        self._client, self._ranks, self._net = client, ranks, net

    def check(self) -> dict[str, float]:
        """Compare the losses of all layouts with those of one process that passes the same microbatches.

        Returns
        -------
        apart : dict
            ``float64_apart`` and ``float32_apart``, the largest differences.

        Raises
        ------
        WorkbenchError
            If a difference is not valid.
        """
        largest: dict[str, float] = {}
        for dtype, apart in _APART.items():
            expected: list[float] = []
            net = replace(self._net, dtype=dtype)
            for arm in arms(self._ranks):
                turns = self._train(arm, net, _CHECKED, net.microbatches)
                found = turns[0].losses
                expected = expected or found
                differences = [abs(one - other) for one, other in zip(found, expected, strict=True)]
                largest[f"{dtype}_apart"] = max(largest.get(f"{dtype}_apart", 0.0), *differences)
                # Not a number is not the same.
                if not all(each <= apart for each in differences):
                    name = arm.name(self._ranks)
                    raise WorkbenchError(f"the losses of {name} in {dtype} are {found}, those of {ONE} {expected}")
        return largest

    def measure(self, rounds: int, steps: int) -> Iterator[dict[str, Any]]:
        """Yield a row for each turn: milliseconds of a step."""
        named = {arm.name(self._ranks): arm for arm in arms(self._ranks)}
        for number, name in alternate([*named], rounds):
            turns = self._train(named[name], self._net, steps, 1)
            if number:  # round 0 warms up
                value = 1e3 * max(turn.seconds for turn in turns) / steps
                yield {"measure": "ms", "arm": name, "round": number, "value": value}

    def memory(self, arm: Arm) -> dict[str, Any]:
        """Return a row with the memory of the rank that takes most, in MB."""
        from benchmarks.layouts import growth

        grown = self._on_ranks(growth, arm, self._net)
        return {
            "measure": "MB",
            "arm": arm.name(self._ranks),
            "round": 1,
            "value": max(each.nbytes for each in grown) / 1e6,
        }

    def _train(self, arm: Arm, net: Net, steps: int, parts: int) -> list[Any]:
        from benchmarks.layouts import train

        return self._on_ranks(train, arm, net, steps, parts)

    def _on_ranks(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        from workbench.collective.api import run_on_ranks

        return list(run_on_ranks(function, *args, client=self._client, timeout=_WITHIN))


def summarize(rows: list[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """Return the figures.

    Returns
    -------
    summary : dict
        For each arm ``NAME_ms``, the median time of a step, and ``NAME_mb``, the memory of the rank that takes most.
        For each layout ``NAME_memory``, its memory over that of one process, and ``NAME_time``, the median of the
        ratios of times of a round with the ends of its interval (``_low``, ``_high``). ``memory_target``: the largest
        valid ``NAME_memory`` with a stage for each rank.
    """
    summary: dict[str, Any] = {}
    times, memory = _values(rows, "ms"), {name: values[0] for name, values in _values(rows, "MB").items()}
    for name in times:
        if name != ONE:
            summary |= measuring.figures(f"{name}_time", times[name], times[ONE])
            summary[f"{name}_memory"] = memory[name] / memory[ONE]
    summary["memory_target"] = ALLOWANCE / ranks
    for name, values in times.items():
        summary |= {f"{name}_ms": statistics.median(values), f"{name}_mb": memory[name]}
    return summary


def _values(rows: list[dict[str, Any]], measure: str) -> dict[str, list[float]]:
    """Return the values of each arm, in the order of the rounds."""
    values: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda row: int(row["round"])):
        if row["measure"] == measure:
            values.setdefault(row["arm"], []).append(row["value"])
    return values
