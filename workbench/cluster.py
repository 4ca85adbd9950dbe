"""`MPICluster`: an MPI world that is a Dask cluster, as an object in the notebook."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn, Self

from distributed.core import Status

from workbench.cancellation import run_to_end
from workbench.checkpoint import following
from workbench.collective.broadcast import broadcast
from workbench.collective.serialize import dask_raises_exceptions_only
from workbench.deploy import display, logs, registry
from workbench.deploy.connection import HeadConnection
from workbench.deploy.ending_loop import EndingLoop
from workbench.deploy.job import ClusterJob
from workbench.deploy.record import Record
from workbench.deploy.start import ClusterStart
from workbench.errors import InvalidRequest
from workbench.host import debug_log
from workbench.launch.options import ClusterOptions, rank_count
from workbench.launch.options import options as cluster_options
from workbench.metrics.tables import frame, openmetrics
from workbench.placement.pinning import forget_pins
from workbench.session.current import dashboard_path


class MPICluster(EndingLoop):
    """An MPI world of n ranks that is a Dask cluster of n workers; rank i is worker i.

    It starts a job with a head, which has Dask's scheduler, and ``mpiexec`` with the ranks. The job outlives this
    object and this process: `attach` finds the cluster by its name. A cluster without clients and tasks stops itself
    after its idle timeout.

    Parameters
    ----------
    ranks : int, optional
        Size of the MPI world. Default: `ranks_per_node` on each of the `nodes`, or one rank per core of this host.
    name : str, optional
        Name of the cluster. Default: ``mpi``, ``mpi-2``, ...
    scheduler : {"auto", "local", "here", "slurm", "pbs"}, optional
        What starts the job: this host (``local``), a batch scheduler, or the allocation of this process (``here``).
        Default: the setting ``workbench.scheduler``, ``auto``: the first of Slurm, PBS and this host that is available.
    nodes : int, optional
        Nodes of the job.
    ranks_per_node : int, optional
        Ranks per node, at most.
    walltime : str, optional
        Time after which the scheduler ends the job, for example ``"02:00:00"`` or ``"2 hours"``.
    queue : str, optional
        Queue or partition.
    account : str, optional
        Account or project to charge.
    constraint : str, optional
        Required features of the nodes.
    reservation : str, optional
        Reservation for the job.
    gpus_per_rank : int, optional
        GPUs per rank. Each rank gets its own in ``CUDA_VISIBLE_DEVICES`` (and the variables of ROCm, Level Zero and
        OpenCL, if they are set). Default: all ranks of a node see all its GPUs.
    extra : sequence of str, default=()
        Additional directives for the scheduler, written as after ``#SBATCH`` or ``#PBS``.
    preset : str, optional
        Section of ``jobqueue.yaml`` with the site's settings, which apply to all omitted options.
    interface : str, optional
        Network interface of head and ranks.
    preload : sequence of str, default=()
        Modules that every rank imports before it is ready, for example ``workbench.torch``, and the modules of the
        ``PRELOAD`` of a package, which its first uses need.
    threads : int, default=1
        Threads per rank, for Dask tasks and for OpenMP and BLAS (``OMP_NUM_THREADS`` and similar variables).
    memory : int or str, optional
        Memory limit of each rank, in bytes or for example ``"4 GiB"``. Default: the memory of the node divided by its
        ranks.
    mpi : {"auto", "openmpi", "mpich", "intelmpi"}, default="auto"
        The MPI that mpi4py must use.
    protocol : {"mpi", "tcp"}, default="mpi"
        Protocol between ranks, always with TLS.
    checkpoint : str, optional
        Folder for what `workbench.keep` keeps, on a file system that all nodes share. Default:
        ``workbench-kept/NAME-ID`` in the working directory.
    every : float or str, default=1800.0
        Time between two saves of what is kept, in seconds or for example ``"10 minutes"``.
    resubmit : int, default=0
        Further batch jobs that continue the cluster: at the end of the walltime, after a requeue, and when the head is
        killed. What `workbench.keep` keeps is there again.
    idle_timeout : float or str, optional
        Time without clients and tasks after which the cluster ends. Default: ``workbench.idle-timeout``.
    ssh_tunnel : str, optional
        Host, in the syntax of ``ssh``, through which the head is reached.
    asynchronous : bool, default=False
        Set it to use the object with ``await`` and ``async with``.
    loop : optional
        As for every Dask cluster.
    quiet : bool, default=False
        Show no progress line.

    Raises
    ------
    InvalidRequest
        If an option is not valid; nothing was started.
    StartError
        If the cluster failed to start, with the end of the log that has the reason. All its parts were removed.
    StartTimeout
        If the cluster was not ready in time. All its parts were removed.

    Notes
    -----
    `close`, and the end of a ``with`` block, stop a cluster that this object has started, and only disconnect from
    an attached cluster. The end of the process stops no cluster.

    Examples
    --------
    >>> from distributed import Client
    >>> from workbench import MPICluster
    >>> with MPICluster(4) as cluster, Client(cluster) as client:
    ...     client.gather(client.map(abs, [-1, -2]))
    [1, 2]
    """

    # `of_job` sets the job of an object; any other object makes the job from its options.
    _given_job: ClusterJob | None = None
    _follow = following.follow

    def __init__(
        self,
        ranks: int | None = None,
        *,
        name: str | None = None,
        scheduler: str | None = None,
        nodes: int | None = None,
        ranks_per_node: int | None = None,
        walltime: str | None = None,
        queue: str | None = None,
        account: str | None = None,
        constraint: str | None = None,
        reservation: str | None = None,
        gpus_per_rank: int | None = None,
        extra: Sequence[str] = (),
        preset: str | None = None,
        interface: str | None = None,
        preload: Sequence[str] = (),
        threads: int = 1,
        memory: int | str | None = None,
        mpi: str = "auto",
        protocol: str = "mpi",
        checkpoint: str | None = None,
        every: float | str = 1800.0,
        resubmit: int = 0,
        idle_timeout: float | str | None = None,
        ssh_tunnel: str | None = None,
        asynchronous: bool = False,
        loop: Any = None,
        quiet: bool = False,
    ) -> None:
        given = locals()
        debug_log.set_up()
        # `__del__` and `__repr__` read these attributes, also of an object whose `__init__` has failed.
        self.status = Status.closed
        self.security: Any = None
        if (job := self._given_job) is None:
            job = ClusterStart.of(ClusterOptions(**{each.name: given[each.name] for each in cluster_options()}))
        self._job = job
        # None of an attached cluster, which another object has started.
        self._start_of = job if isinstance(job, ClusterStart) else None
        self._connection = HeadConnection(job, ssh_tunnel)
        self._ending = self._start_of is not None
        super().__init__(asynchronous=asynchronous, loop=loop, quiet=quiet, name=job.record.name)
        if not self.called_from_running_loop:
            self._loop_runner.start()
            try:
                self.sync(self._start)
            except BaseException as error:
                self.status = Status.closed
                self._end_loop()
                if self._start_of is None:
                    raise
                # The user has no object with which to stop the job.
                self._start_of.abandon(error)

    @classmethod
    def of_job(cls, job: ClusterJob, **options: Any) -> Self:
        """Return the object of the cluster of a handle.

        Parameters
        ----------
        job, **options : object
            The handle of the cluster, and keyword arguments of ``__init__``.

        Returns
        -------
        MPICluster
            The object.
        """
        self = cls.__new__(cls)
        self._given_job = job
        cls.__init__(self, **options)
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
        **options: Any,
    ) -> Self:
        """Connect to your running cluster of this name, from any process.

        Parameters
        ----------
        name : str
            Name of the cluster.
        ssh_tunnel, asynchronous, loop, quiet : optional
            See `MPICluster`.
        **options : object
            More keyword arguments for the ``__init__`` of a subclass, which is called with all keyword arguments of
            this method, and passes those of `MPICluster` to ``super().__init__``. Additional options for the size or
            the job of a cluster have no effect, because the cluster already runs.

        Returns
        -------
        MPICluster
            The connected object.

        Raises
        ------
        ClusterNotFound
            If no cluster has this name, or it has ended.
        RecordError
            If its record is corrupt, belongs to another user or is open to others.
        HeadUnreachable
            If its head does not answer from this host.
        StartError
            If the cluster was starting, and its start has failed or was stopped.
        """
        if fixed := sorted(options.keys() & {each.name for each in cluster_options()}):
            raise TypeError(f"{cls.__name__}.attach() got an unexpected keyword argument {fixed[0]!r}")
        job = ClusterJob(registry.running(name))
        return cls.of_job(job, ssh_tunnel=ssh_tunnel, asynchronous=asynchronous, loop=loop, quiet=quiet, **options)

    def __await__(self) -> Any:
        async def start() -> MPICluster:
            if self.status == Status.created:
                try:
                    await self._start()
                except BaseException as error:
                    self.status = Status.closed
                    if self._start_of is None:
                        raise
                    await run_to_end(asyncio.to_thread(self._start_of.abandon, error))
            return self

        return start().__await__()

    async def _start(self) -> None:
        note = ""
        if self._start_of is not None:
            note = self._start_of.hint()
            await asyncio.to_thread(self._start_of.submit)
        await self._connection.await_ready(quiet=self.quiet, note=note)
        self.scheduler_comm, self.security = self._connection.rpc, self._connection.security
        self._cluster_info["name"] = self._job.record.name
        await super()._start()
        dask_raises_exceptions_only()
        self._watch_end()

    @property
    def record(self) -> Record:
        """The last record that the head has sent; `refresh` gets the current one."""
        return self._job.record

    def refresh(self) -> Record | Awaitable[Record]:
        """Get the current record of the cluster from its head.

        Returns
        -------
        Record
            The record, which `record` has from now on; of an asynchronous object an awaitable of the record.
        """
        return self.sync(self._connection.refresh)  # type: ignore[no-any-return]

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """Rank, pid, host and worker address of each running rank, in rank order."""
        workers = self.scheduler_info["workers"].items()
        ranks = [
            {**info["workbench"], "name": info["name"], "address": address}
            for address, info in workers
            if "workbench" in info and isinstance(info["name"], int)  # other names: of ranks that a move starts or ends
        ]
        return sorted(ranks, key=itemgetter("rank"))

    @property
    def workers(self) -> dict[int, dict[str, Any]]:
        """The running ranks, as in `ranks`, by the names of their workers."""
        return {rank["name"]: rank for rank in self.ranks}

    @property
    def dashboard_link(self) -> str:
        """Path of the cluster's dashboard on the Jupyter server of this notebook; empty without a server that shows it.

        Clients of this object have the same link. In other processes ``workbench dashboard NAME`` opens the dashboard.
        """
        return dashboard_path(self._job.record.name)

    def metrics(self, what: str = "ranks") -> Any:
        """Return measurements as a table with one row per observation.

        Parameters
        ----------
        what : {"ranks", "nodes", "cores", "traffic", "operations", "sizes", "fits", "calls"}, default="ranks"
            The table. ``ranks``, ``nodes``, ``cores``: the last ten minutes, two samples per second. ``traffic``,
            ``operations``, ``sizes``: totals since the start. ``fits``: values logged by fits and `workbench.report`.
            ``calls``: the cost of the latest SPMD calls and cells.

        Returns
        -------
        pandas.DataFrame
            The table, with the columns of :doc:`/reference/metrics-columns`; of an asynchronous object an awaitable.

        Raises
        ------
        InvalidRequest
            If there is no such table.
        HeadUnreachable
            If the head does not answer.
        """
        return self.sync(self._measured, frame, what)

    def openmetrics(self) -> Any:
        """Return the last measurements in the text format of OpenMetrics, which Prometheus reads.

        Returns
        -------
        str
            The text; of an asynchronous object an awaitable of the text.

        Raises
        ------
        HeadUnreachable
            If the head does not answer.
        """
        return self.sync(self._measured, openmetrics)

    async def _measured(self, render: Callable[..., Any], *args: Any) -> Any:
        return render(await self._connection.metrics(), *args)

    def scale(self, n: int) -> Any:
        """Start a world of `n` ranks, send all results of the present ranks there, and end the present ranks.

        Placed collections that have a name in the notebook are placed again, with one block for each new rank.

        Parameters
        ----------
        n : int
            Number of ranks; the present number replaces lost ranks.

        Returns
        -------
        None
            Of an asynchronous object an awaitable.

        Raises
        ------
        InvalidRequest
            If another change is in progress, or the host has no room for `n` ranks.
        StartError
            If the new world did not start, or did not get the results. The present ranks continue.
        """
        ranks = rank_count(n, here=not self._job.record.spread)
        done = self.sync(self._change, "workbench_scale", f"scaling to {ranks}", n=ranks)
        if not self.asynchronous:
            following.place_again(self, ranks)
        return done

    def restart(self) -> Any:
        """Restart all ranks in the same job; results in their memory are lost.

        Returns
        -------
        None
            Of an asynchronous object an awaitable.

        Raises
        ------
        StartError
            If the ranks did not start.
        HeadUnreachable
            If the head does not answer.
        """
        return self.sync(self._change, "workbench_restart", "restarting")

    def broadcast(self, obj: Any, *, timeout: float | str | None = None) -> Any:
        """Send one large object to all ranks, as `workbench.broadcast` does with the client of ``get_client()``.

        Parameters
        ----------
        obj, timeout : object
            See `workbench.broadcast`, also for the errors.

        Returns
        -------
        distributed.Future
            See `workbench.broadcast`.
        """
        return broadcast(self.get_client(), obj, timeout=timeout)

    def checkpoint(self, path: str | os.PathLike[str], /, *, keep: int = 2, **named: Any) -> Path:
        """Save placed collections and objects in a folder; `workbench.restore` reads them.

        Parameters
        ----------
        path : str or path
            Folder on a file system of all nodes, whose parent exists. It gets a new version, which is whole or absent.
        keep : int, default=2
            Number of versions to keep, with the new one.
        **named : object
            What to save, by its name: placed collections, tensors, arrays, plain values, estimators of these.

        Returns
        -------
        pathlib.Path
            The folder of the version.

        Raises
        ------
        InvalidRequest
            If an object or a column is of another kind, a collection is not placed, or a file cannot be written.
        """
        from workbench.checkpoint.client import checkpoint

        return checkpoint(self, path, named, keep)

    async def _change(self, operation: str, progress: str, **message: Any) -> None:
        from distributed.objects import SchedulerInfo

        await self._connection.change(operation, progress, quiet=self.quiet, **message)
        if operation == "workbench_scale":
            forget_pins()
        self.scheduler_info = SchedulerInfo(await self._connection.head.identity())

    def ipyparallel(self) -> Any:
        """Return an `ipyparallel.Client` of the ranks, in the processes and namespaces of ``%%mpi`` cells.

        Its ``become_dask`` returns the Dask client of this cluster. Its ``shutdown`` and ``send_signal`` raise an
        error, since an engine lives as long as its rank. Engine ``i`` of the client is rank ``i``.

        Returns
        -------
        ipyparallel.Client
            The client.

        Raises
        ------
        InvalidRequest
            If this object is asynchronous.
        RankLost
            If ranks were lost.
        CollectiveFailed
            If the engines do not start.
        HeadUnreachable
            If the head or the engines do not answer.

        Notes
        -----
        A view runs code on each rank without the turn of calls and cells, and Ctrl-C does not end this code. Use views
        for code without communication. Code that communicates belongs in ``%%mpi`` cells and ``@spmd`` functions, where
        a failed rank ends the operation on all ranks. Close the client after its last use: ``engines.close()``.
        """
        from workbench.cells.engine_client import of_cluster

        if self.asynchronous:
            raise InvalidRequest("ipyparallel() needs a synchronous cluster. Use MPICluster.attach(name) in a thread.")
        return of_cluster(self, self._connection.call)

    def forward(self, purpose: str, addresses: list[str]) -> Any:
        """Return addresses by which this process reaches addresses of the head's host.

        Parameters
        ----------
        purpose : str
            Addresses of an earlier call for the same purpose are not forwarded any longer.
        addresses : list of str
            Addresses as ``"tcp://10.1.2.3:4567"``.

        Returns
        -------
        list of str
            Addresses of this host, forwarded by ssh until this object is closed; without ``ssh_tunnel``: `addresses`.

        Raises
        ------
        HeadUnreachable
            If ssh does not open the ports within ``workbench.connect-timeout``.
        """
        return self.sync(self._connection.forward, purpose, addresses)

    def adapt(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error: the size of an MPI world is fixed when it starts.

        Parameters
        ----------
        *args, **kwargs : object
            Not used.
        """
        raise NotImplementedError(
            "The size of an MPI world is fixed, so this cluster cannot adapt to its load. "
            "Use scale(n), which moves the results to n new ranks."
        )

    def logs(self, rank: int | None = None) -> str:
        """Return the log of one rank, or all logs of the cluster.

        Parameters
        ----------
        rank : int, optional
            The rank. Default: all logs.

        Returns
        -------
        str
            The text of the logs.

        Raises
        ------
        InvalidRequest
            If there is no such log.
        """
        return logs.read(self._job.folder.logs, rank)

    def script(self) -> str:
        """Return the script of the cluster's job as it was submitted.

        Returns
        -------
        str
            The text of the script.

        Raises
        ------
        ClusterNotFound
            If the cluster has ended.
        """
        return self._job.folder.script()

    # -- end ---------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None, *, shutdown: bool | None = None) -> Any:
        """Disconnect, and stop the cluster if this object has started it.

        Parameters
        ----------
        timeout : float, optional
            Deadline in seconds.
        shutdown : bool, optional
            Stop the cluster (True) or leave the cluster running (False), also if another process has started it.

        Returns
        -------
        None
            Of an asynchronous object an awaitable.
        """
        if shutdown is not None:
            self._ending = shutdown
        return super().close(timeout)

    def detach(self) -> Any:
        """Disconnect and leave the cluster running; `attach` connects again.

        Returns
        -------
        None
            Of an asynchronous object an awaitable.
        """
        return self.close(shutdown=False)

    def __eq__(self, other: object) -> bool:
        # Dask compares names, and would use the client of an earlier cluster with the same name.
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return display.text(self._job.record, len(self.ranks), str(self.status.name))

    def _repr_html_(self, cluster_status: Any = None) -> str:
        return display.html(self._job.record, self.ranks, str(self.status.name))

    def _widget(self) -> Any:
        return display.widget(self)
