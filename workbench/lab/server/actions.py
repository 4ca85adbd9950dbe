"""Actions of this server on clusters, each a subcommand of the terminal in a process that outlives the server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench import config
from workbench.commands.table import SUBCOMMANDS
from workbench.deploy.record import Record
from workbench.errors import ClusterNotFound, InvalidRequest, WorkbenchError, from_fields, worded
from workbench.hints import PANEL
from workbench.lab.server.process import BackgroundTasks, Process, ProcessResult, logger


@dataclass(frozen=True)
class ExecutionContext:
    """Interpreter, folder and variables of a subcommand's process."""

    python: str = sys.executable
    """The interpreter."""
    directory: Path | None = None
    """The working directory; None: the server's."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to the server's."""

    def run(self, subcommand: str, arguments: Sequence[str]) -> Process:
        """Start ``workbench SUBCOMMAND --json ARGUMENTS``."""
        # -P: a file in the working directory must not shadow a module
        argv = [self.python, "-P", "-m", "workbench", subcommand, "--json", *arguments]
        return Process(argv, directory=self.directory, environment={**os.environ, **self.environment})


def answer(result: ProcessResult, command: str, *names: str) -> dict[str, Any]:
    """Return the answer of a subcommand, or of a module that answers in the same form.

    Parameters
    ----------
    result
        Result of the process.
    command
        The command, for messages.
    names
        Keys that the answer must have; the workbench of another environment may have another version.

    Raises
    ------
    WorkbenchError
        The error of the subcommand.
    """
    errors = result.errors.strip()
    try:
        response = json.loads(result.out)
    except ValueError:
        response = None
    match response:
        # `stop` also reports the clusters that it could not end.
        case {"error": {"message": str()} as fields} | {"failed": [{"error": {"message": str()} as fields}, *_]}:
            raise _error(fields)
        case dict() if result.code == 0 and response.keys() >= set(names):
            return response
    if result.code == 0:
        raise WorkbenchError(
            f"this version cannot read the answer of `{command}`.",
            log=f"{result.out.strip()}\n{errors}".strip(),
        )
    logger.error("`%s` failed with exit code %d:\n%s", command, result.code, errors)
    raise WorkbenchError(f"`{command}` failed (exit code {result.code}).", hint="See the log of the server.")


def _error(fields: Mapping[str, Any]) -> WorkbenchError:
    try:
        return from_fields(fields)
    except (TypeError, KeyError):  # of another version
        return WorkbenchError(fields["message"])


MESSAGES = {subcommand.name: subcommand.progress_label for subcommand in SUBCOMMANDS if subcommand.progress_label}
"""Message while a subcommand runs, by the name of the subcommand."""
NO_ACTION = {"busy": None, "error": None}
"""Status of a cluster without an action."""
# Seconds for a subcommand in addition to the subcommand's own timeouts.
_EXTRA_TIME = 300.0


class AlreadyPending(InvalidRequest):
    """Another action on the cluster is pending."""


@dataclass(frozen=True)
class _Action:
    busy: str | None = None
    error: str | None = None
    task: asyncio.Task[None] | None = None


class PendingActions(BackgroundTasks):
    """Runs subcommands that change clusters; the parameters are those of `BackgroundTasks`."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__(changed)
        self._actions: dict[str, _Action] = {}

    def begin(self, record: Record, subcommand: str, arguments: Sequence[str] = ()) -> None:
        """Start an action on a cluster; `describe` returns its result.

        Parameters
        ----------
        record
            The cluster.
        subcommand
            A key of `MESSAGES`.
        arguments
            Arguments between the subcommand and the name.

        Raises
        ------
        AlreadyPending
            If another action on the cluster is pending, except for a first stop.
        LaunchError
            If the process of the subcommand cannot be started.
        """
        pending = self._actions.get(record.id, _Action())
        if pending.task is not None and (subcommand != "stop" or pending.busy == MESSAGES[subcommand]):
            raise AlreadyPending(f"cluster {record.name!r} is already {pending.busy}. Wait for the end of that action.")
        process = ExecutionContext().run(subcommand, [*arguments, record.name])
        if pending.task is not None:
            pending.task.cancel()  # its subcommand, which may wait in a queue for days, ends with the cluster
        task = self._spawn(self._follow(record, subcommand, process))
        self._actions[record.id] = _Action(MESSAGES[subcommand], task=task)
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

    async def _follow(self, record: Record, subcommand: str, process: Process) -> None:
        error = None
        try:
            answer(await process.ended(_timeout(record)), f"workbench {subcommand}")
        except (WorkbenchError, TimeoutError) as failure:
            error = worded(failure, PANEL)
        self._actions[record.id] = _Action(error=error)
        self._changed()


def _timeout(record: Record) -> float:
    return 2 * record.ready_within + config.seconds("queue-timeout") + _EXTRA_TIME


# Seconds for which a successful start is listed, and for the cleanup of a canceled start.
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
        logger.warning("a canceled start has not ended; `workbench list` shows whether its cluster remains")
        start.following.cancel()
        await start.process.kill()
