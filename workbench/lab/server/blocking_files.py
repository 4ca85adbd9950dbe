"""Reads of files on file servers that may hang: outside of the event loop, one at a time, with a deadline."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

from workbench.deploy.record import clusters_folder
from workbench.errors import WorkbenchError

# Seconds for a read, with those before it. A browser closes a connection that is silent for 20 s.
_PATIENCE = 10.0

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
# Reads in order; None ends the thread.
_Queue: TypeAlias = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class FilesystemTimeout(WorkbenchError, TimeoutError):
    """A read of files did not end in time."""


class DeadlineReader:
    """Reads the files of one file server in a thread.

    Parameters
    ----------
    location
        Returns the location of the files, as text or as a path.

    Notes
    -----
    For the event loops of one thread. There is only one thread for reads: while one read hangs, the others are queued
    and give up at their deadlines. The thread is a daemon, and ends when this object is garbage-collected.
    """

    def __init__(self, location: Callable[[], object]) -> None:
        self._location = location
        self._queue: _Queue = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def read(self, function: Callable[_Args, _Result], *args: _Args.args, **options: _Args.kwargs) -> _Result:
        """Return the result of a function that only reads files, and may block.

        Raises
        ------
        FilesystemTimeout
            If the function does not return in time.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=_run, args=(self._queue,), name="files", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._queue.put, None)
        future: Future[_Result] = Future()
        self._queue.put((future, partial(function, *args, **options)))
        deadline = asyncio.timeout(_PATIENCE)
        try:
            async with deadline:
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if not deadline.expired():
                raise  # an error of the operating system
            raise FilesystemTimeout(
                f"{self._location()} has not answered for {_PATIENCE:.0f} s: its file server hangs, or is very slow. "
                "Clusters continue to run; try again when the file server answers."
            ) from None


def _run(queue: _Queue) -> None:
    while (item := queue.get()) is not None:
        future, function = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001  (raised in the caller of `read`)
                future.set_exception(error)


records = DeadlineReader(clusters_folder)
"""Records and logs of this user's clusters."""
