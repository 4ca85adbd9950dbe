"""Ends a task that fills the memory of its rank, before the kernel may kill the rank with all its blocks."""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import dask
from dask.utils import format_bytes

from workbench.errors import MemoryLimitReached

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Worker

# Bytes per second that a process can fill, from which the time until the next measurement follows, in seconds.
_FILL_RATE = 4 << 30
_SHORTEST, _LONGEST = 0.005, 0.5
# Part of the limit by which the memory has to grow while a task runs, before the task is ended.
_GROWTH = 0.1
# Seconds for an ended task to release its memory.
_RELEASE_TIME = 2.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryLimit:
    """Raises `MemoryLimitReached` in the thread of a task when the rank has nearly reached its limit.

    The threshold is ``distributed.worker.memory.terminate``, at which Dask's nanny would end a worker. SPMD calls and
    cells are not ended: Dask's limit has never been one for them, and the kernel may allow more. The memory that they
    and blocks use is no reason to end a task either: the memory has to grow while the task runs.
    """

    def __init__(self, worker: Worker, name: str) -> None:
        self._worker, self._name = worker, name
        self._limit = worker.memory_manager.memory_limit or 0
        self._threshold = self._limit * (dask.config.get("distributed.worker.memory.terminate") or 0)
        self._ended: dict[int, Key] = {}
        # The least memory since the begin of each task, by its thread and key.
        self._least: dict[tuple[int, Key], float] = {}
        self._last = math.inf
        self._not_before = 0.0

    def start(self) -> None:
        """Begin to measure, until this process ends."""
        if self._threshold:
            threading.Thread(target=self._run, name="memory-limit", daemon=True).start()

    def _run(self) -> None:
        while True:
            left = self._threshold - self.measure()
            time.sleep(min(max(left / _FILL_RATE, _SHORTEST), _LONGEST))

    def measure(self) -> int:
        """Return the memory in use; above the threshold, end a task."""
        used = own_memory()
        # A task that is new has begun after the last measurement, and may have filled memory since.
        self._least = {
            task: min(self._least.get(task, self._last), used) for task in self._worker.active_threads.copy().items()
        }
        self._last = used
        if used > self._threshold:
            self._end_task(used)
        return used

    def _end_task(self, used: int) -> None:
        """End the task that has run longest of those with which memory grew, and later the next one."""
        if time.monotonic() < self._not_before:
            return
        worker = self._worker
        with worker.active_threads_lock:  # a task leaves its thread with this lock
            threads = {
                thread: key
                for thread, key in worker.active_threads.items()
                if _is_executing(worker, key)
                and self._ended.get(thread) != key
                and used - self._least.get((thread, key), used) >= _GROWTH * self._limit
            }
            if not threads:
                return
            thread, key = next(iter(threads.items()))
            limit, growth = format_bytes(self._limit), format_bytes(int(used - self._least[thread, key]))
            MemoryLimitReached.reason = (
                f"the task {key!r} was ended because {self._name} uses {format_bytes(used)} of its limit of "
                f"{limit} (--memory, or its share of the node), {growth} of it since the task began."
            )
            _raise_in(thread, MemoryLimitReached)
            self._ended = {thread: key}
            self._not_before = time.monotonic() + _RELEASE_TIME


def _is_executing(worker: Worker, key: Key) -> bool:
    """Return whether a task computes; one that has seceded waits for other tasks, and uses little."""
    task = worker.state.tasks.get(key)
    return task is not None and task.state == "executing"


def own_memory() -> int:
    """Return the bytes of memory that only this process uses, without files that are mapped into its memory."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_bytes().split())
    return (resident - shared) * _PAGE


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an error in a thread, at the next instruction of Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
