"""Actions of this server on clusters: one at a time per cluster, but a stop is possible at any time."""

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
from workbench.lab.server.process import Process
from workbench.lab.server.subcommand import ExecutionContext, answer
from workbench.lab.server.tasks import BackgroundTasks

MESSAGES = {verb.name: verb.going for verb in VERBS if verb.going}
"""Message while a verb runs, by the name of the verb."""
NO_ACTION = {"busy": None, "error": None}
"""Status of a cluster without an action."""
# Seconds for a verb in addition to the verb's own timeouts.
_EXTRA_TIME = 300.0


class AlreadyPending(InvalidRequest):
    """Another action on the cluster is pending."""


@dataclass(frozen=True)
class _Action:
    busy: str | None = None
    error: str | None = None
    task: asyncio.Task[None] | None = None


class PendingActions(BackgroundTasks):
    """Runs verbs that change clusters; the parameters are those of `BackgroundTasks`."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__(changed)
        self._actions: dict[str, _Action] = {}

    def begin(self, record: Record, verb: str, arguments: Sequence[str] = ()) -> None:
        """Start an action on a cluster; `describe` returns its result.

        Parameters
        ----------
        record
            The cluster.
        verb
            A key of `MESSAGES`.
        arguments
            Arguments between the verb and the name.

        Raises
        ------
        AlreadyPending
            If another action on the cluster is pending, except for a first stop.
        LaunchError
            If the process of the verb cannot be started.
        """
        pending = self._actions.get(record.id, _Action())
        if pending.task is not None and (verb != "stop" or pending.busy == MESSAGES[verb]):
            raise AlreadyPending(f"cluster {record.name!r} is already {pending.busy}. Wait for the end of that action.")
        process = ExecutionContext().run(verb, [*arguments, record.name])
        if pending.task is not None:
            pending.task.cancel()  # its verb, which may wait in a queue for days, ends with the cluster
        task = self._spawn(self._follow(record, verb, process))
        self._actions[record.id] = _Action(MESSAGES[verb], task=task)
        self._changed()

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return pending actions and errors of the last ones by the ids of clusters; `NO_ACTION` is left out."""
        return {key: {"busy": action.busy, "error": action.error} for key, action in self._actions.items()}

    def dismiss(self, cluster: str) -> None:
        """Forget the error of the last action on the cluster with an id."""
        if cluster in self._actions and self._actions[cluster].task is None:
            del self._actions[cluster]
            self._changed()

    def keep(self, clusters: Collection[str]) -> None:
        """Forget the results of actions on all clusters except those with these ids."""
        self._actions = {key: action for key, action in self._actions.items() if action.busy or key in clusters}

    async def _follow(self, record: Record, verb: str, process: Process) -> None:
        error = None
        try:
            answer(await process.ended(_timeout(record)), f"workbench {verb}")
        except (WorkbenchError, TimeoutError) as failure:
            error = worded(failure, PANEL)
        self._actions[record.id] = _Action(error=error)
        self._changed()


def _timeout(record: Record) -> float:
    return 2 * record.ready_within + config.seconds("queue-timeout") + _EXTRA_TIME
