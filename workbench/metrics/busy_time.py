"""Seconds in which this rank has run code of users: Dask tasks, SPMD calls, cells."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import WorkerPlugin


class BusyTime(WorkerPlugin):
    """Counts the seconds in which one task, call or cell runs, or several at once; thread-safe."""

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
