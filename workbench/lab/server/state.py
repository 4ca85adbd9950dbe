"""The state of the clusters for all browsers: scans of the registry, an event for each change, and heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from workbench import __version__
from workbench.errors import WorkbenchError, worded
from workbench.hints import PANEL
from workbench.lab.server.actions import NO_ACTION, PendingActions, Starts
from workbench.lab.server.observer import Observer
from workbench.lab.server.process import logger
from workbench.lab.server.survey import FilesystemTimeout, RegistryScanner, RegistrySnapshot, records

LOOK, SELDOM = 1.0, 10.0
"""Seconds between two scans of the registry while a browser shows clusters or an action is pending, and otherwise:
a tab may stay open for weeks, and homes are on shared file servers."""


@dataclass(frozen=True)
class State:
    """State of all clusters."""

    clusters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Clusters by name."""
    broken: list[dict[str, str]] = field(default_factory=list)
    """Records that cannot be read."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """Starts from this server."""
    ended: list[dict[str, Any]] = field(default_factory=list)
    """Clusters that ended in the last days, the last one first."""

    def whole(self) -> dict[str, Any]:
        """Return the complete state as plain values."""
        clusters = list(self.clusters.values())
        return {"version": __version__, "clusters": clusters, "ended": self.ended, **self._rest()}

    def since(self, before: State) -> dict[str, Any]:
        """Return the changes as plain values."""
        return {
            "clusters": [values for name, values in self.clusters.items() if before.clusters.get(name) != values],
            "gone": sorted(before.clusters.keys() - self.clusters.keys()),
            **({"ended": self.ended} if self.ended != before.ended else {}),
            **self._rest(),
        }

    def _rest(self) -> dict[str, Any]:
        return {"broken": self.broken, "starts": self.starts, "time": time.time()}


# Seconds between two messages, after an error, and for the answer of the observer, which may start for longer, or may
# not run. The last two together are less than 20 s, after which a browser closes a silent connection.
_BEAT, _PAUSE, _ANSWER = 2.0, 8.0, 10.0

Viewer = Callable[[dict[str, Any]], None]
"""Called with each message for a browser."""


class Heartbeats:
    """Asks the observer while there are viewers.

    Parameters
    ----------
    observer
        The observer of this server.

    Notes
    -----
    For one event loop.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        # viewer -> names of its clusters; None: all clusters
        self._viewers: dict[Viewer, frozenset[str] | None] = {}
        self._names: frozenset[str] = frozenset()
        self._running: asyncio.Task[None] | None = None

    def show(self, viewer: Viewer, names: frozenset[str] | None = None) -> None:
        """Send heartbeats of the clusters with these names, or of all clusters, to a viewer."""
        self._viewers[viewer] = names
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())

    def hide(self, viewer: Viewer) -> None:
        """Send no more heartbeats to a viewer; without viewers no head is polled."""
        self._viewers.pop(viewer, None)

    @property
    def is_seen(self) -> bool:
        """Whether there is a viewer."""
        return bool(self._viewers)

    def follow(self, names: Collection[str]) -> None:
        """Poll only the heads of these clusters."""
        self._names = frozenset(names)

    async def close(self) -> None:
        """Send no more heartbeats."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        while self._viewers:
            shown = self._viewers.values()
            names = sorted(name for name in self._names if any(each is None or name in each for each in shown))
            pulses: dict[str, Any] = {}
            pause = _BEAT
            try:
                pulses = await self._observer.ask("heartbeats", _ANSWER, names=names)
            except WorkbenchError as error:
                logger.warning("no heartbeats: %s", error)
                pause = _PAUSE
            message = {"type": "pulse", "pulses": pulses, "time": time.time()}
            for viewer in tuple(self._viewers):
                viewer(message)
            await asyncio.sleep(pause)


class StateFeed:
    """Scans the registry while browsers are connected.

    Parameters
    ----------
    observer
        The observer of this server.
    often, seldom
        Seconds between two scans of the registry, as `LOOK` and `SELDOM`.

    Notes
    -----
    For one event loop; scans run in a thread.
    """

    def __init__(self, observer: Observer, often: float = LOOK, seldom: float = SELDOM) -> None:
        self._often, self._seldom = often, seldom
        self.changes = PendingActions(self._wake)
        """Actions on clusters."""
        self.starts = Starts(self._wake)
        """Starts of clusters."""
        self.pulses = Heartbeats(observer)
        """Reports of the heads."""
        self._scanner = RegistryScanner()
        self._snapshot = RegistrySnapshot()
        self.known = State()
        """State at the last scan."""
        self._news = asyncio.Event()
        self._awake = asyncio.Event()
        self._watchers = 0
        self._watching: asyncio.Task[None] | None = None
        self._fresh = False
        # The current or last scan, and the scan after it.
        self._scanning: asyncio.Task[State] | None = None
        self._next: asyncio.Task[State] | None = None

    async def refresh(self) -> State:
        """Scan the registry and return the state.

        Raises
        ------
        FilesystemTimeout
            If the registry does not answer.

        Notes
        -----
        All calls during a scan share the next one, so their number does not matter. If the registry does not answer or
        cannot be read, the state has the last snapshot and the error.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._scan_after_current())
            self._next.add_done_callback(_retrieve_exception)
        return await asyncio.shield(self._next)

    async def _scan_after_current(self) -> State:
        try:
            if self._scanning is not None and not self._scanning.done():
                await self._scanning  # if that scan hangs, so would this one
        finally:
            self._scanning, self._next = self._next, None
        return await self._scan()

    async def _scan(self) -> State:
        # Taken before the scan: an action may end between the read of a record and the end of the scan.
        actions = self.changes.describe()
        try:
            self._snapshot = snapshot = await records.read(self._scanner.scan)
        except OSError as error:  # RecordError is one
            state = self._publish(
                replace(self._snapshot, broken=[{"name": "", "error": worded(error, PANEL)}]), self.changes.describe()
            )
            if isinstance(error, FilesystemTimeout):
                raise
            return state
        self.changes.keep({cluster["id"] for cluster in snapshot.clusters.values()})
        self.starts.recognize(snapshot.starters)
        self.pulses.follow(snapshot.headed)
        return self._publish(snapshot, actions)

    def _publish(self, snapshot: RegistrySnapshot, actions: dict[str, dict[str, Any]]) -> State:
        clusters = {
            name: {**cluster, **actions.get(cluster["id"], NO_ACTION)} for name, cluster in snapshot.clusters.items()
        }
        state = State(clusters, snapshot.broken, self.starts.describe(), snapshot.ended)
        if state != self.known:
            self.known = state
            self._news.set()
            self._news = asyncio.Event()
        return self.known

    async def state(self) -> State:
        """Return the state as `refresh`, or that of the last scan if it is fresh and nothing has changed since."""
        return self.known if self._fresh and not self._awake.is_set() else await self.refresh()

    async def news(self, known: State) -> State:
        """Return the next state that differs from the known one."""
        while self.known is known:
            await self._news.wait()
        return self.known

    def show(self, viewer: Viewer, names: frozenset[str] | None = None) -> None:
        """Scan immediately and often, and send heartbeats to a viewer, as `Heartbeats.show`."""
        self.pulses.show(viewer, names)
        self._wake()

    def hide(self, viewer: Viewer) -> None:
        """Send no more heartbeats to a viewer; without viewers scans are rare."""
        self.pulses.hide(viewer)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Return a context in which the state is kept up to date."""
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
        """End the tasks of this server; clusters and pending actions, above all stops, continue."""
        for task in (self._watching, self._scanning, self._next):
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
                pass  # the state has the error, and the next scan may succeed
            except Exception:
                logger.exception("the scan of the clusters failed")
            with suppress(TimeoutError):
                # Python 3.11's wait_for may swallow a cancellation.
                is_awaited = self.pulses.is_seen or self.starts.is_busy or self.changes.is_busy
                async with asyncio.timeout(self._often if is_awaited else self._seldom):
                    await self._awake.wait()


def _retrieve_exception(scan: asyncio.Task[State]) -> None:
    # If all callers are gone, asyncio would log that the exception was never retrieved.
    if not scan.cancelled():
        scan.exception()
