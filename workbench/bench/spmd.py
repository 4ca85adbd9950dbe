"""Cost of an SPMD call: time of a call with an empty body, and of a kernel in its body against bare MPI.

The kernel runs on a cluster and in a separate MPI program, with the same threads; both are alive and take turns of
about a second. While one computes, the ranks of the other are stopped or asleep.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workbench.bench import plotting, turns
from workbench.bench.measuring import cpu_seconds, halted, used
from workbench.bench.report import Report, above_zero, alternate, machine, positive
from workbench.bench.sizes import MIB, sizes
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.launch import mpi_library

if TYPE_CHECKING:
    from dask.array import Array
    from distributed import Client
    from matplotlib.figure import Figure

    from workbench import MPICluster
    from workbench.bench.kernel import Turn
    from workbench.bench.turns import Turns

ARMS = ("spmd", "bare")
"""Where the kernel runs, ours first."""
EMPTY, KERNEL = "empty call", "kernel"
"""What is measured."""
# Calls in one measurement; trials of one kernel, from which the number of kernels in one measurement is computed.
_CALLS, _TRIALS = 20, 3
# Seconds for a bare world to start, and for a turn beyond the time that it is to take.
_START, _PATIENCE = 60.0, 120.0


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("--ranks", type=positive, default=2, help="of the first cluster and the kernel (default: 2)")
    parser.add_argument("--many", type=positive, default=8, help="of the second cluster, more (default: 8)")
    parser.add_argument("--rounds", type=positive, default=15, help="measurements of each figure (default: 15)")
    # Where memory lies changes from start to start, and with it the time of a kernel by some percent.
    parser.add_argument("--starts", type=positive, default=3, help="of all worlds, to share the rounds (default: 3)")
    parser.add_argument("--size", type=sizes, default=[8 * MIB], help="size of the block of a rank (default: 8MiB)")
    parser.add_argument("--seconds", type=above_zero, default=1.0, help="of one turn of the kernel (default: 1)")


def run(options: Namespace) -> Report:
    """Measure on clusters of each size, one after the other, and return the report.

    Raises
    ------
    InvalidRequest
        If the second cluster is not the larger one.
    LaunchError, StartError
        If a cluster or the bare world does not start.
    WorkbenchError
        If the two arms come to different results, or do not run under the same conditions.
    """
    from distributed import Client

    from workbench import MPICluster, run_on_ranks
    from workbench.bench import kernel

    if options.many <= options.ranks:
        allowed = f"more ranks than --ranks, which is {options.ranks}"
        raise InvalidRequest(option="many", given=options.many, allowed=allowed)
    found = mpi_library.find()
    rows = max(1, options.size[-1] // (8 * kernel.COLUMNS))
    measured: list[dict[str, Any]] = []
    starts = min(options.starts, options.rounds)
    rounds = math.ceil(options.rounds / starts)
    for ranks in (options.ranks, options.many) * starts:
        with MPICluster(ranks, quiet=True) as cluster, Client(cluster) as client:
            X, y = run_on_ranks(kernel.block, rows, client=client, result="blocks")
            measured += _empty_calls(cluster, X, y, rounds)
            if ranks == options.ranks:
                with turns.taking(found, ranks, kernel.__name__, _START, rows=rows) as world:
                    measured += _kernels(world, client, X, y, rounds=rounds, seconds=options.seconds)
    return Report("spmd", machine(found) | {"rows": rows, "columns": kernel.COLUMNS}, measured, summarize(measured))


def _empty_calls(cluster: MPICluster, X: Array, y: Array, rounds: int) -> Iterator[dict[str, Any]]:
    """Time calls with an empty body; CPU is that of this process, the head, the launcher and the ranks."""
    from workbench import spmd

    # As one from a notebook, a function that is made here travels by value.
    @spmd
    def nothing(comm: Any, X: Any, y: Any) -> None:
        pass

    ranks = X.numblocks[0]
    head = cluster.record.process.pid
    for number in range(rounds + 1):
        before, own = cpu_seconds(head), time.process_time()
        times = []
        for _ in range(_CALLS):
            begin = time.perf_counter()
            results = nothing(X, y)
            times.append(time.perf_counter() - begin)
            if results != [None] * ranks:
                raise WorkbenchError(f"the empty call came to {results} on {ranks} ranks")
        own = time.process_time() - own
        if number:
            cpu = own + used(before, cpu_seconds(head))
            yield _row((EMPTY, "spmd", ranks, number), statistics.median(times), cpu / _CALLS)


def _kernels(
    world: Turns, client: Client, X: Array, y: Array, *, rounds: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """Time the kernel in the two arms: on each its slowest rank."""
    from workbench import run_on_ranks
    from workbench.bench import kernel

    within, ranks = _PATIENCE + seconds, X.numblocks[0]
    pids = list(client.run(os.getpid).values())

    def bare(repeats: int) -> list[Turn]:
        with halted(pids):
            return world.take(repeats, within)

    def spmd(repeats: int) -> list[Turn]:
        took: list[Turn] = run_on_ranks(kernel.turn, X, y, repeats, timeout=within)
        return took

    repeats = max(1, round(seconds / min(max(turn.seconds for turn in bare(1)) for _ in range(_TRIALS))))
    expected: list[Turn] = []
    for number, arm in alternate(ARMS, rounds):
        turns = bare(repeats) if arm == "bare" else spmd(repeats)
        expected = expected or turns
        for rank, (turn, first) in enumerate(zip(turns, expected, strict=True)):
            _require_same(rank, turn, first)
        if number:
            took, cpu = max(turn.seconds for turn in turns), max(turn.cpu_seconds for turn in turns)
            yield _row((KERNEL, arm, ranks, number), took / repeats, cpu / repeats)


def _require_same(rank: int, turn: Turn, first: Turn) -> None:
    import numpy as np

    if turn.setting != first.setting:
        raise WorkbenchError(f"rank {rank}: threads, cores and alignment are {turn.setting}, before {first.setting}")
    if not np.allclose(turn.gradient, first.gradient, rtol=1e-9):
        raise WorkbenchError(f"rank {rank}: the kernel came to {turn.gradient}, before to {first.gradient}")


def _row(key: tuple[str, str, int, int], seconds: float, cpu: float) -> dict[str, Any]:
    return dict(zip(("what", "arm", "ranks", "round"), key, strict=True)) | {"ms": seconds * 1e3, "cpu_ms": cpu * 1e3}


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures.

    Returns
    -------
    summary : dict
        ``empty_call_ms``, and with the number of ranks in its name the same on the larger cluster: medians.
        ``kernel_ratio``: the median time of the kernel in a call over that in bare MPI. Each with its ``target``.
        With ``cpu`` in its name the same of CPU time, of all processes of the cluster and the notebook, or of the
        thread that runs the kernel: other programs on the machine change it less.
    """
    few, many = sorted({row["ranks"] for row in rows if row["what"] == EMPTY})
    summary: dict[str, Any] = {}
    for name, ranks, target in (("empty_call", few, 10.0), (f"empty_call_{many}", many, 25.0)):
        summary[f"{name}_ms"] = _median(rows, EMPTY, "spmd", ranks, "ms")
        summary[f"{name}_target_ms"] = target
        summary[f"{name}_cpu_ms"] = _median(rows, EMPTY, "spmd", ranks, "cpu_ms")
    for name, column in (("kernel_ratio", "ms"), ("kernel_cpu_ratio", "cpu_ms")):
        ours, theirs = (_median(rows, KERNEL, arm, few, column) for arm in ARMS)
        summary[name] = ours / theirs
    return summary | {"kernel_target": 1.02, "kernel_ms": _median(rows, KERNEL, "spmd", few, "ms")}


def _median(rows: list[dict[str, Any]], what: str, arm: str, ranks: int, column: str) -> float:
    return statistics.median(_values(rows, what, arm, ranks, column))


def _values(rows: list[dict[str, Any]], what: str, arm: str, ranks: int, column: str = "ms") -> list[float]:
    return [row[column] for row in rows if (row["what"], row["arm"], row["ranks"]) == (what, arm, ranks)]


def plot(report: Report) -> Figure:
    """Draw every measurement of the empty call at both sizes, and of the kernel in both arms, with their medians."""
    figure, (left, right) = plotting.figure(report, "Calls on all ranks: lower is better", 1, 2)
    few, many = sorted({row["ranks"] for row in report.rows if row["what"] == EMPTY})
    calls = {f"{ranks} ranks": _values(report.rows, EMPTY, "spmd", ranks) for ranks in (few, many)}
    plotting.strips(left, calls, "size of the world", "time of a call with an empty body (ms)")
    left.set_title("Hand-off")
    arms = {"in a call": "spmd", "bare MPI": "bare"}
    kernels = {label: _values(report.rows, KERNEL, arm, few) for label, arm in arms.items()}
    plotting.strips(right, kernels, f"where it runs, {few} ranks", "time of a kernel (ms)")
    right.set_title(f"call / bare = {report.summary['kernel_ratio']:.3f}")
    return figure
