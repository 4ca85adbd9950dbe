"""The sample that a rank writes to its shared slot at each tick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.mpi.counters import Sites


@dataclass(frozen=True)
class FinishedCall:
    """A call or cell that has ended on this rank."""

    call: str
    """Identity."""
    what: str
    begin: float
    """Seconds of `time.monotonic`, like `end`."""
    end: float
    mpi: float
    """Seconds in MPI."""
    operations: float
    bytes: float
    """Bytes sent over MPI."""


@dataclass(frozen=True)
class RankSample:
    """A rank in the last tick, and its totals; times are seconds of `time.monotonic` of its node."""

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
    """Messages so far by size, for each of `KINDS`."""
    operations: dict[str, list[float]] = field(default_factory=dict)
    """Calls, bytes and seconds so far."""
    synchronizations: list[tuple[int, int, str, float, float]] = field(default_factory=list)
    """`Counters.synchronizations` of the last ticks."""
    ended: list[FinishedCall] = field(default_factory=list)
    """The latest calls that have ended; each is in several samples."""


@dataclass(frozen=True)
class RankTotals:
    """The counts of a rank so far."""

    time: float
    """Time of the measurement, in seconds of `time.monotonic`."""
    busy: float = 0.0
    """Seconds in user code."""
    messages: int = 0
    """Messages sent over MPI."""
    operations: Mapping[str, list[float]] = field(default_factory=dict)
    """By name: calls, bytes, and seconds, including those of the operation in progress."""
    sites: Sites = field(default_factory=dict)
