"""Sentences about ranks that wait for other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.metrics.update import Layout, RankActivity
from workbench.mpi.counters import OPERATIONS
from workbench.positions import ranges
from workbench.text import duration

# Seconds in one operation after which a rank counts as waiting.
PATIENCE = 2.0
# Collective operations come before this operation.
_COLLECTIVES = frozenset(OPERATIONS[1 : OPERATIONS.index("Send")])


@dataclass(frozen=True)
class Wait:
    """Ranks that have been in one operation for a long time.

    Attributes
    ----------
    operation, what : str
        The MPI operation, and the running function or cell.
    waiting, awaited : tuple of int
        Indices of `Layout.ranks`: the ranks in the operation, and the other ranks; none is awaited if the
        operation is not collective.
    seconds : float
        Time since the first rank has entered the operation.
    """

    operation: str
    what: str
    waiting: tuple[int, ...]
    awaited: tuple[int, ...]
    seconds: float


def rank_names(layout: Layout, ranks: Sequence[int]) -> str:
    """Return the names of ranks as text."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges([layout.ranks[rank].rank for rank in ranks])}"


def describe_activity(now: RankActivity, moment: float) -> str:
    """Return the activity of a rank as text."""
    if now.is_lost:
        return f"lost ({time_ago(now, moment)})"
    if now.silent > 0:
        return f"silent for {duration(now.silent)}"
    seconds = moment - now.since
    since = f" for {duration(seconds)}" if seconds >= 1 else ""
    if now.operation:
        return f"in {now.operation}{since}"
    return f"in {now.what}, outside MPI{since}" if now.what else "idle"


def time_ago(now: RankActivity, moment: float) -> str:
    """Return the time since a rank has begun its activity, as text."""
    return f"{duration(max(0.0, moment - now.since))} ago"


def waits(now: Sequence[RankActivity], moment: float) -> list[Wait]:
    """Return the ranks in operations that last long, and the other ranks; the longest wait first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, activity in enumerate(now):
        if activity.operation is not None:
            groups.setdefault((activity.what, activity.operation), []).append(rank)
    long_waits = []
    for (what, operation), ranks in groups.items():
        seconds = moment - min(now[rank].since for rank in ranks)
        if seconds >= PATIENCE:
            inside = set(ranks)
            others = [rank for rank in range(len(now)) if rank not in inside] if operation in _COLLECTIVES else []
            long_waits.append(Wait(operation, what, tuple(ranks), tuple(others), seconds))
    return sorted(long_waits, key=lambda wait: -wait.seconds)


def describe_wait(layout: Layout, now: Sequence[RankActivity], moment: float, wait: Wait) -> str:
    """Return a sentence about the waiting ranks, the awaited ranks, and the activity of these."""
    is_single = len(wait.waiting) == 1
    sentence = (
        f"{rank_names(layout, wait.waiting).capitalize()} {'has' if is_single else 'have'} been in {wait.operation}"
    )
    sentence += f" of {wait.what}" if wait.what else ""
    sentence += f" for {duration(wait.seconds)}"
    if not wait.awaited:
        return f"{sentence}."
    sentence += f" and {'waits' if is_single else 'wait'} for {rank_names(layout, wait.awaited)}"
    activities = [describe_activity(now[rank], moment) for rank in wait.awaited]
    if len(set(activities)) > 1:
        return f"{sentence}; the first of these is {activities[0]}."
    return f"{sentence}, which {'is' if len(activities) == 1 else 'are'} {activities[0]}."
