"""Dask's scheduler as the head runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin

from workbench.head.pinned import guard
from workbench.http_socket import UnixHTTP

if TYPE_CHECKING:
    from distributed.security import Security

SETTINGS = {
    # A rank in a long C call sends no heartbeat and is alive all the same; the dead are seen by their sockets.
    "distributed.scheduler.worker-ttl": None,
    # A task pinned to a rank that is gone would wait for ever.
    "distributed.scheduler.no-workers-timeout": "60s",
    # All of Dask's but the proxy to HTTP ports of workers: ranks have none, and it imports half a Jupyter server.
    "distributed.scheduler.http.routes": [
        "distributed.http.scheduler.prometheus",
        "distributed.http.scheduler.info",
        "distributed.http.scheduler.json",
        "distributed.http.health",
        "distributed.http.statics",
    ],
    # Dask's own policy may drop the replica on the rank that a block is pinned to.
    "distributed.scheduler.active-memory-manager.policies": [{"class": "workbench.head.pinned.KeepPinned"}],
}


class HeadScheduler(UnixHTTP, Scheduler):
    """A scheduler whose workers come and go with MPI worlds.

    Parameters
    ----------
    http_socket
        Unix socket for its HTTP server.
    local_directory
        Folder for its files.
    host, security
        As for every Dask scheduler; it always speaks TLS.
    """

    restart_worlds: Callable[[], Awaitable[None]]
    """Starts all worlds again; what ``client.restart()`` comes to, since a rank cannot be restarted alone."""

    def __init__(
        self,
        *,
        http_socket: Path,
        local_directory: Path,
        host: str,
        security: Security,
    ) -> None:
        super().__init__(
            http_socket=http_socket,
            host=host,
            port=0,
            protocol="tls",
            security=security,
            dashboard=False,
            local_directory=str(local_directory),
        )
        guard(self)

    async def restart_workers(
        self, workers: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Literal["OK", "removed", "timed out"]]:
        """Start all worlds again, whichever workers were named."""
        before: list[str] = list(self.workers)
        await self.restart_worlds()
        return dict.fromkeys(before, "OK")


class Attendance(SchedulerPlugin):
    """Tells the head which ranks come and go.

    Parameters
    ----------
    joined, left
        Called with the world's index, the rank and what the rank told of itself.
    """

    name = "workbench-attendance"

    def __init__(
        self,
        joined: Callable[[int, int, dict[str, Any]], None],
        left: Callable[[int, int], None],
    ) -> None:
        self._joined, self._left = joined, left
        self._places: dict[str, tuple[int, int]] = {}

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Note a rank that registered its worker."""
        told = scheduler.workers[worker].extra.get("workbench")
        if told is None:
            return  # a worker that the user has added by other means
        self._places[worker] = place = (told["world"], told["rank"])
        self._joined(*place, told)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """Note a rank that is gone."""
        place = self._places.pop(worker, None)
        if place is not None:
            self._left(*place)
