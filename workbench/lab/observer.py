"""``python -m workbench.lab.observer SOCKET IDLE``: observe the heads of all clusters for a server of their pages.

The process loads Dask and Panel in place of the server. It polls heads for their heartbeats, and serves the dashboard
of each cluster on a Unix socket. Requests are JSON on SOCKET, and the other sockets are in its folder, which only this
user can open.
The process prints a line when it answers. It ends with its standard input, or after IDLE seconds without a request and
without a dashboard.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket
from tornado.web import Application, RequestHandler

from workbench.cancellation import run_to_end
from workbench.deploy import registry
from workbench.deploy.connection import HeadConnection
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job import ClusterJob
from workbench.errors import WorkbenchError
from workbench.host import debug_log

# Seconds between two polls of a head, for its answer, the longest until the next poll of a head that does not answer,
# and after a request for heartbeats until no head is polled.
_EVERY, _ANSWER, _LONGEST, _FORGET = 2.0, 5.0, 60.0, 10.0
# Seconds between two checks of the dashboards, and to read a file, which may be on a file server.
_LOOK, _GLANCE = 5.0, 5.0

logger = logging.getLogger("workbench.lab.observer")


class HeadPolls:
    """Polls the heads of the clusters of the last request, each for itself, until no request follows."""

    def __init__(self) -> None:
        self._heartbeats: dict[str, Any] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._forgetting: asyncio.TimerHandle | None = None

    async def heartbeats(self, names: Collection[str]) -> dict[str, Any]:
        """Return the heartbeats since the last request by name, and poll the heads of these clusters."""
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(_FORGET, self._follow, frozenset())
        self._follow(frozenset(names))
        news, self._heartbeats = self._heartbeats, {}
        return news

    def _follow(self, names: frozenset[str]) -> None:
        for name in self._polls.keys() - names:
            self._polls.pop(name).cancel()
        for name in names - self._polls.keys():
            self._polls[name] = asyncio.create_task(self._poll(name), name=f"poll of {name}")

    async def _poll(self, name: str) -> None:
        pause = _EVERY
        while True:
            try:
                # The answer of the head shows that the cluster runs; no query of a scheduler is necessary.
                record = await asyncio.to_thread(registry.read, name)
                connection = HeadConnection(ClusterJob(record))
                try:
                    await connection.open()
                    while True:
                        self._heartbeats[name] = await connection.call("workbench_pulse", _ANSWER)
                        pause = _EVERY
                        await asyncio.sleep(_EVERY)
                finally:
                    await run_to_end(connection.close())
            except Exception as error:  # noqa: BLE001  (no error may end the polls of the other heads)
                logger.debug("cluster %s: %s", name, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST)


def pages_of(*arguments: Any) -> AbstractAsyncContextManager[Callable[[], bool]]:
    """Return the context of `workbench.lab.dashboard.cluster_pages.cluster_pages`."""
    # Not above: heartbeats need no Panel, which takes 70 MB.
    from workbench.lab.dashboard.cluster_pages import cluster_pages

    return cluster_pages(*arguments)


class Dashboards:
    """The dashboards, each from its first request until it has no viewers.

    Parameters
    ----------
    folder
        Folder for sockets.
    idle
        Seconds without a viewer after which a dashboard ends, and for which it outlives its cluster if it has a viewer.
    """

    def __init__(self, folder: Path, idle: float) -> None:
        self._folder, self._idle = folder, idle
        # By the ids of clusters.
        self._sockets: dict[str, asyncio.Future[dict[str, str]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def are_open(self) -> bool:
        """Whether there is a dashboard."""
        return bool(self._tasks)

    async def sockets(self, name: str, key: str, prefix: str) -> dict[str, str]:
        """Return the sockets of a cluster's ``dashboard`` and of its pages of ``dask``.

        Parameters
        ----------
        name, key
            Name and id of the cluster.
        prefix
            Path of the dashboard in the browser.
        """
        if key not in self._sockets:
            sockets = self._sockets[key] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._serve(name, key, prefix, sockets))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        # Shielded: one client disconnecting must not cancel the start for the others.
        return await asyncio.shield(self._sockets[key])

    async def close(self) -> None:
        """End all dashboards."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, name: str, key: str, prefix: str, sockets: asyncio.Future[dict[str, str]]) -> None:
        number = uuid.uuid4().hex[:8]
        paths = {kind: self._folder / f"{number}.{kind}" for kind in ("dashboard", "dask")}
        try:
            record = await asyncio.to_thread(registry.read, name)
            async with pages_of(name, prefix, *paths.values()) as is_watched:
                sockets.set_result({kind: str(path) for kind, path in paths.items()})
                await self._await_end(ClusterFolder.of(record), is_watched)
                del self._sockets[key]  # the next request starts another one
        except Exception as error:
            if sockets.done():
                logger.exception("the dashboard of cluster %r has ended with an error", name)
            else:
                sockets.set_exception(error)
        finally:
            if self._sockets.get(key) is sockets:
                del self._sockets[key]

    async def _await_end(self, folder: ClusterFolder, is_watched: Callable[[], bool]) -> None:
        viewed, exists, watched = time.monotonic(), True, False
        # A viewer at the end of the cluster can use its dashboard for some more time.
        while (exists or watched) and time.monotonic() - viewed < self._idle:
            await asyncio.sleep(min(_LOOK, self._idle))
            exists, watched = await _exists(folder), is_watched()
            if exists and watched:
                viewed = time.monotonic()


async def _exists(folder: ClusterFolder) -> bool:
    try:
        async with asyncio.timeout(_GLANCE):
            return await asyncio.to_thread(folder.owns_lease)
    except OSError:
        return True  # a file server that does not answer is no evidence that the cluster has ended


class _Request(RequestHandler):
    def initialize(self, operation: Callable[..., Awaitable[dict[str, Any]]]) -> None:
        self._operation = operation

    async def post(self) -> None:
        try:
            answer = await self._operation(**json.loads(self.request.body))
        except WorkbenchError as error:
            answer = {"error": error.fields()}
        except Exception as error:
            logger.exception("%s failed", self.request.path)
            answer = {"error": WorkbenchError(f"{type(error).__name__}: {error}. See the log of the server.").fields()}
        self.finish(answer)


async def wait_for_shutdown() -> None:
    """Wait for SIGTERM or Ctrl-C, or until the parent closes the standard input of this process or ends."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)

    def read() -> None:
        while os.read(0, 1 << 16):
            pass
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=read, name="owner", daemon=True).start()
    await over.wait()


async def _observe(socket: Path, idle: float) -> None:
    dashboards, requested = Dashboards(socket.parent, idle), time.monotonic()

    def count(_: object) -> None:
        nonlocal requested
        requested = time.monotonic()

    operations = {"/dashboard": dashboards.sockets, "/heartbeats": HeadPolls().heartbeats}
    routes = [(path, _Request, {"operation": operation}) for path, operation in operations.items()]
    server = HTTPServer(Application(routes, log_function=count))
    server.add_socket(bind_unix_socket(str(socket), mode=0o600))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    shutdown = asyncio.create_task(wait_for_shutdown())
    # A logout removes the folder, if it is in XDG_RUNTIME_DIR; the next process has another one.
    while socket.exists() and (dashboards.are_open or time.monotonic() - requested < idle):  # noqa: ASYNC240  (local)
        if (await asyncio.wait({shutdown}, timeout=min(_LOOK, idle)))[0]:
            break
    server.stop()
    await dashboards.close()


def main(arguments: list[str]) -> None:
    """Observe until the end."""
    socket, idle = Path(arguments[0]), float(arguments[1])
    debug_log.set_up()
    # It logs every connection that is lost.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    # With this variable Panel would use threads, which change pages without their locks.
    os.environ.pop("PANEL_NUM_THREADS", None)
    try:
        asyncio.run(_observe(socket, idle))
    finally:
        shutil.rmtree(socket.parent, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
