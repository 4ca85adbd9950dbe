"""The pages of clusters, and the processes of dashboards: one per cluster, from the first viewer to the last.

Sockets come from the registry alone; no part of a request is ever used as a path, a host or a port.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from workbench.cancellation import run_to_end
from workbench.deploy import logs, registry
from workbench.deploy.record import Record, owns_lease
from workbench.errors import (
    ClusterNotFound,
    HeadUnreachable,
    InvalidRequest,
    LaunchError,
    StartError,
    StartTimeout,
    WorkbenchError,
)
from workbench.hints import PANEL
from workbench.host import debug_log, node_dirs
from workbench.host.processes import end
from workbench.lab.dashboard import PREFIX
from workbench.lab.server.process import by_env
from workbench.lab.server.proxy import Proxy, without_token
from workbench.lab.server.survey import DeadlineReader, FilesystemTimeout, records
from workbench.text import printable

MODULE = "workbench.lab.dashboard"
"""Module of the process: ``python -m MODULE NAME --socket PATH``; it ends at the end of its standard input."""
IDLE = 300.0
"""Seconds without a viewer after which a dashboard ends."""
# Seconds between two checks, for a start, between two attempts to connect, and for an orderly end.
_LOOK, _START, _TRY, _END = 5.0, 60.0, 0.05, 5.0
# Seconds to read a file, which may be on a file server.
_GLANCE = 5.0
# Lines of the log in an error.
_TAIL = 15
# The folder with Python's packages.
_packages = DeadlineReader(lambda: sys.prefix)


@dataclass
class _Panel:
    record: Record
    socket: Path
    process: Process
    viewers: int = 0
    used: float = field(default_factory=time.monotonic)


class DashboardProcesses:
    """The dashboards that this server has started.

    Parameters
    ----------
    idle
        Seconds without a viewer after which a dashboard ends, and for which it outlives its cluster if it has a viewer.

    Notes
    -----
    For one event loop. Each dashboard ends at the end of its standard input, which this process holds: no dashboard
    outlives this process, even if it is killed.
    """

    def __init__(self, idle: float = IDLE) -> None:
        self._idle = idle
        self._panels: dict[str, asyncio.Task[_Panel]] = {}
        self._numbers = itertools.count()
        self._closing = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def socket(self, record: Record, prefix: str) -> Path:
        """Return the socket of a cluster's dashboard, which is started if it does not run.

        Parameters
        ----------
        record
            The cluster.
        prefix
            Path of the pages in the browser.

        Raises
        ------
        LaunchError
            If Panel is not installed.
        StartError
            If the dashboard ends at once or does not answer in time, or if this server stops.
        """
        if self._closing.is_set():
            raise StartError("this server is stopping. Reload this page after the next start of the server.")
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        starting = before = self._panels.get(record.id)
        if starting is None or _has_ended(starting):
            starting = self._panels[record.id] = asyncio.create_task(self._start(record, prefix))
            await _clear(before)
        # Shielded: one client disconnecting must not cancel the start for the others.
        panel = await asyncio.shield(starting)
        panel.used = time.monotonic()
        return panel.socket

    @contextmanager
    def viewing(self, record: Record) -> Iterator[None]:
        """Return a context in which the dashboard has a viewer; call `socket` before."""
        task = self._panels.get(record.id)
        if task is None or not task.done() or _has_ended(task):
            # The dashboard has ended since, or the next one is starting.
            yield
            return
        panel = task.result()
        panel.viewers += 1
        try:
            yield
        finally:
            panel.viewers -= 1
            panel.used = time.monotonic()

    async def close(self) -> None:
        """End all dashboards."""
        self._closing.set()
        if self._watching is not None:
            await self._watching
        tasks = list(self._panels.values())
        self._panels.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # an error of one dashboard must not keep the others from ending
        await asyncio.gather(*map(_clear, tasks), return_exceptions=True)

    async def _start(self, record: Record, prefix: str) -> _Panel:
        if await _packages.read(importlib.util.find_spec, "panel") is None:
            raise LaunchError(
                "the dashboard needs Panel, which is not installed here. Run pip install 'panel>=1.9,<1.10'."
            )
        socket = node_dirs.sockets(record.id) / f"panel-{os.getpid()}-{next(self._numbers)}.sock"
        log = record.logs / "dashboard.log"
        output = await records.read(logs.append, log)
        with output:
            begin = output.tell()
            panel = _Panel(record, socket, await _run(record, socket, prefix, output))
        debug_log.started(panel.process.pid, "the dashboard of cluster %r", record.name)
        try:
            async with asyncio.timeout(_START):
                if await _ready(panel):
                    return panel
            kind, failure = StartError, "has ended immediately"
        except TimeoutError:
            kind, failure = StartTimeout, f"was not ready after {_START:.0f} s"
        except BaseException:
            await run_to_end(_end(panel))
            raise
        await _end(panel)
        raise kind(
            f"the dashboard of cluster {record.name!r} {failure}: {await records.read(_log_summary, log, begin)}"
        )

    async def _watch(self) -> None:
        while not await self._is_closing(min(_LOOK, self._idle)):
            for key, task in list(self._panels.items()):
                # the file server may answer at the next check
                with contextlib.suppress(OSError):
                    if not task.done() or (not _has_ended(task) and await self._is_wanted(task.result())):
                        continue
                    if self._panels.get(key) is task:
                        del self._panels[key]
                    await _clear(task)

    async def _is_closing(self, within: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), within)
        return self._closing.is_set()

    async def _is_wanted(self, panel: _Panel) -> bool:
        exists = await _exists(panel.record)
        if exists and panel.viewers:
            panel.used = time.monotonic()
        # A viewer at the end of the cluster can use its dashboard for some more time.
        return (exists or panel.viewers > 0) and time.monotonic() - panel.used < self._idle


def _has_ended(task: asyncio.Task[_Panel]) -> bool:
    return task.done() and (
        task.cancelled() or task.exception() is not None or task.result().process.returncode is not None
    )


async def _clear(task: asyncio.Task[_Panel] | None) -> None:
    """End a dashboard; a failed start has already ended its process."""
    if task is not None and not task.cancelled() and task.exception() is None:
        await _end(task.result())


def dask_socket(socket: Path) -> Path:
    """Return the socket for Dask's own pages, beside that of a dashboard."""
    return socket.with_suffix(".dask")


async def _run(record: Record, socket: Path, prefix: str, output: BinaryIO) -> Process:
    # -P: a file in the server's folder must not shadow a module
    command = [sys.executable, "-P", "-m", MODULE, record.name, "--socket", str(socket)]
    command += ["--dask", f"../../dask/{record.name}/status", "--dask-socket", str(dask_socket(socket))]
    # With this variable Panel would use threads, which change pages without their locks.
    environment = {name: value for name, value in os.environ.items() if name != "PANEL_NUM_THREADS"} | {PREFIX: prefix}
    return await asyncio.create_subprocess_exec(
        *by_env(command),
        stdin=PIPE,
        stdout=output,
        stderr=output,
        env=environment,
        start_new_session=True,  # Ctrl-C in the server's terminal only asks for a confirmation, and must end nothing
    )


async def _ready(panel: _Panel) -> bool:
    """Wait until a dashboard answers, or has ended; return whether it answers."""
    while not await _answers(panel.socket):
        if panel.process.returncode is not None:
            return False
        await asyncio.sleep(_TRY)
    return True


async def _answers(socket: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(str(socket))
    except OSError:
        return False
    writer.close()
    return True


async def _end(panel: _Panel) -> None:
    # A process that waits for a file server ends when that answers; this server does not wait for it.
    stdin = panel.process.stdin
    await end(
        panel.process,
        _END,
        f"the dashboard of cluster {panel.record.name!r}",
        stdin.close if stdin is not None else None,
    )
    for socket in (panel.socket, dask_socket(panel.socket)):
        socket.unlink(missing_ok=True)
    if not await _exists(panel.record):
        with contextlib.suppress(OSError):  # the folder has sockets of other processes
            panel.socket.parent.rmdir()


async def _exists(record: Record) -> bool:
    try:
        async with asyncio.timeout(_GLANCE):
            return await records.read(owns_lease, record)
    except OSError:
        return True  # a file server that does not answer is no evidence that the cluster has ended


def _log_summary(log: Path, begin: int) -> str:
    """Return the last line of a log from an offset on, instructions, and the end of the log."""
    text = printable(log.read_bytes()[begin:].decode(errors="replace"))
    lines = [line.rstrip() for line in text.split("\n") if line.strip()][-_TAIL:] or ["no output"]
    summary = f"{lines[-1].strip()}. Its log is {log}. Reload this page to try again."
    return "\n".join([summary, "", *lines]) if len(lines) > 1 else summary


ROUTE = r"workbench/(dashboard|dask)/([^/]+)(/.*)?"
"""Path below the base URL of a server: the kind of pages, the name of a cluster, the path of a page."""


class ClusterPages(Proxy):
    """Serves all pages of all clusters; derived classes check the permissions."""

    place = PANEL
    """Place of error messages, as of `workbench.hints`."""

    def initialize(self, panels: DashboardProcesses, base: str) -> None:
        """Set the objects that all requests share.

        Parameters
        ----------
        panels
            Processes of dashboards.
        base
            Base URL of the server, a path with a slash at its end.
        """
        self._panels, self._base = panels, base

    async def answer(self, kind: str, name: str) -> None:
        """Answer a request for a page or a websocket of a cluster.

        Parameters
        ----------
        kind
            ``dashboard`` or ``dask``.
        name
            Name of the cluster in the request.
        """
        try:
            record = await _record(name)
            prefix = f"{self._base}workbench/{kind}/{record.name}/"
            # From the quoted path, since the upstream decodes it: three parts after the base, and the path of a page.
            rest = self.request.path.removeprefix(self._base).split("/", 3)[3:]
            query = without_token(self.request.query)
            # The token is removed from the address, which users share and bookmark: Jupyter's cookie replaces it.
            if rest and (query == self.request.query or self.is_websocket):
                await self._forward(record, kind, prefix, rest[0])
            else:
                url = prefix + "".join(rest)
                self.redirect(f"{url}?{query}" if query else url)
        except (ClusterNotFound, InvalidRequest) as error:
            self.error_page(404, error.words(self.place))
        except FilesystemTimeout as error:
            self.error_page(504, error.words(self.place))
        except WorkbenchError as error:
            self.error_page(502, error.words(self.place))
        except OSError as error:
            self.error_page(
                502,
                f"The dashboard of cluster {name!r} could not be started: {error}. Reload this page. If the start "
                "fails again, check the free memory and disk space.",
            )

    async def _forward(self, record: Record, kind: str, prefix: str, rest: str) -> None:
        if self.is_foreign:
            self.send_error(403)
            return
        if record.address is None:
            raise HeadUnreachable(
                f"cluster {record.name!r} has no head yet, because its state is {record.state}. Reload this page when "
                "the cluster is ready."
            )
        # The process serves its pages below their path in the browser. Dask does not know that path.
        pages = f"{self._base}workbench/dashboard/{record.name}/"
        socket = await self._panels.socket(record, pages)
        with self._panels.viewing(record):
            if kind == "dashboard":
                await self.forward(socket, pages, prefix, rest, f"the dashboard of cluster {record.name!r}")
            else:
                server = f"Dask's dashboard in the head of cluster {record.name!r}"
                await self.forward(dask_socket(socket), "/", prefix, rest, server)


async def _record(name: str) -> Record:
    with suppress(ClusterNotFound):
        record = await records.read(registry.read, name)
        # For the job of another host each request would query the scheduler.
        if record.alive() is not False and record.state != "failed":
            return record
    # Raises for a cluster that has ended. In another thread, since removing the record may query schedulers.
    return await asyncio.to_thread(registry.running, name)
