"""What this server is doing to clusters: one thing at a time to each."""

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
    busy: str | None
    error: str | None = None


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
        self._tasks: set[asyncio.Task[None]] = set()

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
            If something else is being done to it.
        """
        busy = self.of(record.id)["busy"]
        if busy is not None:
            raise Busy(f"cluster {record.name!r} is {busy} already; wait until that is done.")
        self._changes[record.id] = _Change(WORDS[verb])
        task = asyncio.create_task(self._run(record, verb, words))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._changed()

    def of(self, cluster: str) -> dict[str, Any]:
        """Return what is being done to the cluster of an id, and why the last thing failed."""
        change = self._changes.get(cluster, _Change(None))
        return {"busy": change.busy, "error": change.error}

    def keep(self, clusters: Collection[str]) -> None:
        """Forget what was done to clusters other than these ids; they have ended."""
        self._changes = {key: its for key, its in self._changes.items() if its.busy or key in clusters}

    async def close(self) -> None:
        """End what goes on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, record: Record, verb: str, words: Sequence[str]) -> None:
        error = None
        try:
            process = Surroundings().run(verb, [*words, record.name])
            try:
                answer(await process.ended(_patience(record)), verb)
            finally:
                await process.kill()
        except (WorkbenchError, TimeoutError) as failure:
            error = str(failure)
        self._changes[record.id] = _Change(None, error)
        self._changed()


def _patience(record: Record) -> float:
    return 2 * record.ready_within + config.seconds("queue-timeout") + _MORE
