"""The observer of this server, `workbench.lab.observer`: one process for all clusters, started at the first request."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import uuid
from asyncio.subprocess import PIPE
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tornado.httpclient import HTTPError
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from workbench.cancellation import run_to_end
from workbench.errors import StartError, WorkbenchError, from_fields
from workbench.host import debug_log, node_dirs
from workbench.host.processes import end
from workbench.lab.server.process import by_env, logger
from workbench.text import printable

MODULE = "workbench.lab.observer"
"""Module of the process: ``python -m MODULE SOCKET IDLE``."""
IDLE = 300.0
"""Seconds without a viewer after which a dashboard, and the process of the last one, ends."""
# Seconds for an orderly end.
_END = 5.0
# Lines of the log in an error, and most bytes of a line.
_TAIL, _LONGEST = 15, 1 << 24

_TITLE = "the process that observes clusters"
_STOPPING = "this server is stopping. Reload this page after the next start of the server."


class SocketResolver(Resolver):
    """Resolves every host to one Unix socket, `path`."""

    def initialize(self, path: Path) -> None:
        """Set the socket, which tornado passes as a keyword argument."""
        self._path = path

    async def resolve(self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[Any]:
        """Return the socket."""
        return [(socket.AF_UNIX, str(self._path))]


class Observer:
    """Runs the process, and asks it.

    Parameters
    ----------
    idle
        Seconds as `IDLE`.

    Notes
    -----
    For one event loop. The process ends at the end of its standard input, which this process holds: it does not outlive
    this process, even if this process is killed. If it ends by itself, the next request starts it again.
    """

    def __init__(self, idle: float = IDLE) -> None:
        self._idle = idle
        # Of the current process: its socket, once it answers, and the task that runs it.
        self._socket: asyncio.Future[Path] | None = None
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    async def ask(self, operation: str, within: float, **arguments: Any) -> dict[str, Any]:
        """Return the answer of the process to a request.

        Parameters
        ----------
        operation
            Name of the request: ``dashboard`` or ``heartbeats``.
        within
            Seconds for the answer, with the start of the process.
        **arguments
            Plain values.

        Raises
        ------
        WorkbenchError
            The error in the answer.
        StartError
            If the process does not answer, or if this server stops.
        """
        try:
            async with asyncio.timeout(within):
                answer = await self._fetch(operation, arguments)
        except WorkbenchError:
            raise
        except (OSError, HTTPError) as error:
            reason = str(error) or f"no answer for {within:.0f} s"
            raise StartError(f"{_TITLE} does not answer ({reason}). Reload this page to try again.") from error
        if "error" in answer:
            raise from_fields(answer["error"])
        return answer

    async def close(self) -> None:
        """End the process."""
        self._closed = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _fetch(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._closed:
            raise StartError(_STOPPING)
        if self._socket is None:
            self._socket = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run(self._socket))
        # Shielded: one client disconnecting must not cancel the start for the others.
        path = await asyncio.shield(self._socket)
        client = SimpleAsyncHTTPClient(force_instance=True, resolver=SocketResolver(path=path))
        try:
            response = await client.fetch(
                f"http://observer/{operation}", method="POST", body=json.dumps(arguments), request_timeout=0
            )
        finally:
            client.close()
        answer: dict[str, Any] = json.loads(response.body)
        return answer

    async def _run(self, socket: asyncio.Future[Path]) -> None:
        """Run a process to its end; `socket` receives its socket, or the error."""
        identity, lines = uuid.uuid4().hex, deque[str](maxlen=_TAIL)
        error = StartError(_STOPPING)
        try:
            code = await self._run_in(node_dirs.sockets(identity) / "observer.sock", socket, lines)
            error = StartError(f"{_TITLE} has ended (exit code {code}): {_summary(lines)}")
            if code:
                logger.error("%s", error)
        except OSError as failure:
            error = StartError(f"{_TITLE} could not be started: {failure}. Check the free memory and disk space.")
        finally:
            self._socket = None  # the next request starts another process
            if not socket.done():
                socket.set_exception(error)
                socket.exception()  # if all callers are gone, asyncio would log that it was never retrieved
            node_dirs.remove(identity)

    async def _run_in(self, path: Path, socket: asyncio.Future[Path], lines: deque[str]) -> int:
        # -P: a file in the server's folder must not shadow a module
        process: Any = await asyncio.create_subprocess_exec(  # Any: its pipes are never None
            *by_env([sys.executable, "-P", "-m", MODULE, str(path), str(self._idle)]),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=_LONGEST,
            start_new_session=True,  # Ctrl-C in the server's terminal asks for a confirmation, and must end nothing
        )
        debug_log.started(process.pid, _TITLE)
        logging = asyncio.create_task(_log(process.stderr, lines))
        try:
            if await process.stdout.readline():
                socket.set_result(path)
            await logging
        finally:
            # A process that waits for a file server ends when that answers; this server does not wait for it.
            await run_to_end(end(process, _END, _TITLE, process.stdin.close))
        code: int = process.returncode
        return code


async def _log(output: asyncio.StreamReader, lines: deque[str]) -> None:
    """Write the output to the log of the server, and keep the last lines."""
    while line := await output.readline():
        lines.append(printable(line.decode(errors="replace").rstrip()))
        logger.warning("%s: %s", _TITLE, lines[-1])


def _summary(lines: Sequence[str]) -> str:
    """Return the last line, instructions, and all lines."""
    last, *more = [line for line in reversed(lines) if line] or ["no output"]
    summary = f"{last.strip()}. The log of the server has more. Reload this page to try again."
    return "\n".join([summary, "", *reversed(more), last]) if more else summary
