"""The ranks that hold the others up or are in trouble, and why, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from workbench.dashboard.diagnosis import ago, doing
from workbench.dashboard.format import percent, size
from workbench.dashboard.snapshot import Moment
from workbench.metrics.schema import NODE
from workbench.text import count, duration

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Of a rank: how bad it is, and why.
_Mark = tuple[int, float, str]
_WORST = 3
# Part of a node's memory above which it is told.
_FULL = 0.9


@dataclass(frozen=True)
class Worst:
    """A rank that is worth a look: its index in `Layout.ranks`, and why."""

    rank: int
    why: str


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
    for wait in moment.waits:
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
