"""All that browsers are told of clusters: one look at the registry for everybody, and a word when it has changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from workbench import __version__
from workbench.server.changes import Changes
from workbench.server.clusters import Survey
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
    For one event loop; what blocks is done in threads.
    """

    def __init__(self) -> None:
        self.changes = Changes(self._wake)
        """What is being done to clusters."""
        self.starts = Starts(self._wake)
        """Clusters that are being started."""
        self.pulses = Pulses()
        """What the heads tell at the moment."""
        self._survey = Survey()
        self._state = State()
        self._looking = asyncio.Lock()
        self._news = asyncio.Condition()
        self._awake = asyncio.Event()
        self._watchers = 0
        self._watching: asyncio.Task[None] | None = None
        self._fresh = False

    async def look(self) -> State:
        """Return how things stand now."""
        async with self._looking:
            seen = await asyncio.to_thread(self._survey.look)
            self.changes.keep({its["id"] for its in seen.clusters.values()})
            self.starts.recognise(seen.starters)
            self.pulses.follow(seen.headed)
            clusters = {name: {**its, **self.changes.of(its["id"])} for name, its in seen.clusters.items()}
            state = State(clusters, seen.broken, self.starts.told())
            if state != self._state:
                async with self._news:
                    self._state = state
                    self._news.notify_all()
            return self._state

    async def state(self) -> State:
        """Return how things stand, as of the last look if the board is kept up to date and nothing was done since."""
        known = self._fresh and not self._awake.is_set() and not self._looking.locked()
        return self._state if known else await self.look()

    async def news(self, known: State) -> State:
        """Return how things stand as soon as that is another state than the known one."""
        async with self._news:
            await self._news.wait_for(lambda: self._state is not known)
            return self._state

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
        self.starts.close()
        self.changes.close()
        await self.pulses.close()

    def _wake(self) -> None:
        self._awake.set()

    async def _watch(self) -> None:
        while True:
            self._awake.clear()
            try:
                await self.look()
                self._fresh = True
            except Exception:
                # a file server that does not answer now may do so at the next look
                logger.exception("the clusters could not be looked at")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._awake.wait(), _LOOK)
