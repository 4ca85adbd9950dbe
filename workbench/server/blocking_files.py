"""Looks at files that may be on a file server which hangs: beside the event loop, one at a time, with a deadline."""

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

# Seconds for a look, and for those before it. A browser that hears nothing for 20 gives its connection up.
_PATIENCE = 10.0

_Given = ParamSpec("_Given")
_Seen = TypeVar("_Seen")
# What is looked at, one after the other; None ends that.
_Line: TypeAlias = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class FilesystemTimeout(WorkbenchError, TimeoutError):
    """Files could not be looked at in time."""


class DeadlineReader:
    """Files of one file server, as far as that can be known.

    Parameters
    ----------
    where
        Returns where they are, in words or as a path.

    Notes
    -----
    For the event loops of one thread. A thread of its own looks at them, and there is never a second one: those that
    would have a look while one hangs wait in line, and leave it at their deadline. It keeps no process from ending,
    and ends when nobody has these files any more.
    """

    def __init__(self, where: Callable[[], object]) -> None:
        self._where = where
        self._line: _Line = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def read(self, look: Callable[_Given, _Seen], *given: _Given.args, **options: _Given.kwargs) -> _Seen:
        """Return what a function returns, which may block; it has only to read.

        Raises
        ------
        FilesystemTimeout
            If it has not returned in time.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=_run, args=(self._line,), name="files", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._line.put, None)
        seen: Future[_Seen] = Future()
        self._line.put((seen, partial(look, *given, **options)))
        deadline = asyncio.timeout(_PATIENCE)
        try:
            async with deadline:
                return await asyncio.wrap_future(seen)
        except TimeoutError:
            if not deadline.expired():
                raise  # what the system says of it
            raise FilesystemTimeout(
                f"{self._where()} has not answered for {_PATIENCE:.0f} s: its file server hangs, or is very slow. "
                "What runs goes on; look again when it answers."
            ) from None


def _run(line: _Line) -> None:
    while (waiting := line.get()) is not None:
        seen, look = waiting
        if seen.set_running_or_notify_cancel():
            try:
                seen.set_result(look())
            except Exception as error:  # noqa: BLE001  (it is raised where it was asked for)
                seen.set_exception(error)


records = DeadlineReader(clusters_folder)
"""Records and logs of this user's clusters."""
