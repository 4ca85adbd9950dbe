"""Suspects: ranks that delay others or have a problem, with the reason."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from workbench.dashboard.diagnosis import describe_activity, time_ago
from workbench.dashboard.format import percent, size
from workbench.dashboard.snapshot import Snapshot
from workbench.metrics.schema import NODE
from workbench.text import count, duration

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A rank, a score that grows with the problem, and the reason.
_Mark = tuple[int, float, str]
_SUSPECTS_SHOWN = 3
# Fraction of a node's memory above which its largest rank is a suspect.
_FULL_MEMORY = 0.9


@dataclass(frozen=True)
class Suspect:
    """A rank that may delay others: its index in `Layout.ranks`, and the reason."""

    rank: int
    why: str


def suspects(snapshot: Snapshot) -> list[Suspect]:
    """Return the ranks that delay others or have a problem, sorted by score."""
    reasons: dict[int, str] = {}
    for rank, _, why in sorted(
        (*_activity_marks(snapshot), *_number_marks(snapshot), *_node_marks(snapshot)), key=lambda mark: -mark[1]
    ):
        reasons.setdefault(rank, why)
    return [Suspect(rank, why) for rank, why in islice(reasons.items(), _SUSPECTS_SHOWN)]


def _activity_marks(snapshot: Snapshot) -> Iterator[_Mark]:
    now = snapshot.update.now
    for rank, activity in enumerate(now):
        if activity.is_lost:
            yield rank, math.inf, f"was lost {time_ago(activity, snapshot.valid_at)}; results on it are lost"
        elif activity.silent > 0:
            yield rank, 1000 + activity.silent, f"has sent no samples for {duration(activity.silent)}"
    for wait in snapshot.waits:
        # If a minority is missing they are stragglers; if the majority is, the waiting ranks are merely early.
        if 0 < len(wait.awaited) <= len(wait.waiting):
            waiting = count(len(wait.waiting), "rank")
            verb = "waits" if len(wait.waiting) == 1 else "wait"
            for rank in wait.awaited:
                does = describe_activity(now[rank], snapshot.valid_at)
                yield rank, 500 + wait.seconds, f"{waiting} {verb} for it in {wait.operation}; it is {does}"


def _number_marks(snapshot: Snapshot) -> Iterator[_Mark]:
    compute, waiting, memory = (
        snapshot.recent_mean("compute"),
        snapshot.recent_mean("waiting"),
        snapshot.recent_mean("memory"),
    )
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


def _node_marks(snapshot: Snapshot) -> Iterator[_Mark]:
    layout, nodes, memory = snapshot.layout, snapshot.recent_node_means, snapshot.recent_mean("memory")
    used = nodes[:, NODE.index("memory")] / nodes[:, NODE.index("memory_total")]
    for node in np.flatnonzero(used > _FULL_MEMORY):
        of_node = [rank for rank, place in enumerate(layout.ranks) if place.node == node]
        if of_node:
            largest = max(of_node, key=lambda rank: float(np.nan_to_num(memory[rank])))
            yield largest, 200, f"the memory of its node {layout.nodes[node]} is {percent(used[node])} full"


def _largest(numbers: NDArray[np.float32], beyond: float) -> list[int]:
    """Return the ranks whose numbers exceed the median by more than `beyond`, the largest first."""
    if not np.isfinite(numbers).any():
        return []
    order = np.argsort(np.nan_to_num(-numbers))[:_SUSPECTS_SHOWN]
    return [int(rank) for rank in order if numbers[rank] - np.nanmedian(numbers) > beyond]
