"""All that browsers are told of clusters: one look at the registry for everybody, and a word when it has changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from workbench import __version__
from workbench.server.changes import NOTHING, Changes
from workbench.server.clusters import Seen, Survey
from workbench.server.files import FilesSilent, records
from workbench.server.pulses import Pulses
from workbench.server.starts import Starts

logger = logging.getLogger("workbench.server")

# Seconds between two looks at the registry while somebody is there.
_LOOK = 1.0


@dataclass(frozen=True)
class State:
    """How things stand."""

    clusters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name."""
    broken: list[dict[str, str]] = field(default_factory=list)
    """Records that cannot be used."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """Starts that were asked for by this server."""

    def whole(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {"version": __version__, "clusters": list(self.clusters.values()), **self._rest()}

    def since(self, before: State) -> dict[str, Any]:
        """Return what has changed as plain values."""
        return {
            "clusters": [its for name, its in self.clusters.items() if before.clusters.get(name) != its],
            "gone": sorted(before.clusters.keys() - self.clusters.keys()),
            **self._rest(),
        }

    def _rest(self) -> dict[str, Any]:
        return {"broken": self.broken, "starts": self.starts, "time": time.time()}


class Board:
    """Looks at the clusters while somebody looks at the board.

    Notes
    -----
    For one event loop; what blocks is done in a thread.
    """

    def __init__(self) -> None:
        self.changes = Changes(self._wake)
        """What is being done to clusters."""
        self.starts = Starts(self._wake)
        """Clusters that are being started."""
        self.pulses = Pulses()
        """What the heads tell at the moment."""
        self._survey = Survey()
        self._seen = Seen()
        self.known = State()
        """How things stood at the last look."""
        self._news = asyncio.Event()
        self._awake = asyncio.Event()
        self._watchers = 0
        self._watching: asyncio.Task[None] | None = None
        self._fresh = False

    async def look(self) -> State:
        """Return how things stand now.

        Raises
        ------
        FilesSilent
            If the registry does not answer; that stands beside what was seen last then.
        """
        # What is done when the records have been read may not have been done when they were.
        doing = self.changes.told()
        try:
            self._seen = seen = await records.look(self._survey.look)
        except FilesSilent as error:
            self._tell(replace(self._seen, broken=[{"name": "", "error": str(error)}]), doing)
            raise
        self.changes.keep({its["id"] for its in seen.clusters.values()})
        self.starts.recognise(seen.starters)
        self.pulses.follow(seen.headed)
        return self._tell(seen, doing)

    def _tell(self, seen: Seen, doing: dict[str, dict[str, Any]]) -> State:
        clusters = {name: {**its, **doing.get(its["id"], NOTHING)} for name, its in seen.clusters.items()}
        state = State(clusters, seen.broken, self.starts.told())
        if state != self.known:
            self.known = state
            self._news.set()
            self._news = asyncio.Event()
        return self.known

    async def state(self) -> State:
        """Return how things stand; as `look`, or as of the last one if that is fresh and nothing was done since."""
        return self.known if self._fresh and not self._awake.is_set() else await self.look()

    async def news(self, known: State) -> State:
        """Return how things stand as soon as that is another state than the known one."""
        while self.known is known:
            await self._news.wait()
        return self.known

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Give a context in which the board is kept up to date."""
        self._watchers += 1
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self._watchers -= 1
            if self._watchers == 0:
                self._watching.cancel()
                self._watching, self._fresh = None, False

    async def close(self) -> None:
        """End what belongs to this server; clusters go on, and so does what was asked for: a stop above all."""
        if self._watching is not None:
            self._watching.cancel()
        self.starts.close()
        self.changes.close()
        await self.pulses.close()

    def _wake(self) -> None:
        self._awake.set()

    async def _watch(self) -> None:
        while True:
            self._awake.clear()
            self._fresh = False
            try:
                await self.look()
                self._fresh = True
            except FilesSilent:
                pass  # browsers are told, and the next look may be luckier
            except Exception:
                logger.exception("the clusters could not be looked at")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._awake.wait(), _LOOK)
