"""Dask's scheduler as the head runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from distributed import Scheduler
from distributed.core import Status, error_message
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.protocol import pickle

from workbench import comm
from workbench.cells import protocol as cells
from workbench.collective import protocol as collective
from workbench.comm.unix_http import UnixHTTP
from workbench.errors import WorkbenchError
from workbench.head import request_log
from workbench.placement.head import disown, protect_pinned

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Worker
    from distributed.scheduler import WorkerState
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
    "distributed.scheduler.active-memory-manager.policies": [{"class": "workbench.placement.head.KeepPinned"}],
}

# What clients ask for beside graphs that a cluster which drains does not begin any more.
_WORK = (
    "scatter",
    collective.CALL,
    collective.BROADCAST_BEGIN,
    cells.BEGIN,
    "workbench_scale",
    "workbench_restart",
)
# States of tasks that nothing has to be begun for.
_BEGUN = ("memory", "erred", "processing")


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
    refusal: WorkbenchError | None = None
    """What new work is refused with; None while it is accepted."""

    def __init__(
        self,
        *,
        http_socket: Path,
        local_directory: Path,
        host: str,
        security: Security,
    ) -> None:
        comm.guard()
        super().__init__(
            http_socket=http_socket,
            host=host,
            port=0,
            protocol="tls",
            security=security,
            dashboard=False,
            local_directory=str(local_directory),
        )
        protect_pinned(self)

    async def restart_workers(
        self, workers: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Literal["OK", "removed", "timed out"]]:
        """Start all worlds again, whichever workers were named."""
        before: list[str] = list(self.workers)
        await self.restart_worlds()
        return dict.fromkeys(before, "OK")

    def reject_new_work(self, refusal: WorkbenchError) -> None:
        """Begin no more work; what runs on ranks goes on.

        Parameters
        ----------
        refusal
            What clients get that ask for more.
        """
        self.refusal = refusal
        # Dask's sentence for tasks that find no worker would be a wrong one.
        self.no_workers_timeout = None

        async def refuse(**_: Any) -> NoReturn:
            raise refusal

        self.handlers |= request_log.logged(dict.fromkeys(_WORK, refuse))
        for worker in list(self.running):
            self.handle_worker_status_change(Status.paused, worker, "drain")

    async def drain_workers(self) -> None:
        """Have the ranks begin no more tasks either, and return when those that they have begun have ended."""
        await asyncio.gather(*map(self._rest, list(self.workers)))

    async def _rest(self, address: str) -> None:
        while address in self.workers:
            with suppress(OSError):  # it is gone and leaves the scheduler soon, or is in a long C call
                await self.rpc(address).run(function=pickle.dumps(_rest))
                return
            await asyncio.sleep(1)

    def handle_worker_status_change(self, status: str | Status, worker: str | WorkerState, stimulus_id: str) -> None:
        """Note whether a worker takes tasks; when no more are begun, those that come anew do not either."""
        if self.refusal is not None and status in (Status.running, Status.running.name):
            status = Status.paused
        super().handle_worker_status_change(status, worker, stimulus_id)

    async def update_graph(self, client: str, expr_ser: Any, keys: set[Key], *args: Any, **options: Any) -> None:
        """Take tasks from a client, or have its futures fail at once."""
        request_log.graph(client, len(keys))
        if self.refusal is None:
            await super().update_graph(client, expr_ser, keys, *args, **options)
        if self.refusal is not None:  # maybe only since the graph was read
            self._refuse_tasks(client, keys, self.refusal)

    def _refuse_tasks(self, client: str, keys: Iterable[Key], refusal: WorkbenchError) -> None:
        begun = {key for key in keys if key in self.tasks and self.tasks[key].state in _BEGUN}
        self.client_desires_keys(begun, client)
        told = error_message(refusal)
        for key in set(keys) - begun:
            message = {"op": "task-erred", "key": key, "exception": told["exception"], "traceback": told["traceback"]}
            self.report(message, client=client)


async def _rest(dask_worker: Worker) -> None:
    """Have a worker begin no more tasks, and return when those that it has begun have ended."""
    # Its memory monitor would have it go on.
    dask_worker.memory_manager.memory_pause_fraction = False
    dask_worker.status = Status.paused
    while dask_worker.state.executing or dask_worker.state.long_running:  # noqa: ASYNC110  (Dask has no event for it)
        await asyncio.sleep(0.1)


class RankMembershipPlugin(SchedulerPlugin):
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
        self._addresses: set[str] = set()

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Note a rank that registered its worker."""
        if worker in self._addresses:  # of an earlier rank: the kernel gives ports again
            disown(scheduler, worker)
        self._addresses.add(worker)
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
