"""What this rank runs for users: tasks, calls on all ranks and cells, and what these count."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from workbench.metrics.busy_time import BusyTime
from workbench.metrics.rank_sample import FinishedCall, RankTotals
from workbench.mpi.call_state import CallState
from workbench.mpi.counters import Counters, Meter

# Calls of a sample, if so many end within a tick.
_FINISHED_CALLS_KEPT = 16

Doing = tuple[str, CallState, float]
"""Name of what runs, its watch, and since when it runs, in seconds of `time.monotonic`."""


class Activity:
    """What runs on this rank.

    Parameters
    ----------
    busy
        Sees the tasks of Dask.
    meter
        Has the counters.
    enabled
        Whether it is counted at all.
    """

    def __init__(self, busy: BusyTime, meter: Meter, *, enabled: bool = True) -> None:
        self.busy, self.meter, self.enabled = busy, meter, enabled
        self.began = time.monotonic()
        self.profiles: dict[str, RankTotals] = {}
        """Those that go on, by their names: what had been counted when they began."""
        self.ended: deque[FinishedCall] = deque(maxlen=_FINISHED_CALLS_KEPT)
        """The last that have ended."""
        # A call and a cell may run at once, on two threads.
        self._doing: list[Doing] = []

    @property
    def now(self) -> Doing | None:
        """What runs on all ranks, the last to begin first; None if nothing does."""
        doing = self._doing
        return doing[-1] if doing else None

    @property
    def inside(self) -> dict[str, float]:
        """Seconds so far in the operations of MPI that are counted and not over yet, by their names."""
        now = time.monotonic()
        return {
            operation: now - watch.since
            for _, watch, _ in self._doing
            if (operation := watch.operation) is not None and watch.counters is not None
        }

    def counted(self) -> RankTotals:
        """Return what there is now."""
        inside, sums = self.inside, self.meter.sum()
        for name, seconds in inside.items():
            sums.operations[name][2] += seconds
        messages = sum(messages for _, messages in sums.sent.values())
        return RankTotals(time.monotonic(), self.busy.seconds, messages, sums.operations, sums.sites)

    @contextmanager
    def running(self, call: str, what: str, watch: CallState) -> Iterator[None]:
        """Count what a call or a cell does, to the end of the block. For the thread that runs it.

        Parameters
        ----------
        call, what
            Its identity, and what it is called.
        watch
            Knows its operations of MPI.
        """
        if not self.enabled:
            yield
            return
        doing = what, watch, time.monotonic()
        watch.counters = counters = self.meter.open()
        self._doing = [*self._doing, doing]
        try:
            with self.busy.running():
                yield
        finally:
            self._doing = [other for other in self._doing if other is not doing]
            watch.counters = None
            self.meter.close(counters)
            self.ended.append(_ended(call, doing, counters))


def _ended(call: str, doing: Doing, counters: Counters) -> FinishedCall:
    calls, sent, seconds = map(sum, zip((0, 0, 0.0), *counters.operations.values(), strict=True))
    what, _, begin = doing
    return FinishedCall(call, what, begin, time.monotonic(), mpi=seconds, operations=calls, bytes=sent)
