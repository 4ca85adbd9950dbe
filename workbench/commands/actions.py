"""The functions of the subcommands, from plain values to a plain value, for notebook and terminal."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.deploy import ended, registry
from workbench.deploy import logs as log_files
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job import ClusterJob
from workbench.deploy.record import Record, from_dict
from workbench.errors import ClusterNotFound, HeadUnreachable, InvalidRequest, WorkbenchError
from workbench.hints import Command
from workbench.host import files
from workbench.launch import command
from workbench.launch.interface import UNKNOWN, JobStatus
from workbench.launch.options import ClusterOptions
from workbench.text import clock

if TYPE_CHECKING:
    from workbench.cluster import MPICluster
    from workbench.metrics.profile_frame import ProfileFrame


@dataclass(frozen=True)
class Status:
    """The state of a cluster, in plain values."""

    name: str
    """Its name."""
    state: str
    """As of its record; see `workbench.deploy.record.Record`."""
    up: int
    """Ranks that run ..."""
    ranks: int
    """... of those that the cluster has."""
    world: dict[str, Any] | None
    """Its MPI world: index, ranks, state, up, starts, job, GPUs as text; None before the start."""
    next: dict[str, Any] | None
    """The world that replaces it, while the cluster is scaled."""
    threads: int
    """Threads of each rank."""
    mpi: str
    """Description of the MPI."""
    scheduler: str
    """What started its job."""
    host: str
    """Host of its head."""
    pid: int
    """Process of its head."""
    nodes: int | None
    """Nodes that its first job asks for; None: its scheduler decides."""
    headed: bool
    """Whether the head runs; until then `host` and `pid` are those of the starter."""
    jobs: list[str]
    """Its jobs' ids, if a batch scheduler has them."""
    ends: float | None
    """When the scheduler ends its job, in seconds since the epoch; None: never, or unknown."""
    address: str | None
    """Where Dask's scheduler listens."""
    age: float
    """Seconds since it was requested."""
    idle_timeout: float
    """Seconds without clients and tasks after which it stops."""
    message: str
    """Description of its last event."""
    logs: str
    """Folder of its logs."""

    @classmethod
    def of(cls, job: ClusterJob, status: JobStatus | None = None) -> Status:
        """Return the status of a cluster from its record and its job, which is asked for until the head runs."""
        record = job.record
        if status is None:
            status = job.ask_status() if record.state == "submitted" and job.batch else UNKNOWN
        state, message = job.shown(status)
        if state == "submitted" and job.batch:
            message = _unknown_job(job, status)
        return cls(
            **job.plain() | {"state": state, "message": message},
            world=asdict(record.world) if record.world else None,
            next=asdict(record.next) if record.next else None,
            mpi=record.mpi,
            pid=record.process.pid,
            headed=record.state != "submitted",
            address=record.address,
            age=round(time.time() - record.created, 1),
            logs=str(job.folder.logs),
        )


@dataclass(frozen=True)
class Broken:
    """A record that cannot be used."""

    name: str
    """The cluster's name."""
    error: dict[str, Any]
    """The reason and the remedy: the fields of an error, as of `workbench.errors.WorkbenchError.fields`."""


@dataclass(frozen=True)
class Gone(ended.EndReason):
    """A cluster that has ended, in plain values."""

    logs: str | None
    """Folder of its logs; None: the logs have been removed."""

    @classmethod
    def of(cls, end: ended.EndReason) -> Gone:
        """Return the kept values of a cluster that has ended."""
        return cls(**asdict(end), logs=str(end.logs_folder) if end.logs_folder.is_dir() else None)


@dataclass(frozen=True)
class Listing:
    """All clusters of this user."""

    clusters: list[Status]
    """Clusters that run, or may run on another host."""
    broken: list[Broken]
    """Clusters whose record cannot be used."""
    cleaned: list[str]
    """Names of clusters that have ended; their records are removed."""
    ended: list[Gone] = field(default_factory=list)
    """On request, clusters that have ended in the last days, the latest first."""


@dataclass(frozen=True)
class Targets:
    """Clusters to stop."""

    records: list[Record]
    """Their records."""
    broken: list[Broken]
    """Clusters that cannot be stopped, since their record cannot be used."""


@dataclass(frozen=True)
class Stopped:
    """The result of `stop`."""

    stopped: list[str]
    """Names of the clusters that were stopped."""
    failed: list[Broken]
    """Clusters that could not be stopped."""


def _unknown_job(job: ClusterJob, status: JobStatus) -> str:
    """Describe a job whose state the scheduler does not report."""
    job_id = job.job_id()
    name = f"job {job_id}" if job_id else "a job whose id is not known"
    reason = status.reason or "its state is not known"
    return f"{reason}, asked at {clock(time.time())}; {name}, submitted at {clock(job.record.created)}"


def listing(*, everything: bool = False) -> Listing:
    """Return all clusters of this user, and remove the records of those that have ended.

    Parameters
    ----------
    everything
        Return also how clusters have ended in the last days.
    """
    with command.answering_soon():
        statuses = registry.ask_schedulers()
        records, broken, cleaned = _scan(statuses)
        running = {record.id for record in records}
        gone = [Gone.of(end) for end in (ended.known() if everything else []) if end.id not in running]
        clusters = [Status.of(ClusterJob(record), statuses.get(record.id)) for record in records]
        return Listing(clusters, broken, cleaned, gone)


def _scan(job_statuses: dict[str, JobStatus] | None = None) -> tuple[list[Record], list[Broken], list[str]]:
    cleaned = registry.clean(job_statuses)
    entries = registry.records()
    records = [entry for entry in entries.values() if isinstance(entry, Record)]
    broken = [Broken(name, entry.fields()) for name, entry in entries.items() if isinstance(entry, WorkbenchError)]
    return records, broken, cleaned


def choose(name: str | None, bound: Record | None = None, *, ending: bool = False) -> Record:
    """Return the record of the cluster that a subcommand applies to.

    Parameters
    ----------
    name
        Name of the cluster; None: the cluster in use.
    bound
        The cluster in use; None: the only cluster that runs.
    ending
        As of `registry.running`.

    Raises
    ------
    ClusterNotFound
        If that cluster has ended, or none runs.
    InvalidRequest
        If several run.
    """
    if name is not None:
        return registry.running(name, ending=ending)
    if bound is not None:
        record = registry.running(bound.name, ending=ending)
        if record.id != bound.id:
            raise ClusterNotFound(
                f"the cluster {bound.name!r} in use has ended, and another cluster now has its name. "
                f"Its logs are in {ClusterFolder.of(bound).logs}.",
                hint=("Use the other cluster with ", Command("attach", bound.name), "."),
            )
        return record
    running, _, _ = _scan()
    if not running:
        raise ClusterNotFound("no cluster runs.", hint=("Start a cluster with ", Command("start"), "."))
    if len(running) > 1:
        names = ", ".join(record.name for record in running)
        raise InvalidRequest(
            f"{len(running)} clusters run: {names}.",
            allowed=[record.name for record in running],
            hint="Pass the name of one cluster.",
        )
    return running[0]


def start(*, dry_run: bool = False, quiet: bool = False, **options: Any) -> MPICluster | str:
    """Start a cluster, or with `dry_run` return the script of its job.

    Parameters
    ----------
    dry_run
        Start nothing.
    quiet
        Show no progress.
    options
        As of `workbench.launch.options.ClusterOptions`; None stands for a default.
    """
    request = ClusterOptions(**{name: value for name, value in options.items() if value is not None})
    if dry_run:
        from workbench.deploy.start import preview

        return preview(request)
    from workbench.deploy.start import ClusterStart

    job = ClusterStart.of(request)
    try:
        # The job is queued or starts while this process loads Dask.
        job.submit()
        with _interrupted_later():
            from workbench.cluster import MPICluster
        return MPICluster.of_job(job, quiet=quiet, ssh_tunnel=request.ssh_tunnel)
    except BaseException as error:  # noqa: BLE001  (it is raised again)
        job.abandon(error)


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Delay Ctrl-C until the end of an import: callbacks during imports swallow the exception."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        signal.raise_signal(signal.SIGINT)


def attach(name: str, ssh_tunnel: str | None = None) -> MPICluster:
    """Return an object for a running cluster; raises as `workbench.MPICluster.attach`."""
    from workbench.cluster import MPICluster

    # A queued job may wait for long, so its progress is shown.
    quiet = registry.running(name).state != "submitted"
    return MPICluster.attach(name, ssh_tunnel=ssh_tunnel, quiet=quiet)


def logs(name: str | None, rank: str | None, bound: Record | None = None) -> str:
    """Return the logs of a cluster, as of `choose`, or of one of its ranks, also after the cluster's end."""
    if name is not None:
        return log_files.read(registry.logs_of(name), rank)
    return log_files.read(ClusterFolder.of(bound or choose(None)).logs, rank)


@contextmanager
def connected(record: Record, bound: MPICluster | None = None) -> Iterator[MPICluster]:
    """Yield a connected object of the cluster: the one in use, or a temporary one.

    Raises
    ------
    HeadUnreachable
        If the connection is lost.
    """
    try:
        if bound is not None and bound.record.id == record.id:
            yield bound
        else:
            with attach(record.name) as cluster:
                yield cluster
    except WorkbenchError:
        raise
    except OSError as error:
        raise HeadUnreachable(
            f"cluster {record.name!r}: the connection to its head on {record.process.host} was lost ({error}).",
            hint=(Command("status", record.name), " shows whether the cluster still runs."),
        ) from error


def status(record: Record, bound: MPICluster | None = None) -> Status:
    """Return the state of a cluster: of the one in use, or with an old record, from its head."""
    job = ClusterJob(record)
    if bound is not None and bound.record.id == record.id:
        with suppress(OSError):  # the head is busy or ending: the record has the same values
            job.record = bound.refresh()  # type: ignore[assignment]  # an awaitable only of asynchronous clusters
            return Status.of(job)
    elif record.address is not None and job.folder.written() is not None:
        from workbench.deploy.connection import ask_once  # loads Dask

        with suppress(OSError):
            job.record = from_dict(ask_once(job, "workbench_status"))
            return Status.of(job)
    return Status.of(job, job.ask_status() if job.shows_more() else None)


def scale(record: Record, ranks: str, bound: MPICluster | None = None) -> Status:
    """Scale a cluster to a number of ranks, and return its state."""
    with connected(record, bound) as cluster:
        cluster.scale(ranks)  # type: ignore[arg-type]  # a text, which `scale` checks
        return Status.of(ClusterJob(cluster.record))


def restart(record: Record, bound: MPICluster | None = None) -> Status:
    """Restart all ranks of a cluster, and return its state."""
    with connected(record, bound) as cluster:
        cluster.restart()
        return Status.of(ClusterJob(cluster.record))


def where(record: Record, bound: MPICluster | None = None) -> dict[int, Any]:
    """Return the place of each rank in a call, a cell or a task; see `workbench.call_stack`."""
    with connected(record, bound) as cluster:
        head: Any = cluster.scheduler_comm
        timeout = config.seconds("connect-timeout")
        places: dict[int, Any] = cluster.sync(head.workbench_where, callback_timeout=timeout)
        return places


def metrics(record: Record, table: str | None, out: str | None, bound: MPICluster | None = None) -> str:
    """Return measurements as text, or write them to a file and return a message.

    Parameters
    ----------
    table
        As of `MPICluster.metrics`; None: all, as OpenMetrics.
    out
        File; a table is written to ``.parquet`` as Parquet, to any other file as CSV. An existing file is replaced.

    Raises
    ------
    InvalidRequest
        If the table is unknown, OpenMetrics would go to a Parquet file, or the file cannot be written.
    """
    parquet = out is not None and out.endswith(".parquet")
    if parquet and table is None:
        allowed = "a table for Parquet, for example --table ranks: OpenMetrics are text"
        raise InvalidRequest(option="out", given=out, allowed=allowed)
    path = None if out is None else files.validate("--out", out)
    with connected(record, bound) as cluster:
        frame = None if table is None else cluster.metrics(table)
        text = cluster.openmetrics() if frame is None else frame.to_csv(index=False)
    if path is None:
        return str(text).rstrip("\n")
    files.write("--out", path, frame.to_parquet() if frame is not None and parquet else text.encode())
    return f"{out} has the metrics of cluster {record.name!r}"


@command.insisting()
def targets(name: str | None, *, everything: bool, bound: Record | None = None) -> Targets:
    """Return the clusters to stop: one as of `choose`, or with `everything` all of this user.

    Raises
    ------
    InvalidRequest
        If both are given.
    """
    if not everything:
        return Targets([choose(name, bound, ending=True)], [])
    if name is not None:
        raise InvalidRequest(f"stop {name} --all is not valid. Choose either a name or --all.", option="name")
    records, broken, _ = _scan()
    return Targets(records, broken)


def stop(clusters: Targets) -> Stopped:
    """Stop clusters at the same time; nothing is left of those that the result calls stopped."""
    from workbench.deploy.stop import stop as end

    errors: dict[str, BaseException | None] = {}

    def end_one(record: Record) -> None:
        try:
            end(record)
            errors[record.id] = None
        except BaseException as error:  # noqa: BLE001  (it is raised again in the thread of the caller)
            errors[record.id] = error

    # In daemon threads, so that Ctrl-C ends the wait. Each has a copy of the context, with its limit for schedulers.
    runs = [(copy_context().run, (end_one, record)) for record in clusters.records]
    threads = [threading.Thread(target=run, args=arguments, daemon=True) for run, arguments in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stopped, failed = [], list(clusters.broken)
    for record in clusters.records:
        error = errors[record.id]
        if error is None:
            stopped.append(record.name)
        elif isinstance(error, WorkbenchError):
            failed.append(Broken(record.name, error.fields()))
        else:
            raise error
    return Stopped(stopped, failed)


def profile(record: Record, bound: MPICluster | None = None) -> ProfileFrame:
    """Return the profile of each rank of a cluster since its start."""
    from distributed import Client

    from workbench.metrics.profile import since_start

    with connected(record, bound) as cluster, Client(cluster, set_as_default=False) as client:
        return since_start(client)
