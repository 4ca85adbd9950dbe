"""The starts that were asked for by this server: each a process, which goes on when the server stops."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import ClusterNotFound, WorkbenchError
from workbench.hints import PANEL
from workbench.server.log import logger
from workbench.server.process import Process
from workbench.server.subcommand import ExecutionContext, answer
from workbench.server.tasks import BackgroundTasks

# Seconds: a start that has come to its end well is told for so long; one that is given up may take so long to clear up.
_TOLD, _CLEAR = 600.0, 120.0


@dataclass
class PendingStart:
    """A start."""

    process: Process
    """What does it."""
    name: str | None
    """Name of the cluster, once it is known."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Its own identity."""
    state: str = "starting"
    """``starting``, ``ready`` or ``failed``."""
    message: str = ""
    """How it has ended, in words."""
    log: str = ""
    """What tells why it has failed."""
    since: float = field(default_factory=time.time)
    """When it was asked for, in seconds since the epoch."""
    over: float = 0.0
    """When it was over."""
    following: asyncio.Task[None] | None = None
    """What waits for its end."""

    def describe(self) -> dict[str, Any]:
        """Return it as plain values."""
        names = ("id", "name", "state", "message", "log", "since")
        return {name: getattr(self, name) for name in names}


class Starts(BackgroundTasks):
    """Knows the starts, each until it is dismissed or has been ready for a while; takes what `BackgroundTasks` does."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__(changed)
        self._starts: dict[str, PendingStart] = {}

    def begin(self, words: Sequence[str], surroundings: ExecutionContext, name: str | None) -> PendingStart:
        """Start a cluster.

        Parameters
        ----------
        words
            Options, as typed.
        surroundings
            Where.
        name
            The name that was asked for.

        Raises
        ------
        LaunchError
            If the process of the start cannot be started.
        """
        start = PendingStart(surroundings.run("start", words), name)
        self._starts[start.id] = start
        start.following = self._spawn(self._follow(start))
        self._changed()
        return start

    def dismiss(self, key: str) -> None:
        """Forget a start; one that goes on is ended in order.

        Raises
        ------
        ClusterNotFound
            If there is none with this id.
        """
        start = self._starts.pop(key, None)
        if start is None:
            raise ClusterNotFound(f"no start {key!r}: it was dismissed, or was asked for by another server.")
        if start.state == "starting":
            # As after Ctrl-C in a terminal: nothing of the cluster is left.
            start.process.interrupt()
            self._spawn(_await_end(start))
        self._changed()

    def recognise(self, starters: Mapping[int, str]) -> None:
        """Learn the names of clusters from the processes that start them."""
        for start in self._starts.values():
            # The process of one that is over may be anybody's by now.
            if start.state == "starting" and start.name is None:
                start.name = starters.get(start.process.pid)

    def told(self) -> list[dict[str, Any]]:
        """Return all starts as plain values, the oldest first."""
        now = time.time()
        self._starts = {
            key: start for key, start in self._starts.items() if start.state != "ready" or now - start.over < _TOLD
        }
        return [start.describe() for start in self._starts.values()]

    async def _follow(self, start: PendingStart) -> None:
        try:
            ended = await start.process.ended()
            if start.id not in self._starts:
                return  # it was dismissed
            status = answer(ended, "start", "name", "message")
        except WorkbenchError as error:
            start.state, start.message, start.log = "failed", error.words(PANEL), error.log
        else:
            start.state, start.name, start.message = "ready", status["name"], status["message"]
        start.over = time.time()
        self._changed()


async def _await_end(start: PendingStart) -> None:
    if start.following is not None and not (await asyncio.wait({start.following}, timeout=_CLEAR))[0]:
        logger.warning("a start that was given up has not ended; `workbench list` tells what is left of it")
        start.following.cancel()
        await start.process.kill()
