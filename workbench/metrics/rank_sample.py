"""What a rank writes to its shared slot at each tick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.mpi.counters import Sites


@dataclass(frozen=True)
class FinishedCall:
    """A call or cell that has ended on this rank."""

    call: str
    """Its identity."""
    what: str
    begin: float
    """Seconds of `time.monotonic`, as `end`."""
    end: float
    mpi: float
    """Seconds in MPI."""
    operations: float
    bytes: float
    """Sent by MPI."""


@dataclass(frozen=True)
class RankSample:
    """A rank in the last tick, and its totals. Times are seconds of `time.monotonic` of its node."""

    time: float
    pid: int
    values: Mapping[str, float]
    """By the names of `workbench.metrics.schema.SAMPLED`."""
    what: str = ""
    operation: str | None = None
    since: float = 0.0
    sent: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    """Bytes and messages so far, by kind (an index of `KINDS`) and by rank of the world."""
    sizes: tuple[list[int], ...] = ()
    """Messages so far by size, of each of `KINDS`."""
    operations: dict[str, list[float]] = field(default_factory=dict)
    """Calls, bytes and seconds so far."""
    meetings: list[tuple[int, int, str, float, float]] = field(default_factory=list)
    """As of `Counters.meetings`, of the last ticks."""
    ended: list[FinishedCall] = field(default_factory=list)
    """The last calls that have ended; each is in several samples."""


@dataclass(frozen=True)
class RankTotals:
    """What a rank has counted so far."""

    time: float
    """When that was, in seconds of `time.monotonic`."""
    busy: float = 0.0
    """Seconds in which code of users ran."""
    messages: int = 0
    """Sent by MPI."""
    operations: Mapping[str, list[float]] = field(default_factory=dict)
    """By name: calls, bytes, seconds; those that are not over with the seconds until now."""
    sites: Sites = field(default_factory=dict)
