"""The code of users that this rank runs: tasks, SPMD calls and cells, and their counters."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import WorkerPlugin

from workbench.metrics.shared_slots import FinishedCall, RankTotals
from workbench.mpi.call_state import CallState
from workbench.mpi.counters import Counters, Meter


class BusyTime(WorkerPlugin):
    """Counts the seconds in which at least one task, call or cell runs; thread-safe."""

    name = "workbench-busy"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running, self._since, self._seconds = 0, 0.0, 0.0
        self.tasks: dict[Any, float] = {}
        """Begin of each executing Dask task by its key, in seconds of `time.monotonic`."""

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        with self._lock:
            return self._seconds + (time.monotonic() - self._since if self._running else 0.0)

    def _begin(self) -> None:
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._since = time.monotonic()

    def _end(self) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                self._seconds += time.monotonic() - self._since

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time until the end of the block."""
        self._begin()
        try:
            yield
        finally:
            self._end()

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Count a Dask task that begins or ends."""
        if finish == "executing":
            self.tasks[key] = time.monotonic()
            self._begin()
        elif self.tasks.pop(key, None) is not None:
            self._end()


# Finished calls that a sample holds at most.
_FINISHED_CALLS_KEPT = 16

Doing = tuple[str, CallState, float]
"""Name and state of a running call or cell, and its begin, in seconds of `time.monotonic`."""


class Activity:
    """The calls and cells that run on this rank; with `enabled` false nothing is counted."""

    def __init__(self, busy: BusyTime, meter: Meter, *, enabled: bool = True) -> None:
        self.busy, self.meter, self.enabled = busy, meter, enabled
        self.began = time.monotonic()
        self.profiles: dict[str, RankTotals] = {}
        """Running profiles by name: the totals when each began."""
        self.ended: deque[FinishedCall] = deque(maxlen=_FINISHED_CALLS_KEPT)
        # A call and a cell may run simultaneously, on two threads.
        self._doing: list[Doing] = []

    @property
    def now(self) -> Doing | None:
        """The call or cell that began last; None if none runs."""
        doing = self._doing
        return doing[-1] if doing else None

    @property
    def inside(self) -> dict[str, float]:
        """Seconds so far in the counted MPI operations that are still in progress, by operation."""
        now = time.monotonic()
        return {
            operation: now - state.since
            for _, state, _ in self._doing
            if (operation := state.operation) is not None and state.counters is not None
        }

    def counted(self) -> RankTotals:
        """Return the totals of this rank until now."""
        inside, sums = self.inside, self.meter.sum()
        for name, seconds in inside.items():
            sums.operations[name][2] += seconds
        messages = sum(messages for _, messages in sums.sent.values())
        return RankTotals(time.monotonic(), self.busy.seconds, messages, sums.operations, sums.sites)

    @contextmanager
    def running(self, call: str, name: str, state: CallState) -> Iterator[None]:
        """Count a call or a cell until the end of the block; for the thread that runs it."""
        if not self.enabled:
            yield
            return
        doing = name, state, time.monotonic()
        state.counters = counters = self.meter.open()
        self._doing = [*self._doing, doing]
        try:
            with self.busy.running():
                yield
        finally:
            self._doing = [other for other in self._doing if other is not doing]
            state.counters = None
            self.meter.close(counters)
            self.ended.append(_finished(call, doing, counters))


def _finished(call: str, doing: Doing, counters: Counters) -> FinishedCall:
    calls, sent, seconds = map(sum, zip((0, 0, 0.0), *counters.operations.values(), strict=True))
    name, _, begin = doing
    return FinishedCall(call, name, begin, time.monotonic(), mpi=seconds, operations=calls, bytes=sent)
