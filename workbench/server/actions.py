"""What this server is doing to clusters: one thing at a time to each, but each can be stopped at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from workbench import config
from workbench.commands.table import VERBS
from workbench.deploy.record import Record
from workbench.errors import InvalidRequest, WorkbenchError, worded
from workbench.hints import PANEL
from workbench.server.process import Process
from workbench.server.subcommand import ExecutionContext, answer
from workbench.server.tasks import BackgroundTasks

WORDS = {verb.name: verb.going for verb in VERBS if verb.going}
"""What is said while a verb runs."""
NOTHING = {"busy": None, "error": None}
"""What is told of a cluster that nothing was done to."""
# Seconds for a verb beyond those that it gives itself.
_MORE = 300.0


class AlreadyPending(InvalidRequest):
    """Something else is being done to the cluster."""


@dataclass(frozen=True)
class _Change:
    busy: str | None = None
    error: str | None = None
    task: asyncio.Task[None] | None = None


class PendingActions(BackgroundTasks):
    """Runs verbs that change clusters; takes what `BackgroundTasks` does."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__(changed)
        self._changes: dict[str, _Change] = {}

    def begin(self, record: Record, verb: str, words: Sequence[str] = ()) -> None:
        """Begin to change a cluster; how it ends is told by `of`.

        Parameters
        ----------
        record
            The cluster.
        verb
            One of `WORDS`.
        words
            What is typed between the verb and the name.

        Raises
        ------
        AlreadyPending
            If something else is being done to it, or it is to be stopped a second time.
        LaunchError
            If the process of the verb cannot be started.
        """
        known = self._changes.get(record.id, _Change())
        if known.task is not None and (verb != "stop" or known.busy == WORDS[verb]):
            raise AlreadyPending(f"cluster {record.name!r} is {known.busy} already; wait until that is done.")
        process = ExecutionContext().run(verb, [*words, record.name])
        if known.task is not None:
            known.task.cancel()  # its verb, which may wait in a queue for days, ends with the cluster
        task = self._spawn(self._follow(record, verb, process))
        self._changes[record.id] = _Change(WORDS[verb], task=task)
        self._changed()

    def told(self) -> dict[str, dict[str, Any]]:
        """Return what is being done to clusters, and why the last thing failed, by their ids; `NOTHING` to others."""
        return {key: {"busy": its.busy, "error": its.error} for key, its in self._changes.items()}

    def dismiss(self, cluster: str) -> None:
        """Forget why the last thing that was done to the cluster of an id has failed."""
        if cluster in self._changes and self._changes[cluster].task is None:
            del self._changes[cluster]
            self._changed()

    def keep(self, clusters: Collection[str]) -> None:
        """Forget what was done to clusters other than these ids; they have ended."""
        self._changes = {key: its for key, its in self._changes.items() if its.busy or key in clusters}

    async def _follow(self, record: Record, verb: str, process: Process) -> None:
        error = None
        try:
            answer(await process.ended(_patience(record)), verb)
        except (WorkbenchError, TimeoutError) as failure:
            error = worded(failure, PANEL)
        self._changes[record.id] = _Change(error=error)
        self._changed()


def _patience(record: Record) -> float:
    return 2 * record.ready_within + config.seconds("queue-timeout") + _MORE
