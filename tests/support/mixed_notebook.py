"""One of several notebooks on a cluster: operations of 17 kinds by chance, some interrupted, each result compared.

``python -m support.mixed_notebook NAME NUMBER SEED OPERATIONS`` prints a line of JSON for each failure, one at half of
the operations, and a summary. An operation by its number alone: ``--only NUMBER``.
"""

from __future__ import annotations

import argparse
import collections
import enum
import faulthandler
import functools
import gc
import json
import math
import operator
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
from distributed import Client
from distributed.client import FutureCancelledError

import workbench
from support.patience import DEADLINE
from workbench import MPICluster, run_on_ranks, spmd
from workbench.cells import client as cells
from workbench.commands import actions
from workbench.errors import CollectiveFailed, PlacementError, RankLost
from workbench.ml import LinearRegression, StandardScaler

INTERRUPTED = 0.15
"""Part of the operations that get a SIGINT, at a moment by chance. A third of them have ended by then."""

LOST = (RankLost, CollectiveFailed, PlacementError, FutureCancelledError)
"""What an operation may raise while another notebook restarts the ranks; the last one in tasks of Dask."""

KINDS: dict[str, Callable[[Notebook, random.Random], tuple[Any, Any]]] = {}
"""Operations by name; each returns what was found, and what was computed here."""


@dataclass
class Notebook:
    """What the operations use, and what has become of them."""

    cluster: MPICluster
    client: Client
    restarts: int
    """Restarts of the ranks that notebook 0 makes meanwhile."""
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    seconds: collections.Counter[str] = field(default_factory=collections.Counter)
    measured: collections.Counter[str] = field(default_factory=collections.Counter)
    """Operations whose growth counts: not those of the first quarter, which import modules."""
    grown: collections.Counter[str] = field(default_factory=collections.Counter)
    interrupts: int = 0
    lost: int = 0
    wrong: int = 0
    spoiled: int = 0
    starts: int = 1

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.cluster.record.ranks

    def cell(self, code: str, names: dict[str, Any] | None = None, *, values: bool = True) -> cells.CellResult:
        """Run a cell; Ctrl-C raises an error here, as in the other operations."""
        result = cells.run(code, names, client=self.client, values=values, timeout=DEADLINE)
        if result.interrupted:
            raise KeyboardInterrupt
        return result


def kind(operation: Callable[[Notebook, random.Random], tuple[Any, Any]]) -> Any:
    """Add an operation to the mix."""
    KINDS[operation.__name__] = operation
    return operation


# -- calls -----------------------------------------------------------------------------------------------------


def weigh(comm: Any, value: Any, *more: Any) -> Any:
    """Return a sum over the ranks, in which each has its weight."""
    return comm.allreduce(value * (comm.rank + 1) + sum(more))


def weighed(size: int, value: Any, *more: Any) -> Any:
    """Return what `weigh` returns."""
    return value * (size * (size + 1) // 2) + size * sum(more)


@kind
def call(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    value = chance.choice([chance.randrange(1000), np.arange(chance.choice([1, 1000, 200_000]))])
    return run_on_ranks(weigh, value), [weighed(notebook.size, value)] * notebook.size


@kind
def submitted_calls(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    values = [chance.randrange(1000) for _ in range(chance.randrange(2, 6))]
    futures = [spmd(result="root")(weigh).submit(value) for value in values]
    return [future.result(DEADLINE) for future in futures], [weighed(notebook.size, value) for value in values]


@kind
def call_on_some_ranks(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    ranks = chance.sample(range(notebook.size), chance.randrange(1, notebook.size))
    found = run_on_ranks(lambda comm: (comm.allgather(comm.rank), comm.size), ranks=ranks)
    return found, [([*range(len(ranks))], len(ranks))] * len(ranks)


@kind
def failing_call(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    guilty, word = chance.randrange(notebook.size), f"word {chance.random()}"

    def fail(comm: Any) -> None:
        if comm.rank == guilty:
            raise ValueError(word)
        comm.Barrier()

    try:
        found: Any = run_on_ranks(fail)
    except ValueError as error:
        found = error.args, error.__notes__
    return found, ((word,), [f"raised on rank {guilty}, in fail"])


class Color(enum.Enum):
    """An enumeration of a notebook."""

    RED = 1


class Stubborn:
    """An object that answers no question."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        raise TypeError("not to be compared")

    def __bool__(self) -> bool:
        raise TypeError("neither true nor false")

    def __len__(self) -> int:
        raise TypeError("without a length")

    __hash__ = None  # type: ignore[assignment]


class Everything:
    """An object that has any attribute, as those of remote libraries."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self


def described(thing: Any) -> tuple[str, str]:
    """Return the type and the contents of an object."""
    return type(thing).__name__, repr(getattr(thing, "value", thing))


@kind
def odd_objects(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    number = chance.randrange(1000)
    itself: list[Any] = [number]
    itself.append(itself)
    odd = [
        Stubborn(number), Everything(number), Color.RED, itself, ValueError(number), np.float64(np.nan), ...,
        np.array(number), np.empty((0, 3)), pd.Timestamp(number, unit="s"), {None: (number,)}, range(number), b"",
    ]  # fmt: skip
    things = chance.sample(odd, 3)
    back = run_on_ranks(lambda _, things: ([described(each) for each in things], things), things, result="root")
    expected = [described(each) for each in things]
    return (back[0], [described(each) for each in back[1]]), (expected, expected)


# -- data ------------------------------------------------------------------------------------------------------


def rows(chance: random.Random) -> np.ndarray[Any, Any]:
    """Return an array whose sums are exact."""
    length = chance.choice([10, 1000, 40_000])
    return np.random.default_rng(chance.randrange(10**6)).integers(-100, 100, (length, 3)).astype(float)


@kind
def placed_array(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    X = rows(chance)
    given = chance.choice([X, da.from_array(X, chunks=(len(X) // 2, 3))])
    placed = workbench.place(given)
    sums = run_on_ranks(lambda comm, block: comm.allreduce(block.sum(axis=0)), placed, result="root")
    return (sums, placed.compute()), (X.sum(axis=0), X)


@kind
def placed_frame(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    frame = pd.DataFrame({"a": rows(chance)[:500, 0]}).assign(b=lambda table: table.a.astype(int).astype(str))
    placed = workbench.place(frame)
    longest = run_on_ranks(lambda comm, block: comm.allreduce(int(block.b.str.len().sum())), placed, result="root")
    return (longest, placed.compute().to_dict("list")), (int(frame.b.str.len().sum()), frame.to_dict("list"))


@kind
def blocks_of_calls(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    length = chance.choice([1, 10, 10_000])
    made = run_on_ranks(lambda comm: np.full((length, 2), comm.rank), result="blocks")
    expected = np.repeat(np.arange(notebook.size), length)[:, None] * np.ones((1, 2), int)
    return (made.compute(), int(made.sum().compute())), (expected, int(expected.sum()))


@kind
def mapped_blocks(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    X, by = rows(chance), chance.randrange(10)
    parts = workbench.map_blocks(lambda block, by: block.sum(axis=0) * by, workbench.place(X), by)
    return workbench.reduce(operator.add, parts, on=chance.choice(["client", "workers"])), X.sum(axis=0) * by


@kind
def futures_of_broadcasts_and_tasks(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    value = np.arange(chance.choice([10, 300_000]))
    power = notebook.client.submit(pow, 2, chance.randrange(10), pure=False)
    sent = workbench.broadcast(notebook.client, value)
    expected = weighed(notebook.size, value, power.result())
    return run_on_ranks(weigh, sent, power, result="root"), expected


@kind
def tasks(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    X, numbers = rows(chance), [chance.randrange(100) for _ in range(20)]
    squares = notebook.client.map(lambda number: number**2, numbers, pure=chance.random() < 0.5)
    total = da.from_array(X, chunks=(max(1, len(X) // 4), 3)).T.sum(axis=1).compute()
    return (notebook.client.gather(squares), total), ([number**2 for number in numbers], X.sum(axis=0))


@kind
def fit(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    X = np.random.default_rng(chance.randrange(10**6)).normal(size=(chance.choice([30, 3000]), 3))
    if chance.random() < 0.5:
        scaler = StandardScaler().fit(workbench.place(X))
        return scaler.mean_.round(9), X.mean(axis=0).round(9)
    slopes = np.array([chance.randrange(1, 10) for _ in range(3)])
    model = LinearRegression().fit(*workbench.place(X, X @ slopes + 5))
    return (model.coef_.round(6), float(round(model.intercept_, 6))), (slopes.astype(float), 5.0)


# -- cells -----------------------------------------------------------------------------------------------------


@kind
def cells_with_names(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    value = chance.randrange(1000)
    notebook.cell(f"known = comm.allreduce({value} + rank)", values=False).check()
    # Between the two cells, those of other notebooks use the same name.
    found = cells.evaluate("known + rank", client=notebook.client)
    total = notebook.size * value + sum(range(notebook.size))
    return found, [total + rank for rank in range(notebook.size)]


@kind
def cell_with_objects(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    X, factor, task = rows(chance), chance.randrange(10), notebook.client.submit(abs, -7, pure=False)
    names = {"X": workbench.place(X), "factor": factor, "task": task}
    result = notebook.cell("comm.allreduce(X.sum(axis=0)) * factor + task", names)
    notebook.cell("del X, factor, task", values=False).check()
    return result.values(), [X.sum(axis=0) * factor + 7] * notebook.size


@kind
def cell_that_shows(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    word = f"word {chance.random()}"
    code = f"print({word!r}, rank)\ndisplay({{'text/plain': {word!r}}}, raw=True)\nprint('last')\ncomm.allreduce(rank)"
    result = notebook.cell(code, values=False)
    result.check()
    # A stream may come in several pieces.
    found = {
        rank: "".join(each.text or each.data["text/plain"] for each in pieces)
        for rank, pieces in result.outputs.items()
    }
    total = sum(range(notebook.size))
    return found, {rank: f"{word} {rank}\n{word}last\n{total}" for rank in range(notebook.size)}


@kind
def failing_cell(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    guilty, word = chance.randrange(notebook.size), f"word {chance.random()}"
    code = chance.choice([f"raise ValueError({word!r})", "1 / 0", "raise SystemExit(3)", "exit()"])
    status = "exit" if code == "exit()" else "error"
    result = notebook.cell(f"if rank == {guilty}:\n    {code}\ncomm.Barrier()")
    found = {rank: outcome.status for rank, outcome in result.done.items()}
    return found, {rank: status if rank == guilty else "ended" for rank in range(notebook.size)}


@kind
def questions(notebook: Notebook, chance: random.Random) -> tuple[Any, Any]:
    places = actions.where(notebook.cluster.record, notebook.cluster)
    # A completion is left out where the answer comes late.
    completed = set(cells.complete("all", notebook.client)) <= {"all"}
    metrics = notebook.cluster.metrics(chance.choice(["ranks", "traffic", "calls"]))
    found = sorted(places), completed, type(metrics).__name__
    return found, ([*range(notebook.size)], True, "DataFrame")


# -- the mix ---------------------------------------------------------------------------------------------------


def same(found: Any, expected: Any) -> bool:
    """Return whether two results are equal, arrays and what contains arrays too."""
    if isinstance(expected, np.ndarray):
        return isinstance(found, np.ndarray) and found.dtype == expected.dtype and np.array_equal(found, expected)
    if isinstance(expected, tuple | list):
        return type(found) is type(expected) and len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected)


def memory() -> int:
    """Return the bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tell(**facts: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps(facts, default=str), flush=True)  # noqa: T201


def interrupted(operation: Callable[[], tuple[Any, Any]], after: float | None) -> tuple[Any, Any] | None:
    """Call an operation, and interrupt it after some seconds; return None if Ctrl-C has ended the operation."""
    if after is None:
        return operation()
    timer = threading.Timer(after, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    try:
        timer.start()
        try:
            return operation()
        finally:
            timer.cancel()
            timer.join()
    except KeyboardInterrupt:
        return None


def restarted(notebook: Notebook) -> bool:
    """Wait for a restart of the ranks that has not been seen yet; return False if none is to come."""
    if notebook.starts > notebook.restarts:
        return False
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        record: Any = notebook.cluster.refresh()
        if record.state == "ready" and record.world.starts > notebook.starts:
            notebook.starts = record.world.starts
            return True
        time.sleep(0.05)
    return False


def operate(notebook: Notebook, seed: str, name: str, after: float | None, *, spoils: bool) -> bool:
    """Run an operation and compare the result; return whether Ctrl-C has ended the operation."""
    try:
        outcome = interrupted(lambda: KINDS[name](notebook, random.Random(seed)), after)
        if outcome is None or same(*outcome):
            return outcome is None
        problem = {"found": outcome[0], "expected": outcome[1]}
    except BaseException as error:  # noqa: BLE001  (anything else than a result is wrong)
        if isinstance(error, LOST) and restarted(notebook):
            notebook.lost += 1
            return False
        problem = {"error": traceback.format_exc()[-4000:]}
    notebook.wrong += 1
    notebook.spoiled += spoils
    tell(seed=seed, kind=name, interrupted=after is not None, spoiled=spoils, **problem)
    return False


def mix(notebook: Notebook, options: argparse.Namespace) -> None:
    """Run the operations."""
    was_interrupted, end = False, time.monotonic() + options.seconds
    restarts = {options.operations * each // (options.restarts + 1) for each in range(1, options.restarts + 1)}
    for number in range(options.operations):
        if time.monotonic() > end:
            break
        seed = f"{options.seed} {options.number} {number}"
        chance = random.Random(seed)
        name = chance.choice([*KINDS]) if options.interrupts else [*KINDS][number % len(KINDS)]
        after = None
        if chance.random() < options.interrupts:
            after = chance.random() * notebook.seconds[name] / (notebook.counts[name] or 1)
        if options.only not in (None, number):
            continue
        if number == options.operations // 2:
            tell(half=number)
        if options.number == 0 and number in restarts:
            notebook.cluster.restart()
            restarted(notebook)
        faulthandler.dump_traceback_later(4 * DEADLINE, exit=True)
        began, before = time.monotonic(), memory()
        ended = operate(notebook, seed, name, after, spoils=was_interrupted)
        notebook.counts[name] += 1
        notebook.seconds[name] += time.monotonic() - began  # type: ignore[assignment]
        if number >= options.operations // 4:
            notebook.measured[name] += 1
            notebook.grown[name] += memory() - before
        notebook.interrupts += ended
        was_interrupted = ended
    faulthandler.cancel_dump_traceback_later()


def wanted(client: str, dask_scheduler: Any) -> list[str]:
    """Return the keys that a client holds on the scheduler."""
    return [str(task.key) for task in dask_scheduler.clients[client].wants_what]


def left(notebook: Notebook) -> list[str]:
    """Return what the notebook still holds when its names are gone; what goes soon is waited for."""
    deadline = time.monotonic() + DEADLINE
    ask = functools.partial(notebook.client.run_on_scheduler, wanted, notebook.client.id)
    while (gc.collect(), held := ask())[1] and time.monotonic() < deadline:
        time.sleep(0.05)
    return held


def main() -> None:
    """Run the operations and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("number", type=int)
    parser.add_argument("seed")
    parser.add_argument("operations", type=int)
    parser.add_argument("--interrupts", type=float, default=INTERRUPTED)
    parser.add_argument("--restarts", type=int, default=0, help="of the ranks, by notebook 0")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no operation begins")
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with MPICluster.attach(options.name) as cluster, Client(cluster) as client:
        notebook = Notebook(cluster, client, options.restarts)
        began = time.monotonic()
        mix(notebook, options)
        tell(
            notebook=options.number,
            operations=sum(notebook.counts.values()),
            seconds=round(time.monotonic() - began, 1),
            interrupts=notebook.interrupts,
            lost=notebook.lost,
            wrong=notebook.wrong,
            spoiled=notebook.spoiled,
            left=left(notebook),
            threads=threading.active_count(),
            files=len([*Path("/proc/self/fd").iterdir()]),
            kinds={
                name: {
                    "count": notebook.counts[name],
                    "ms": round(1000 * notebook.seconds[name] / notebook.counts[name], 1),
                    "measured": notebook.measured[name],
                    "kB": notebook.grown[name] // 1000,
                }
                for name in sorted(notebook.counts)
            },
        )


if __name__ == "__main__":
    sys.exit(main())
