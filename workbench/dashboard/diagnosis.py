"""Which ranks hold the others up, and why, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from workbench.collective.rank_locations import ranges
from workbench.dashboard.format import percent, size
from workbench.metrics.schema import NODE
from workbench.metrics.update import Layout, Now
from workbench.mpi.operation_names import OPERATIONS
from workbench.text import count, duration

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workbench.dashboard.snapshot import Moment

# Of a rank: how bad it is, and why.
_Mark = tuple[int, float, str]
# Seconds in one operation from which on it is told that a rank waits.
PATIENCE = 2.0
_WORST = 3
# Part of a node's memory above which it is told.
_FULL = 0.9
# Operations that all ranks of a communicator take part in come before this one.
_COLLECTIVES = frozenset(OPERATIONS[1 : OPERATIONS.index("Send")])


@dataclass(frozen=True)
class Wait:
    """Ranks that are in an operation for long.

    Attributes
    ----------
    operation, what : str
        The MPI operation, and the function or cell that they are in.
    waiting, awaited : tuple of int
        Indices of `Layout.ranks`: who is in it, and who of their world is not; nobody is awaited in an operation that
        is not of all ranks.
    seconds : float
        For how long the first of them.
    """

    operation: str
    what: str
    waiting: tuple[int, ...]
    awaited: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Worst:
    """A rank that is worth a look: its index in `Layout.ranks`, and why."""

    rank: int
    why: str


def named(layout: Layout, ranks: Sequence[int]) -> str:
    """Word ranks by their names."""
    worlds = sorted({layout.ranks[rank].world for rank in ranks})
    told = []
    for world in worlds:
        of_world = [layout.ranks[rank].rank for rank in ranks if layout.ranks[rank].world == world]
        noun = "rank" if len(of_world) == 1 else "ranks"
        told.append(f"{noun} {ranges(of_world)}" + (f" of world {world}" if len(worlds) > 1 or world else ""))
    return ", ".join(told)


def doing(now: Now, moment: float) -> str:
    """Word what a rank does."""
    if now.is_lost:
        return f"lost ({ago(now, moment)})"
    if now.silent > 0:
        return f"silent for {duration(now.silent)}"
    seconds = moment - now.since
    since = f" for {duration(seconds)}" if seconds >= 1 else ""
    if now.operation:
        return f"in {now.operation}{since}"
    return f"in {now.what}, outside MPI{since}" if now.what else "idle"


def ago(now: Now, moment: float) -> str:
    """Word how long before a moment a rank has begun what it does."""
    return f"{duration(max(0.0, moment - now.since))} ago"


def waits(layout: Layout, now: Sequence[Now], moment: float) -> list[Wait]:
    """Find who is in an operation for long, and who of the same world is not in it; the longest first."""
    groups: dict[tuple[int, str, str], list[int]] = {}
    worlds: dict[int, list[int]] = {}
    for rank, (place, its) in enumerate(zip(layout.ranks, now, strict=True)):
        worlds.setdefault(place.world, []).append(rank)
        if its.operation is not None:
            groups.setdefault((place.world, its.what, its.operation), []).append(rank)
    found = []
    for (world, what, operation), ranks in groups.items():
        seconds = moment - min(now[rank].since for rank in ranks)
        if seconds >= PATIENCE:
            inside = set(ranks)
            others = [rank for rank in worlds[world] if rank not in inside] if operation in _COLLECTIVES else []
            found.append(Wait(operation, what, tuple(ranks), tuple(others), seconds))
    return sorted(found, key=lambda wait: -wait.seconds)


def words(layout: Layout, now: Sequence[Now], moment: float, wait: Wait) -> str:
    """Word who waits for whom, and what those do."""
    one = len(wait.waiting) == 1
    said = f"{named(layout, wait.waiting).capitalize()} {'has' if one else 'have'} been in {wait.operation}"
    said += f" of {wait.what}" if wait.what else ""
    said += f" for {duration(wait.seconds)}"
    if not wait.awaited:
        return f"{said}."
    said += f" and {'waits' if one else 'wait'} for {named(layout, wait.awaited)}"
    acts = [doing(now[rank], moment) for rank in wait.awaited]
    if len(set(acts)) > 1:
        return f"{said}; the first of these is {acts[0]}."
    return f"{said}, which {'is' if len(acts) == 1 else 'are'} {acts[0]}."


def worst(moment: Moment) -> list[Worst]:
    """Find the ranks that hold the others up or are in trouble, the worst first."""
    whys: dict[int, str] = {}
    for rank, _, why in sorted((*_now(moment), *_numbers(moment), *_nodes(moment)), key=lambda mark: -mark[1]):
        whys.setdefault(rank, why)
    return [Worst(rank, why) for rank, why in islice(whys.items(), _WORST)]


def _now(moment: Moment) -> Iterator[_Mark]:
    now = moment.update.now
    for rank, its in enumerate(now):
        if its.is_lost:
            yield rank, math.inf, f"was lost {ago(its, moment.told)}; results on it are gone"
        elif its.silent > 0:
            yield rank, 1000 + its.silent, f"nothing was heard of it for {duration(its.silent)}"
    for wait in waits(moment.layout, moment.update.now, moment.told):
        # Whom many wait for is late; where many are awaited, those who wait are just early.
        if 0 < len(wait.awaited) <= len(wait.waiting):
            waiting = count(len(wait.waiting), "rank")
            verb = "waits" if len(wait.waiting) == 1 else "wait"
            for rank in wait.awaited:
                does = doing(now[rank], moment.told)
                yield rank, 500 + wait.seconds, f"{waiting} {verb} for it in {wait.operation}; it is {does}"


def _numbers(moment: Moment) -> Iterator[_Mark]:
    compute, waiting, memory = moment.late("compute"), moment.late("waiting"), moment.late("memory")
    if not np.isfinite(compute).any():
        return
    beside = f"the median rank {percent(float(np.nanmedian(compute)))}"
    for rank in _largest(compute, 0.15):
        yield rank, 100 * compute[rank], f"computes {percent(compute[rank])} of the time, {beside}"
    for rank in _largest(waiting, 0.3):
        yield rank, 50 * waiting[rank], f"waits for others {percent(waiting[rank])} of the time"
    median = float(np.nanmedian(memory))
    for rank in _largest(memory, 0.5 * median):
        yield rank, 30, f"has {size(memory[rank])} in memory, the median rank {size(median)}"


def _nodes(moment: Moment) -> Iterator[_Mark]:
    layout, nodes, memory = moment.layout, moment.nodes_lately, moment.late("memory")
    used = nodes[:, NODE.index("memory")] / nodes[:, NODE.index("memory_total")]
    for node in np.flatnonzero(used > _FULL):
        of_node = [rank for rank, place in enumerate(layout.ranks) if place.node == node]
        if of_node:
            largest = max(of_node, key=lambda rank: float(np.nan_to_num(memory[rank])))
            yield largest, 200, f"the memory of its node {layout.nodes[node]} is {percent(used[node])} full"


def _largest(numbers: NDArray[np.float32], beyond: float) -> list[int]:
    """Return the ranks that are so far beyond the median, up to as many as are told."""
    if not np.isfinite(numbers).any():
        return []
    order = np.argsort(np.nan_to_num(-numbers))[:_WORST]
    return [int(rank) for rank in order if numbers[rank] - np.nanmedian(numbers) > beyond]
