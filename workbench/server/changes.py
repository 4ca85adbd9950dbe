"""What this server is doing to clusters: one thing at a time to each, but each can be stopped at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from workbench import config
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.record import Record
from workbench.server.commands import Surroundings, answer

WORDS = {"scale": "scaling", "restart": "restarting", "stop": "stopping"}
"""What is said while a verb runs."""
# Seconds for a verb beyond those that it gives itself.
_MORE = 300.0


class Busy(InvalidRequest):
    """Something else is being done to the cluster."""


@dataclass(frozen=True)
class _Change:
    busy: str | None = None
    error: str | None = None
    task: asyncio.Task[None] | None = None


class Changes:
    """Runs verbs that change clusters.

    Parameters
    ----------
    changed
        Called when one has begun or ended.

    Notes
    -----
    For one event loop.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
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
        Busy
            If something else is being done to it, or it is to be stopped a second time.
        """
        known = self._changes.get(record.id, _Change())
        if known.task is not None:
            if verb != "stop" or known.busy == WORDS[verb]:
                raise Busy(f"cluster {record.name!r} is {known.busy} already; wait until that is done.")
            known.task.cancel()  # its verb, which may wait in a queue for days, ends with the cluster
        task = asyncio.create_task(self._run(record, verb, words))
        self._changes[record.id] = _Change(WORDS[verb], task=task)
        self._changed()

    def of(self, cluster: str) -> dict[str, Any]:
        """Return what is being done to the cluster of an id, and why the last thing failed."""
        change = self._changes.get(cluster, _Change())
        return {"busy": change.busy, "error": change.error}

    def keep(self, clusters: Collection[str]) -> None:
        """Forget what was done to clusters other than these ids; they have ended."""
        self._changes = {key: its for key, its in self._changes.items() if its.busy or key in clusters}

    def close(self) -> None:
        """Let what goes on do so by itself."""
        for change in self._changes.values():
            if change.task is not None:
                change.task.cancel()

    async def _run(self, record: Record, verb: str, words: Sequence[str]) -> None:
        error = None
        try:
            process = Surroundings().run(verb, [*words, record.name])
            answer(await process.ended(_patience(record)), verb)
        except (WorkbenchError, TimeoutError) as failure:
            error = str(failure)
        self._changes[record.id] = _Change(error=error)
        self._changed()


def _patience(record: Record) -> float:
    return 2 * record.ready_within + config.seconds("queue-timeout") + _MORE
