"""`MPICluster`: an MPI world that is a Dask cluster, as an object in the notebook."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from distributed.core import Status, rpc
from distributed.deploy.cluster import Cluster

from workbench import certificates, cluster_html, config, logs, registry, scratch
from workbench.errors import ClusterExists, ClusterNotFound, HeadUnreachable, RecordError, StartError, StartTimeout
from workbench.launch import mpi
from workbench.launch.choose import launcher
from workbench.launch.interface import JobState
from workbench.launch.mpiexec import Geometry, world_command
from workbench.launch.request import job_spec, request, write_dask_settings
from workbench.progress import Progress
from workbench.registry import Record

# Seconds between two looks at a cluster that is starting or ending.
_LOOK = 0.05
# The end of a head takes its ranks' patience and its own.
_END = 15.0


class MPICluster(Cluster):
    """An MPI world of n ranks that is a Dask cluster of n workers; rank i is worker i.

    It starts a job that holds everything: a head with Dask's scheduler, and ``mpiexec`` with the ranks. The job
    outlives this object and this process: `attach` finds it again by its name, and it ends itself after a time
    without clients and tasks.

    Parameters
    ----------
    ranks : int, optional
        Size of the MPI world. Default: one rank for each core of this host.
    name : str, optional
        Name of the cluster. Default: ``mpi``, ``mpi-2``, ...
    scheduler : {"auto", "local"}
        What starts the job.
    threads : int
        Threads of each rank, for Dask tasks and for OpenMP and BLAS (``OMP_NUM_THREADS`` and friends).
    memory : int or str, optional
        Memory limit of each rank, in bytes or as ``"4 GiB"``. Default: an even share of its node.
    mpi : {"auto", "openmpi", "mpich", "intelmpi"}
        The MPI that mpi4py has to be using.
    protocol : {"tcp"}
        Protocol between ranks; always under TLS.
    timeout : float or str, optional
        Seconds, or a time span such as ``"2 minutes"``, until all ranks have to be ready.
        Default: ``workbench.start-timeout``.
    idle_timeout : float or str, optional
        Time without clients and tasks after which the cluster ends. Default: ``workbench.idle-timeout``.
    asynchronous : bool
        Set it to use the object with ``await`` and ``async with``.
    loop : optional
        As for every Dask cluster.
    quiet : bool
        Show no progress.

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

    def __init__(
        self,
        ranks: int | None = None,
        *,
        name: str | None = None,
        scheduler: str = "auto",
        threads: int = 1,
        memory: int | str | None = None,
        mpi: str = "auto",
        protocol: str = "tcp",
        timeout: float | str | None = None,
        idle_timeout: float | str | None = None,
        asynchronous: bool = False,
        loop: Any = None,
        quiet: bool = False,
        _attach: Record | None = None,
    ) -> None:
        # Before anything that __del__ or __repr__ may look at.
        self.status = Status.closed
        self.security: Any = None
        self._owner = _attach is None
        self._record = _attach or request(
            ranks, name=name, scheduler=scheduler, threads=threads, memory=memory, mpi=mpi, protocol=protocol,
            timeout=timeout, idle_timeout=idle_timeout,
        )  # fmt: skip
        self._renamable = name is None
        self._ending = self._owner
        super().__init__(asynchronous=asynchronous, loop=loop, quiet=quiet, name=self._record.name)
        if not self.called_from_running_loop:
            self._loop_runner.start()
            try:
                self.sync(self._start)
            except BaseException:
                # Ctrl-C in the middle leaves a job that nobody has asked for.
                if self._owner:
                    self._remove_all()
                self.status = Status.closed
                self._loop_runner.stop()
                raise

    @classmethod
    def attach(cls, name: str, *, asynchronous: bool = False, loop: Any = None, quiet: bool = True) -> Self:
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
        return cls(_attach=registry.running(name), asynchronous=asynchronous, loop=loop, quiet=quiet)

    def __await__(self) -> Any:
        async def start() -> Self:
            if self.status == Status.created:
                try:
                    await self._start()
                except BaseException:
                    if self._owner:
                        await asyncio.to_thread(self._remove_all)
                    self.status = Status.closed
                    raise
            return self

        return start().__await__()

    # -- start -------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        if self._owner:
            await asyncio.to_thread(self._submit)
        with Progress(self._record.ranks, quiet=self.quiet) as progress:
            await self._await_address(progress)
            await self._connect()
            await self._await_ready(progress)
        self._cluster_info["name"] = self._record.name
        await super()._start()

    def _submit(self) -> None:
        while True:
            try:
                registry.create(self._record)
                break
            except ClusterExists:
                # Another process may have taken the name that was free a moment ago.
                if not self._renamable:
                    self._owner = False  # it is not ours to remove
                    raise
                self._record = self._record.replace(name=registry.free_name())
        certificates.make(self._record.folder, self._record.name)
        write_dask_settings(self._record)
        self._job = launcher(self._record.scheduler).submit(job_spec(self._record))

    async def _await_address(self, progress: Progress) -> None:
        while self._record.address is None:
            await self._look()
            progress.show(_words(self._record.state), self._record.up)
            await asyncio.sleep(_LOOK)

    async def _look(self) -> None:
        """Read the record, and raise if the cluster has failed or is late."""
        with contextlib.suppress(ClusterNotFound):  # a network file system may show it late
            self._record = registry.read(self._record.name)
        record = self._record
        if record.state == "failed":
            raise self._failure(record.message)
        if self._owner and launcher(record.scheduler).state(self._job) is JobState.ENDED:
            # It may have spoken between the two looks.
            with contextlib.suppress(ClusterNotFound):
                self._record = record = registry.read(record.name)
            raise self._failure(record.message if record.state == "failed" else "the head ended unexpectedly")
        # The head sees to the deadline itself and knows more; this is for a head that does not.
        if time.time() > record.deadline + 5:
            raise self._failure(f"its head has not told where it listens, state {record.state!r}", StartTimeout)

    def _failure(self, reason: str, kind: type[StartError] = StartError) -> StartError:
        if "was not ready after" in reason:
            kind = StartTimeout
        return kind(f"cluster {self._record.name!r} did not start: {reason}\n{logs.tail(self._record)}")

    async def _connect(self) -> None:
        record = self._record
        self.security = certificates.security(record.folder)
        timeout = config.seconds("connect-timeout")
        self.scheduler_comm = rpc(
            record.address, connection_args=self.security.get_connection_args("client"), timeout=timeout
        )
        try:
            async with asyncio.timeout(timeout):
                await self._ask_status()
        except (OSError, TimeoutError) as error:
            await self.scheduler_comm.close_rpc()
            host, _, port = str(record.address).partition("://")[2].rpartition(":")
            raise HeadUnreachable(
                f"cluster {record.name!r}: its head on {record.process.host} does not answer at {host} port {port} from here "
                f"within {timeout:.0f} s ({type(error).__name__}). If there is no route from here to that host, open a tunnel: "
                f"ssh -N -L {port}:{host}:{port} {record.process.host}"
            ) from error

    async def _ask_status(self) -> None:
        self._record = registry.from_dict(await self.scheduler_comm.workbench_status())

    async def _await_ready(self, progress: Progress) -> None:
        while True:
            record = self._record
            progress.show(_words(record.state), record.up, record.total)
            if record.state in ("ready", "degraded"):
                return
            await asyncio.sleep(_LOOK)
            try:
                await self._ask_status()
            except OSError:
                # The head is ending: its record tells why.
                await asyncio.sleep(_LOOK)
                await self._look()

    # -- what one does with it ---------------------------------------------------------------------------------

    @property
    def record(self) -> Record:
        """What the head last told of the cluster; call `refresh` for news."""
        return self._record

    def refresh(self) -> Record | Awaitable[Record]:
        """Ask the head and return what it tells of the cluster."""

        async def ask() -> Record:
            try:
                await self._ask_status()
            except OSError as error:
                raise HeadUnreachable(
                    f"the head of cluster {self._record.name!r} at {self._record.address} does not answer any more. "
                    f"It has ended or is cut off; see its logs in {self._record.logs}."
                ) from error
            return self._record

        return self.sync(ask)  # type: ignore[no-any-return]

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
        wanted = request(n).ranks

        async def scale() -> None:
            await self.scheduler_comm.workbench_scale(n=wanted)
            await self._renew()

        return self.sync(scale)

    def restart(self) -> Any:
        """End all ranks and start them again in the same job; results that lie on them are lost."""

        async def restart() -> None:
            await self.scheduler_comm.workbench_restart()
            await self._renew()

        return self.sync(restart)

    async def _renew(self) -> None:
        from distributed.objects import SchedulerInfo

        await self._ask_status()
        self.scheduler_info = SchedulerInfo(await self.scheduler_comm.identity())

    def adapt(self, *args: Any, **kwargs: Any) -> Any:
        """Not possible: the size of an MPI world is fixed when it starts."""
        raise NotImplementedError(
            "an MPI world has the size it was started with, so this cluster cannot adapt to its load. "
            "Use scale(n), which adds or removes a whole world."
        )

    def logs(self, rank: int | str | None = None) -> str:
        """Return the log of one rank, or all logs of the cluster."""
        return logs.read(self._record.logs, rank)

    def script(self) -> str:
        """Return the script of the cluster's job, exactly as it was submitted."""
        return launcher(self._record.scheduler).script(job_spec(self._record))

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
            with contextlib.suppress(OSError):
                await self.scheduler_comm.workbench_close(reason="the user has closed it")
        await super()._close()
        if self._ending:
            await asyncio.to_thread(self._await_end)

    def _await_end(self) -> None:
        if not _has_ended(self._record):
            self._remove_all()

    def _remove_all(self) -> None:
        """Leave nothing of the cluster: job, record, key, sockets."""
        if getattr(self, "_job", None) is not None:
            launcher(self._record.scheduler).cancel(self._job)
        with contextlib.suppress(OSError):
            registry.remove(self._record)
        with contextlib.suppress(RecordError):
            scratch.remove(self._record.id)

    # -- looks -------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return cluster_html.text(self._record, len(self.ranks), str(self.status.name))

    def _repr_html_(self, cluster_status: Any = None) -> str:
        return cluster_html.html(self._record, self.ranks, str(self.status.name))

    def _widget(self) -> Any:
        return cluster_html.widget(self)


def _words(state: str) -> str:
    return {"submitted": "submitted", "starting": "world starting"}.get(state, state)


def stop(record: Record) -> None:
    """End a cluster of yours, in whatever state it is, and return when nothing of it is left.

    Raises
    ------
    HeadUnreachable
        If its head neither answers nor ends.
    """

    async def ask() -> None:
        if record.address is None:
            raise OSError("the head does not listen yet")
        security = certificates.security(record.folder).get_connection_args("client")
        async with asyncio.timeout(config.seconds("connect-timeout")):
            async with rpc(record.address, connection_args=security) as head:
                await head.workbench_close(reason="the user has stopped it")

    try:
        # In a notebook this thread has a loop that runs already.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, ask()).result()
    except OSError:
        # It does not listen yet, or no longer, or its key is gone: without its lease it ends.
        registry.remove(record)
    if not _has_ended(record):
        process = record.process
        raise HeadUnreachable(
            f"cluster {record.name!r} does not end: its head neither answers nor gives up after {_END:.0f} s. "
            f"End it on {process.host} with: kill -9 {process.pid}"
        )


def _has_ended(record: Record) -> bool:
    """Wait until neither lease nor head are there; False if they outlast the deadline."""
    deadline = time.monotonic() + _END
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if not registry.owns_lease(record) and record.process.alive() is not True:
                return True
        time.sleep(_LOOK)
    return False


def preview(ranks: int | None = None, **options: Any) -> str:
    """Return what `MPICluster` with these options would run, and start nothing.

    Returns
    -------
    text : str
        The job's script, and the command line of the world in comments below it.
    """
    record = request(ranks, **options)
    found = mpi.find(record.mpi)
    rank = ["python", "-m", "workbench.rank", record.name]
    command = world_command(found, Geometry.here(record.ranks, record.threads), rank, config.get("mpi.extra-args"))
    set_here = {**command.defaults, **command.environment}
    lines = [f"# world 0, started by the head, {found}:"]
    lines += [f"#   {name}={value}" for name, value in sorted(set_here.items())]
    lines.append(f"#   {' '.join(command.argv)}")
    return launcher(record.scheduler).script(job_spec(record)) + "\n".join(lines) + "\n"
