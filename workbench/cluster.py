"""`MPICluster`: an MPI world that is a Dask cluster, as an object in the notebook."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from distributed.core import Status
from distributed.deploy.cluster import Cluster
from tornado.ioloop import PeriodicCallback

from workbench.collective.broadcast import broadcast
from workbench.deploy import display, ended, logs, registry
from workbench.deploy.connection import HeadConnection
from workbench.deploy.progress import Progress
from workbench.deploy.registry import Record
from workbench.deploy.request import rank_count
from workbench.deploy.signature import documented, takes
from workbench.deploy.start import LOOK, ClusterStarter, submitted_script
from workbench.deploy.widget import widget
from workbench.launch.options import ClusterOptions, option
from workbench.log import debug_log
from workbench.metrics.frames import frame
from workbench.metrics.openmetrics import text
from workbench.session.notebook import dashboard_path

# Milliseconds between two looks whether the cluster is still there.
_WATCH = 3000


@dataclass(frozen=True, kw_only=True)
class _Arguments(ClusterOptions):
    """The options of a cluster, and of the object in this process."""

    asynchronous: bool = option(False, None, "", doc="Set it to use the object with ``await`` and ``async with``.")
    loop: Any = option(None, None, "", doc="As for every Dask cluster.")  # noqa: RUF009  (it is a field)
    quiet: bool = option(False, None, "", doc="Show no progress.")


@documented(_Arguments)
class MPICluster(Cluster):
    """An MPI world of n ranks that is a Dask cluster of n workers; rank i is worker i.

    It starts a job that holds everything: a head with Dask's scheduler, and ``mpiexec`` with the ranks. The job
    outlives this object and this process: `attach` finds it again by its name, and it ends itself after a time
    without clients and tasks.

    Parameters
    ----------
    {parameters}

    Raises
    ------
    InvalidRequest
        If the request cannot be honoured; nothing was started.
    StartError
        If the cluster failed to start, with the end of the log that tells why; nothing is left of it.
    StartTimeout
        If it was not ready in time; nothing is left of it.

    Notes
    -----
    `close`, and leaving a ``with`` block, end a cluster that this object has started, and only disconnect from one
    that it has attached to. The end of the process ends no cluster.

    Examples
    --------
    >>> from distributed import Client
    >>> from workbench import MPICluster
    >>> with MPICluster(4) as cluster, Client(cluster) as client:  # doctest: +SKIP
    ...     client.gather(client.map(abs, [-1, -2]))
    [1, 2]
    """

    @takes(_Arguments)
    def __init__(self, given: _Arguments) -> None:
        self._set_up(ClusterStarter.of(given), given)

    def _set_up(self, job: ClusterStarter, given: _Arguments) -> None:
        """Connect to the cluster of a job, which is submitted first if that has not been done."""
        debug_log.set_up()
        # Before anything that __del__ or __repr__ may look at.
        self.status = Status.closed
        self.security: Any = None
        self._job = job
        self._owner = not job.attached
        self._note = job.note()
        self._connection = HeadConnection(job, given.ssh_tunnel)
        self._ending = self._owner
        self.on_gone: Callable[[str], None] = lambda _: None
        """Called on the loop, with the reason, when the cluster was found to have ended and this object is closed."""
        super().__init__(asynchronous=given.asynchronous, loop=given.loop, quiet=given.quiet, name=job.record.name)
        if not self.called_from_running_loop:
            self._loop_runner.start()
            try:
                self.sync(self._start)
            except BaseException as error:
                self.status = Status.closed
                self._loop_runner.stop()
                if not self._owner:
                    raise
                # Ctrl-C in the middle leaves a job that nobody has asked for.
                self._job.abandon(error)

    @classmethod
    def of_job(cls, job: ClusterStarter, **options: Any) -> Self:
        """Return the object of a cluster whose job there is; the options are those that are not the job's."""
        self = cls.__new__(cls)
        self._set_up(job, _Arguments(**options))
        return self

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        ssh_tunnel: str | None = None,
        asynchronous: bool = False,
        loop: Any = None,
        quiet: bool = True,
    ) -> Self:
        """Connect to a running cluster of yours by its name, from any process.

        Raises
        ------
        ClusterNotFound
            If there is none of that name, or it has ended.
        RecordError
            If its record is corrupt, somebody else's or open to others.
        HeadUnreachable
            If its head does not answer from this host.
        """
        job = ClusterStarter(registry.running(name), renamable=False, attached=True)
        return cls.of_job(job, ssh_tunnel=ssh_tunnel, asynchronous=asynchronous, loop=loop, quiet=quiet)

    def __await__(self) -> Any:
        async def start() -> MPICluster:
            if self.status == Status.created:
                try:
                    await self._start()
                except BaseException as error:
                    self.status = Status.closed
                    if not self._owner:
                        raise
                    await asyncio.to_thread(self._job.abandon, error)
            return self

        return start().__await__()

    # -- start -------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        if self._owner:
            await asyncio.to_thread(self._job.submit)
        try:
            with Progress(self._job.record.ranks, quiet=self.quiet, note=self._note) as progress:
                await self._await_address(progress)
                await self._connection.open()
                self.scheduler_comm, self.security = self._connection.rpc, self._connection.security
                await self._await_ready(progress)
        except BaseException:
            await self._connection.close()
            raise
        self._cluster_info["name"] = self._job.record.name
        await super()._start()
        watch = PeriodicCallback(self._close_if_gone, _WATCH)
        self.periodic_callbacks["cluster-end"] = watch
        watch.start()

    async def _close_if_gone(self) -> None:
        # Whoever has ended it: Dask would try to reach its scheduler, and complain.
        if self.status == Status.running and await self._connection.gone() and self.status == Status.running:
            its = await asyncio.to_thread(ended.of, self.record)
            await self.detach()
            self.on_gone("its head is gone" if its is None else its.reason)

    async def _await_address(self, progress: Progress) -> None:
        while (record := await asyncio.to_thread(self._job.look)).address is None:
            progress.show(self._job.words(), record.up, record.total)
            await asyncio.sleep(self._job.pause)

    async def _await_ready(self, progress: Progress) -> None:
        while True:
            record = self._job.record
            progress.show(self._job.words(), record.up, record.total)
            if record.state in ("ready", "degraded"):
                return
            if record.state in ("failed", "closing"):
                raise await asyncio.to_thread(self._job.failure)
            await asyncio.sleep(LOOK)
            await self._connection.ask_while_looking()

    # -- what one does with it ---------------------------------------------------------------------------------

    @property
    def record(self) -> Record:
        """What the head last told of the cluster; call `refresh` for news."""
        return self._job.record

    def refresh(self) -> Record | Awaitable[Record]:
        """Ask the head and return what it tells of the cluster."""
        return self.sync(self._connection.refresh)  # type: ignore[no-any-return]

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """What is known of each rank that is there: world, rank, pid, host, worker address; in rank order."""
        workers = self.scheduler_info["workers"].items()
        told = [
            {**info["workbench"], "name": info["name"], "address": address}
            for address, info in workers
            if "workbench" in info
        ]
        return sorted(told, key=lambda rank: (rank["world"], rank["rank"]))

    @property
    def dashboard_link(self) -> str:
        """Path of the cluster's dashboard on the Jupyter server of this notebook; empty where no server shows it.

        Clients of this object have the same link. In other processes ``workbench dashboard NAME`` opens the dashboard.
        """
        return dashboard_path(self._job.record.name)

    def metrics(self, what: str = "ranks") -> Any:
        """Return what was measured as a tidy `pandas.DataFrame`: see `workbench.metrics.frames.frame`."""

        async def ask() -> Any:
            return frame(await self._connection.metrics(), what)

        return self.sync(ask)

    def openmetrics(self) -> Any:
        """Return how things stand in the text format of OpenMetrics: see `workbench.metrics.openmetrics.text`."""

        async def ask() -> str:
            return text(await self._connection.metrics())

        return self.sync(ask)

    def scale(self, n: int) -> Any:
        """Have `n` ranks in total, by adding one more world or removing the last ones; returns when it is done.

        Parameters
        ----------
        n
            Ranks of all worlds together. Workers of world 1 are named ``w1.0``, ``w1.1``, ...

        Raises
        ------
        InvalidRequest
            If no number of whole worlds has `n` ranks; the message names those that have.
        StartError
            If the new world did not start.
        """
        wanted = rank_count(n, here=not self._job.record.spread)

        async def scale() -> None:
            await self._change("workbench_scale", f"scaling to {wanted}", n=wanted)

        return self.sync(scale)

    def restart(self) -> Any:
        """End all ranks and start them again in the same job; results that lie on them are lost."""

        async def restart() -> None:
            await self._change("workbench_restart", "restarting")

        return self.sync(restart)

    def broadcast(self, obj: Any, *, timeout: float | str | None = None) -> Any:
        """Send one large object to all ranks, as `workbench.broadcast` does with the client of ``get_client()``."""
        return broadcast(self.get_client(), obj, timeout=timeout)

    async def _change(self, operation: str, what: str, **message: Any) -> None:
        from distributed.objects import SchedulerInfo

        await self._connection.change(operation, what, quiet=self.quiet, **message)
        self.scheduler_info = SchedulerInfo(await self._connection.head.identity())

    def adapt(self, *args: Any, **kwargs: Any) -> Any:
        """Not possible: the size of an MPI world is fixed when it starts."""
        raise NotImplementedError(
            "an MPI world has the size it was started with, so this cluster cannot adapt to its load. "
            "Use scale(n), which adds or removes a whole world."
        )

    def logs(self, rank: int | str | None = None) -> str:
        """Return the log of one rank, or all logs of the cluster."""
        return logs.read(self._job.record.logs, rank)

    def script(self) -> str:
        """Return the script of the cluster's job, exactly as it was submitted.

        Raises
        ------
        ClusterNotFound
            If the cluster has ended.
        """
        return submitted_script(self._job.record)

    # -- end ---------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None, *, shutdown: bool | None = None) -> Any:
        """Disconnect, and end the cluster if this object has started it.

        Parameters
        ----------
        timeout
            Seconds after which to give up.
        shutdown
            End the cluster (True) or leave it running (False) whoever has started it.
        """
        if shutdown is not None:
            self._ending = shutdown
        return super().close(timeout)

    def detach(self) -> Any:
        """Disconnect and leave the cluster running, to be found by `attach`."""
        return self.close(shutdown=False)

    async def _close(self) -> None:
        if self.status in (Status.closing, Status.closed):
            return
        if self._ending and self.scheduler_comm is not None:
            self.status = Status.closing
            with contextlib.suppress(OSError):
                await self._connection.ask_to_end()
        await super()._close()
        await self._connection.close()
        if self._ending:
            await asyncio.to_thread(self._job.await_end)

    def __eq__(self, other: object) -> bool:
        # Dask compares names, and would give this cluster the client of one that had its name before.
        return self is other

    def __hash__(self) -> int:
        return id(self)

    # -- looks -------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return display.text(self._job.record, len(self.ranks), str(self.status.name))

    def _repr_html_(self, cluster_status: Any = None) -> str:
        return display.html(self._job.record, self.ranks, str(self.status.name))

    def _widget(self) -> Any:
        return widget(self)
