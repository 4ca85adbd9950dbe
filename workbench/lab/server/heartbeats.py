"""The heartbeats of the heads for browsers, which the observer polls while a browser shows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

from workbench.errors import WorkbenchError
from workbench.lab.server.observer import Observer
from workbench.lab.server.process import logger

# Seconds between two messages, and for the answer of the observer: a browser closes a connection that is silent for
# 20 s, but the observer may start for longer, or may not run.
_EVERY, _ANSWER = 2.0, 10.0

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
            try:
                pulses = await self._observer.ask("heartbeats", _ANSWER, names=names)
            except WorkbenchError as error:
                logger.warning("no heartbeats: %s", error)
                await asyncio.sleep(_ANSWER)
            message = {"type": "pulse", "pulses": pulses, "time": time.time()}
            for viewer in tuple(self._viewers):
                viewer(message)
            await asyncio.sleep(_EVERY)
