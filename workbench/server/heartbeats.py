"""What the heads tell of their clusters at the moment, brought by a process of its own: it loads Dask."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Collection
from tempfile import TemporaryFile
from typing import Any

from workbench.log import debug_log
from workbench.processes.ending import end
from workbench.server.log import logger
from workbench.server.process import by_env

MODULE = "workbench.server.heartbeat_process"
"""What is run; it ends at the end of its standard input."""
# Seconds: without a viewer until it ends, for its end, and until the next one where one has broken off.
_IDLE, _END, _AGAIN = 30.0, 5.0, 30.0
# Bytes of a line.
_LONGEST = 1 << 24

Viewer = Callable[[dict[str, Any]], None]
"""Called with each message for a browser."""


class Heartbeats:
    """The process, while somebody looks.

    Parameters
    ----------
    idle
        Seconds without a viewer after which the process ends.

    Notes
    -----
    For one event loop.
    """

    def __init__(self, idle: float = _IDLE) -> None:
        self._idle = idle
        # With the clusters that each sees; None: all of them.
        self._viewers: dict[Viewer, frozenset[str] | None] = {}
        self._names: frozenset[str] = frozenset()
        self._process: Process | None = None
        self._told: list[str] = []
        self._running: asyncio.Task[None] | None = None
        self._seen = 0.0

    def show(self, viewer: Viewer, names: frozenset[str] | None = None) -> None:
        """Bring pulses to a viewer, who sees those of clusters of these names, or of all."""
        self._viewers[viewer] = names
        self._tell()
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())

    def hide(self, viewer: Viewer) -> None:
        """Bring no more to a viewer; where there is none no head is asked."""
        if viewer in self._viewers:
            del self._viewers[viewer]
            self._seen = time.monotonic()
            self._tell()

    @property
    def is_seen(self) -> bool:
        """Whether there is a viewer."""
        return bool(self._viewers)

    def follow(self, names: Collection[str]) -> None:
        """Have the heads of these clusters be asked, and no others."""
        if self._names != names:
            self._names = frozenset(names)
            self._tell()

    async def close(self) -> None:
        """End the process."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _tell(self) -> None:
        seen = self._viewers.values()
        names = sorted(name for name in self._names if any(its is None or name in its for its in seen))
        if self._process is not None and self._process.stdin is not None and names != self._told:
            self._process.stdin.write(json.dumps(names).encode() + b"\n")
            self._told = names

    @property
    def _wanted(self) -> bool:
        return bool(self._viewers) or time.monotonic() - self._seen < self._idle

    async def _run(self) -> None:
        while self._wanted:
            try:
                last = await self._hand_on()
            except (OSError, ValueError) as error:  # it cannot be started, or what it says is no message
                last = str(error)
            if last is not None:
                logger.warning("what asks heads has ended (%s); it is started again in %.0f s", last, _AGAIN)
                await asyncio.sleep(_AGAIN)

    async def _hand_on(self) -> str | None:
        """Hand on what the process says while somebody looks; if it ends by itself return its last words."""
        with TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(
                *by_env([sys.executable, "-P", "-m", MODULE]),
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                limit=_LONGEST,
                start_new_session=True,
            )
            debug_log.started(process.pid, "what asks heads")
            self._process, self._told = process, []
            try:
                self._tell()
                # A line every two seconds, whatever the heads say.
                while self._wanted:
                    if process.stdout is None or not (line := await process.stdout.readline()):
                        errors.seek(0)
                        return errors.read().decode(errors="replace").strip().rpartition("\n")[2]
                    self._show(json.loads(line))
                return None
            finally:
                self._process = None
                stdin = process.stdin
                await end(process, _END, "what asks heads", stdin.close if stdin is not None else None)

    def _show(self, pulses: dict[str, Any]) -> None:
        message = {"type": "pulse", "pulses": pulses, "time": time.time()}
        for viewer in tuple(self._viewers):
            viewer(message)
