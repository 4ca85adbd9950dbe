"""All that browsers are told of clusters: one look at the registry for everybody, and a word when it has changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.config import __version__
from workbench.errors import worded
from workbench.hints import PANEL
from workbench.server.actions import NOTHING, PendingActions
from workbench.server.blocking_files import FilesystemTimeout, records
from workbench.server.heartbeats import Heartbeats, Viewer
from workbench.server.log import logger
from workbench.server.starts import Starts
from workbench.server.survey import RegistryScanner, RegistrySnapshot

LOOK, SELDOM = 1.0, 10.0
"""Seconds between two looks at the registry while somebody sees what they show or waits for something, and otherwise:
a tab may stay open for weeks, and homes are on file servers that others use, too."""


@dataclass(frozen=True)
class State:
    """How things stand."""

    clusters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name."""
    broken: list[dict[str, str]] = field(default_factory=list)
    """Records that cannot be used."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """Starts that were asked for by this server."""
    ended: list[dict[str, Any]] = field(default_factory=list)
    """Clusters that have ended in the last days, the last one first."""

    def whole(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        clusters = list(self.clusters.values())
        return {"version": __version__, "clusters": clusters, "ended": self.ended, **self._rest()}

    def since(self, before: State) -> dict[str, Any]:
        """Return what has changed as plain values."""
        return {
            "clusters": [its for name, its in self.clusters.items() if before.clusters.get(name) != its],
            "gone": sorted(before.clusters.keys() - self.clusters.keys()),
            **({"ended": self.ended} if self.ended != before.ended else {}),
            **self._rest(),
        }

    def _rest(self) -> dict[str, Any]:
        return {"broken": self.broken, "starts": self.starts, "time": time.time()}


class StateFeed:
    """Looks at the clusters while somebody looks at the board.

    Parameters
    ----------
    often, seldom
        Seconds between two looks at the registry, as of `LOOK` and `SELDOM`.

    Notes
    -----
    For one event loop; what blocks is done in a thread.
    """

    def __init__(self, often: float = LOOK, seldom: float = SELDOM) -> None:
        self._often, self._seldom = often, seldom
        self.changes = PendingActions(self._wake)
        """What is being done to clusters."""
        self.starts = Starts(self._wake)
        """Clusters that are being started."""
        self.pulses = Heartbeats()
        """What the heads tell at the moment."""
        self._survey = RegistryScanner()
        self._seen = RegistrySnapshot()
        self.known = State()
        """How things stood at the last look."""
        self._news = asyncio.Event()
        self._awake = asyncio.Event()
        self._watchers = 0
        self._watching: asyncio.Task[None] | None = None
        self._fresh = False
        # The look that goes on, or was the last one, and the one after it.
        self._looking: asyncio.Task[State] | None = None
        self._next: asyncio.Task[State] | None = None

    async def refresh(self) -> State:
        """Return how things stand now.

        Raises
        ------
        FilesystemTimeout
            If the registry does not answer.

        Notes
        -----
        All who ask while a look goes on share the next one, so it does not matter how many they are. If the registry
        does not answer, or cannot be read, that stands beside what was seen last.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._take_turn())
            self._next.add_done_callback(_hear)
        return await asyncio.shield(self._next)

    async def _take_turn(self) -> State:
        try:
            if self._looking is not None and not self._looking.done():
                await self._looking  # if that hangs, so would this
        finally:
            self._looking, self._next = self._next, None
        return await self._look()

    async def _look(self) -> State:
        # What is done when the records have been read may not have been done when they were.
        doing = self.changes.told()
        try:
            self._seen = seen = await records.read(self._survey.scan)
        except OSError as error:  # a RecordError among others
            state = self._tell(
                replace(self._seen, broken=[{"name": "", "error": worded(error, PANEL)}]), self.changes.told()
            )
            if isinstance(error, FilesystemTimeout):
                raise
            return state
        self.changes.keep({its["id"] for its in seen.clusters.values()})
        self.starts.recognise(seen.starters)
        self.pulses.follow(seen.headed)
        return self._tell(seen, doing)

    def _tell(self, seen: RegistrySnapshot, doing: dict[str, dict[str, Any]]) -> State:
        clusters = {name: {**its, **doing.get(its["id"], NOTHING)} for name, its in seen.clusters.items()}
        state = State(clusters, seen.broken, self.starts.told(), seen.ended)
        if state != self.known:
            self.known = state
            self._news.set()
            self._news = asyncio.Event()
        return self.known

    async def state(self) -> State:
        """Return how things stand; as `look`, or as of the last one if that is fresh and nothing was done since."""
        return self.known if self._fresh and not self._awake.is_set() else await self.refresh()

    async def news(self, known: State) -> State:
        """Return how things stand as soon as that is another state than the known one."""
        while self.known is known:
            await self._news.wait()
        return self.known

    def show(self, viewer: Viewer, names: frozenset[str] | None = None) -> None:
        """Look often, at once to begin with, and bring pulses to a viewer, as `Heartbeats.show`: somebody sees them."""
        self.pulses.show(viewer, names)
        self._wake()

    def hide(self, viewer: Viewer) -> None:
        """Bring no more pulses to a viewer, and look seldom where there is no other."""
        self.pulses.hide(viewer)

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
        for task in (self._watching, self._looking, self._next):
            if task is not None:
                task.cancel()
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
                await self.refresh()
                self._fresh = True
            except FilesystemTimeout:
                pass  # browsers are told, and the next look may be luckier
            except Exception:
                logger.exception("the clusters could not be looked at")
            with suppress(TimeoutError):
                # Python 3.11's wait_for may take an end for an awakening.
                is_awaited = self.pulses.is_seen or self.starts.is_busy or self.changes.is_busy
                async with asyncio.timeout(self._often if is_awaited else self._seldom):
                    await self._awake.wait()


def _hear(look: asyncio.Task[State]) -> None:
    # Those who have asked may have left, and asyncio would complain that nobody hears why it failed.
    if not look.cancelled():
        look.exception()
