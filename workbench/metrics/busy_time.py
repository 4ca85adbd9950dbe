"""For how long this rank has run code of users: Dask tasks, calls on all ranks, cells."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import WorkerPlugin


class BusyTime(WorkerPlugin):
    """Counts the seconds in which something runs, however many things at once. Thread-safe.

    Notes
    -----
    As a plugin of the worker it sees the tasks that this executes.
    """

    name = "workbench-busy"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going, self._since, self._seconds = 0, 0.0, 0.0
        self.tasks: dict[Any, float] = {}
        """Keys of the tasks that are executed, and since when, in seconds of `time.monotonic`."""

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        with self._lock:
            return self._seconds + (time.monotonic() - self._since if self._going else 0.0)

    def begin(self) -> None:
        """Note that something begins."""
        with self._lock:
            self._going += 1
            if self._going == 1:
                self._since = time.monotonic()

    def end(self) -> None:
        """Note that it has ended."""
        with self._lock:
            self._going -= 1
            if not self._going:
                self._seconds += time.monotonic() - self._since

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be busy to the end of the block."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Note a task of Dask that begins or ends."""
        if finish == "executing":
            self.tasks[key] = time.monotonic()
            self.begin()
        elif self.tasks.pop(key, None) is not None:
            self.end()
