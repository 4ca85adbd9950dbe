"""The starts of clusters from this server, each a process that continues when the server stops."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import ClusterNotFound, WorkbenchError
from workbench.hints import PANEL
from workbench.lab.server.log import logger
from workbench.lab.server.process import Process
from workbench.lab.server.subcommand import ExecutionContext, answer
from workbench.lab.server.tasks import BackgroundTasks

# Seconds for which a successful start is listed, and for the cleanup of a cancelled start.
_LISTED, _CLEANUP = 600.0, 120.0


@dataclass
class PendingStart:
    """A start."""

    process: Process
    """Process of the start."""
    name: str | None
    """Name of the cluster, once it is known."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Id of the start."""
    state: str = "starting"
    """``starting``, ``ready`` or ``failed``."""
    message: str = ""
    """Result for the user."""
    log: str = ""
    """End of the log of a failed start."""
    since: float = field(default_factory=time.time)
    """Time of the request, in seconds since the epoch."""
    over: float = 0.0
    """Time of the end, in seconds since the epoch."""
    following: asyncio.Task[None] | None = None
    """Task that waits for the end of the process."""

    def describe(self) -> dict[str, Any]:
        """Return the plain values for browsers."""
        names = ("id", "name", "state", "message", "log", "since")
        return {name: getattr(self, name) for name in names}


class Starts(BackgroundTasks):
    """The starts, each until it is dismissed or some time after its success; parameters as of `BackgroundTasks`."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__(changed)
        self._starts: dict[str, PendingStart] = {}

    def begin(self, argv: Sequence[str], context: ExecutionContext, name: str | None) -> PendingStart:
        """Start a cluster.

        Parameters
        ----------
        argv
            Options as on a command line.
        context
            Interpreter, folder and variables.
        name
            Name in the request; None: not set.

        Raises
        ------
        LaunchError
            If the process of the start cannot be started.
        """
        start = PendingStart(context.run("start", argv), name)
        self._starts[start.id] = start
        start.following = self._spawn(self._follow(start))
        self._changed()
        return start

    def dismiss(self, key: str) -> None:
        """Forget a start, and cancel a start that is not complete.

        Raises
        ------
        ClusterNotFound
            If there is no start with this id.
        """
        start = self._starts.pop(key, None)
        if start is None:
            raise ClusterNotFound(f"start {key!r} does not exist: the start was dismissed, or is of another server.")
        if start.state == "starting":
            # As after Ctrl-C in a terminal, nothing of the cluster is left.
            start.process.interrupt()
            self._spawn(_await_end(start))
        self._changed()

    def recognize(self, starters: Mapping[int, str]) -> None:
        """Set the names of clusters by the PIDs of the processes that start them."""
        for start in self._starts.values():
            # Another process may have the PID of a start that is over.
            if start.state == "starting" and start.name is None:
                start.name = starters.get(start.process.pid)

    def describe(self) -> list[dict[str, Any]]:
        """Return all starts as plain values, the oldest first."""
        now = time.time()
        self._starts = {
            key: start for key, start in self._starts.items() if start.state != "ready" or now - start.over < _LISTED
        }
        return [start.describe() for start in self._starts.values()]

    async def _follow(self, start: PendingStart) -> None:
        try:
            result = await start.process.ended()
            if start.id not in self._starts:
                return  # it was dismissed
            status = answer(result, "workbench start", "name", "message")
        except WorkbenchError as error:
            start.state, start.message, start.log = "failed", error.words(PANEL), error.log
        else:
            start.state, start.name, start.message = "ready", status["name"], status["message"]
        start.over = time.time()
        self._changed()


async def _await_end(start: PendingStart) -> None:
    if start.following is not None and not (await asyncio.wait({start.following}, timeout=_CLEANUP))[0]:
        logger.warning("a cancelled start has not ended; `workbench list` shows whether its cluster remains")
        start.following.cancel()
        await start.process.kill()
