"""The heartbeats of the heads, from a separate process, since it loads Dask."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Collection
from tempfile import TemporaryFile
from typing import Any

from workbench.cancellation import run_to_end
from workbench.host import debug_log
from workbench.host.processes import end
from workbench.lab.server.process import by_env, logger

MODULE = "workbench.lab.server.heartbeat_process"
"""Module of the process; it ends at the end of its standard input."""
# Seconds without a viewer until the process ends, for its end, and until its next start after a failure.
_IDLE, _END, _RESTART = 30.0, 5.0, 30.0
# Seconds between two messages to viewers while the process has nothing to report: a browser closes a connection that is
# silent for 20 s, but the process may start for longer, or may not run.
_KEEPALIVE = 10.0
# Most bytes of a line.
_LONGEST = 1 << 24

_TITLE = "the process that polls heads"

Viewer = Callable[[dict[str, Any]], None]
"""Called with each message for a browser."""


class Heartbeats:
    """Runs the process while there are viewers.

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
        # viewer -> names of its clusters; None: all clusters
        self._viewers: dict[Viewer, frozenset[str] | None] = {}
        self._names: frozenset[str] = frozenset()
        self._process: Process | None = None
        self._sent: list[str] = []
        self._running: asyncio.Task[None] | None = None
        self._last_viewed = 0.0

    def show(self, viewer: Viewer, names: frozenset[str] | None = None) -> None:
        """Send heartbeats of the clusters with these names, or of all clusters, to a viewer."""
        self._viewers[viewer] = names
        self._send_names()
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())

    def hide(self, viewer: Viewer) -> None:
        """Send no more heartbeats to a viewer; without viewers no head is polled."""
        if viewer in self._viewers:
            del self._viewers[viewer]
            self._last_viewed = time.monotonic()
            self._send_names()

    @property
    def is_seen(self) -> bool:
        """Whether there is a viewer."""
        return bool(self._viewers)

    def follow(self, names: Collection[str]) -> None:
        """Poll only the heads of these clusters."""
        if self._names != names:
            self._names = frozenset(names)
            self._send_names()

    async def close(self) -> None:
        """End the process."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _send_names(self) -> None:
        names = sorted(
            name for name in self._names if any(shown is None or name in shown for shown in self._viewers.values())
        )
        if self._process is not None and self._process.stdin is not None and names != self._sent:
            self._process.stdin.write(json.dumps(names).encode() + b"\n")
            self._sent = names

    @property
    def _wanted(self) -> bool:
        return bool(self._viewers) or time.monotonic() - self._last_viewed < self._idle

    async def _run(self) -> None:
        keeping_alive = asyncio.create_task(self._keep_alive())
        try:
            while self._wanted:
                try:
                    message = await self._forward()
                except (OSError, ValueError) as error:  # the process cannot be started, or its output is no JSON
                    message = str(error)
                if message is not None:
                    logger.warning(
                        "the process that polls heads has ended (%s); it is started again in %.0f s", message, _RESTART
                    )
                    await asyncio.sleep(_RESTART)
        finally:
            keeping_alive.cancel()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_KEEPALIVE)
            self._show({})

    async def _forward(self) -> str | None:
        """Forward the output of the process while there are viewers; return the last error if it ends by itself."""
        with TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(
                *by_env([sys.executable, "-P", "-m", MODULE]),
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                limit=_LONGEST,
                start_new_session=True,
            )
            debug_log.started(process.pid, _TITLE)
            self._process, self._sent = process, []
            try:
                self._send_names()
                # The process prints a line every two seconds, even if no head answers.
                while self._wanted:
                    if process.stdout is None or not (line := await process.stdout.readline()):
                        errors.seek(0)
                        return errors.read().decode(errors="replace").strip().rpartition("\n")[2]
                    self._show(json.loads(line))
                return None
            finally:
                self._process = None
                stdin = process.stdin
                await run_to_end(end(process, _END, _TITLE, stdin.close if stdin is not None else None))

    def _show(self, pulses: dict[str, Any]) -> None:
        message = {"type": "pulse", "pulses": pulses, "time": time.time()}
        for viewer in tuple(self._viewers):
            viewer(message)
