"""Compare what four ranks have counted with what is written out by hand.

``{(source, target): [bytes of each message]}``, by ranks of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from support.ends import End
from support.two_ways import communicators
from workbench.mpi.counters import OPERATIONS, Counters

Messages = dict[tuple[int, int], list[int]]
Case = tuple[Callable[[Any], Any], Messages]

# What not every MPI has.
NEW = {"Iflush_buffer", "Agree", "Iagree", "Shrink", "Ishrink"}

RANKS = range(4)
RING: list[tuple[int, int]] = [(0, 1), (1, 2), (2, 3), (3, 0)]
OTHERS = [(source, target) for source in RANKS for target in RANKS if source != target]
LATER = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
AROUND = [(0, 3), (0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (3, 0)]


def of(pairs: Iterable[tuple[int, int]], size: int | Callable[[int, int], int]) -> Messages:
    """Return one message for each pair, of a size or of one that depends on source and target."""
    return {pair: [size(*pair) if callable(size) else size] for pair in pairs}


def times(number: int, messages: Messages) -> Messages:
    return {pair: sizes * number for pair, sizes in messages.items()}


def both(one: Messages, other: Messages) -> Messages:
    return {pair: one.get(pair, []) + other.get(pair, []) for pair in {**one, **other}}


def started(case: Callable[[Any], Any], comm: Any, expected: Messages) -> Counters:
    """Run a case with separate counters, and compare the counts of all ranks with the expected counts."""
    from mpi4py import MPI

    counters = comm.watch.counters = Counters()
    case(comm)
    comm.watch.counters = None
    counters.flush_uniform()
    row = {rank: [0, 0] for rank in RANKS}
    for rank, (nbytes, messages) in counters.sent.items():
        row[rank] = [row[rank][0] + nbytes, row[rank][1] + messages]
    world = MPI.COMM_WORLD
    matrix, sizes, told = zip(*world.allgather((row, counters.sizes, _bytes(counters))), strict=True)
    for source in RANKS:
        sent = {target: expected.get((source, target), []) for target in RANKS}
        assert matrix[source] == {target: [sum(each), len(each)] for target, each in sent.items()}, (source, matrix)
        assert told[source] == sum(sum(each) for each in sent.values()), (source, told)
        every = [size for each in sent.values() for size in each]
        assert sizes[source] == [sum(len(f"{size:b}") * (size > 0) == bin_ for size in every) for bin_ in range(48)]
    assert set(counters.operations) <= set(OPERATIONS), counters.operations
    assert all(calls >= 1 and seconds >= 0 for calls, _, seconds in counters.operations.values())
    return counters


def _bytes(counters: Counters) -> float:
    return sum(nbytes for _, nbytes, _ in counters.operations.values())


async def check(end: End, cases: dict[str, Case], prepare: Callable[[Any], Any] = lambda comm: comm) -> None:
    """Run cases by their operation, which must be counted."""
    plain, ours = communicators()
    comm = prepare(ours)
    for name, (case, expected) in cases.items():
        try:
            counters = started(case, comm, expected)
        except NotImplementedError:
            assert name in NEW, name
            continue
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        operation = name.split(" ", maxsplit=1)[0]
        assert counters.operations[operation][0], (name, counters.operations)
        await end.gather()
    ours.free_derived()
    plain.Free()


def z(length: int, dtype: str = "f8") -> Any:
    return np.zeros(length, dtype)


def pickled(obj: Any) -> int:
    from mpi4py import MPI

    return len(MPI.pickle.dumps(obj))


def text(rank: int) -> str:
    return "x" * (10 * rank + 1)


def ahead(comm: Any) -> int:
    return (comm.rank + 1) % comm.size


def behind(comm: Any) -> int:
    return (comm.rank - 1) % comm.size
