"""What the verbs do: each a function from plain values to a plain value, for notebook and terminal alike."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.deploy import ended, jobs, registry
from workbench.deploy import logs as log_files
from workbench.deploy.registry import Record
from workbench.errors import ClusterNotFound, HeadUnreachable, InvalidRequest, WorkbenchError
from workbench.files import atomic_file
from workbench.hints import Command
from workbench.launch import command
from workbench.launch.interface import JobState, JobStatus
from workbench.launch.options import from_typed
from workbench.session import notebook
from workbench.text import clock

if TYPE_CHECKING:
    from workbench.cluster import MPICluster
    from workbench.commands.doctor import CheckResult
    from workbench.metrics.profile_frame import ProfileFrame

# Seconds that a list waits for schedulers, all its questions together.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Status:
    """How a cluster is, in plain values."""

    name: str
    """Its name."""
    state: str
    """As of its record; see `workbench.deploy.registry.Record`."""
    up: int
    """Ranks that are there ..."""
    ranks: int
    """... of those that it has."""
    worlds: list[dict[str, Any]]
    """Its MPI worlds: index, ranks, state, up, starts."""
    threads: int
    """Threads of each rank."""
    mpi: str
    """MPI in words."""
    scheduler: str
    """What started its job."""
    host: str
    """Host of its head."""
    pid: int
    """Process of its head."""
    nodes: int | None
    """Nodes that its first job asks for; None: its scheduler decides."""
    headed: bool
    """Whether there is a head yet: until then `host` and `pid` are its starter's."""
    jobs: list[str]
    """Its jobs' ids, if a batch scheduler has them."""
    ends: float | None
    """When the scheduler ends its job, in seconds since the epoch; None: never, or not known."""
    address: str | None
    """Where Dask's scheduler listens."""
    age: float
    """Seconds since it was asked for."""
    idle_timeout: float
    """Seconds without clients and tasks after which it ends."""
    message: str
    """Its last event in words."""
    logs: str
    """Folder of its logs."""

    @classmethod
    def of(cls, record: Record, told: JobStatus | None = None) -> Status:
        """Return the status that a record tells, and of a job without a head yet its scheduler, asked if need be."""
        state, message = record.state, record.message
        if state == "submitted" and jobs.is_batch(record):
            told = jobs.status(record) if told is None else told
            if told.state is JobState.UNKNOWN and not told.finished:
                message = _silence(record, told)
            else:
                state, message = told.state.value, jobs.words(told)
        return cls(
            **jobs.plain(record) | {"state": state, "message": message},
            worlds=[asdict(world) for world in record.worlds],
            mpi=record.mpi,
            pid=record.process.pid,
            headed=record.state != "submitted",
            address=record.address,
            age=round(time.time() - record.created, 1),
            logs=str(record.logs),
        )


@dataclass(frozen=True)
class Broken:
    """A record that cannot be used."""

    name: str
    """The cluster's name."""
    error: dict[str, Any]
    """Why, and what to do: the fields of an error, as of `workbench.errors.WorkbenchError.fields`."""


@dataclass(frozen=True)
class Gone(ended.EndReason):
    """A cluster that has ended, in plain values."""

    logs: str | None
    """Folder of its logs; None: they have been removed since."""

    @classmethod
    def of(cls, its: ended.EndReason) -> Gone:
        """Return what is kept of a cluster that has ended."""
        return cls(**asdict(its), logs=str(its.logs_folder) if its.logs_folder.is_dir() else None)


@dataclass(frozen=True)
class Listing:
    """All clusters of this user."""

    clusters: list[Status]
    """Those that run, or may run on another host."""
    broken: list[Broken]
    """Those whose record cannot be used."""
    cleaned: list[str]
    """Names of those that were found to have ended; their records are removed."""
    ended: list[Gone] = field(default_factory=list)
    """On request, those that have ended in the last days, the last one first."""


@dataclass(frozen=True)
class Targets:
    """Clusters that are to be ended."""

    records: list[Record]
    """Their records."""
    broken: list[Broken]
    """Those that cannot be ended, since their record cannot be used."""


@dataclass(frozen=True)
class Stopped:
    """What `stop` has done."""

    stopped: list[str]
    """Names of the clusters that have ended."""
    failed: list[Broken]
    """Those that could not be ended."""


def _silence(record: Record, told: JobStatus) -> str:
    """Return what is known of a job of which its scheduler tells nothing."""
    job = jobs.job_id(record)
    its = f"job {job}" if job else "a job whose id is not known"
    why = told.reason or "nothing is known of it"
    return f"{why}, asked at {clock(time.time())}; {its}, submitted at {clock(record.created)}"


def listing(*, everything: bool = False) -> Listing:
    """Return all clusters of this user, and remove the records of those that have ended.

    Parameters
    ----------
    everything
        Return also how clusters have ended in the last days.
    """
    with command.answering_within(_PATIENCE):
        told = registry.ask_schedulers()
        records, broken, cleaned = _survey(told)
        there = {record.id for record in records}
        gone = [Gone.of(its) for its in (ended.known() if everything else []) if its.id not in there]
        return Listing([Status.of(record, told.get(record.id)) for record in records], broken, cleaned, gone)


def _survey(told: dict[str, JobStatus] | None = None) -> tuple[list[Record], list[Broken], list[str]]:
    cleaned = registry.clean(told)
    found = registry.records()
    records = [record for record in found.values() if isinstance(record, Record)]
    broken = [Broken(name, why.fields()) for name, why in found.items() if isinstance(why, WorkbenchError)]
    return records, broken, cleaned


def choose(name: str | None, bound: Record | None = None) -> Record:
    """Return the record of the cluster that a verb is about.

    Parameters
    ----------
    name
        The cluster that was named, if one was.
    bound
        The cluster in use; without a name and without it the only cluster is meant.

    Raises
    ------
    ClusterNotFound
        If that cluster has ended, or none runs.
    InvalidRequest
        If several run.
    """
    if name is not None:
        return registry.running(name)
    if bound is not None:
        record = registry.running(bound.name)
        if record.id != bound.id:
            raise ClusterNotFound(
                f"the cluster {bound.name!r} in use has ended, and another one has its name now. "
                f"Its logs are in {bound.logs}.",
                hint=("Use the other with ", Command("attach", bound.name), "."),
            )
        return record
    running, _, _ = _survey()
    if not running:
        raise ClusterNotFound("no cluster runs.", hint=("Start one with ", Command("start"), "."))
    if len(running) > 1:
        names = ", ".join(record.name for record in running)
        raise InvalidRequest(
            f"which cluster? {len(running)} run: {names}.",
            allowed=[record.name for record in running],
            hint="Name one of them.",
        )
    return running[0]


def start(*, dry_run: bool = False, quiet: bool = False, **options: Any) -> MPICluster | str:
    """Start a cluster, or with `dry_run` return what would run.

    Parameters
    ----------
    dry_run
        Start nothing.
    quiet
        Show no progress.
    options
        As of `from_typed`.
    """
    given = from_typed(options)
    if dry_run:
        from workbench.deploy.dry_run import preview

        return preview(given)
    from workbench.deploy.start import ClusterStarter

    job = ClusterStarter.of(given)
    try:
        # While Dask is loaded it may be waiting, or starting.
        job.submit()
        with _interrupted_later():
            from workbench.cluster import MPICluster
        return MPICluster.of_job(job, quiet=quiet, ssh_tunnel=given.ssh_tunnel)
    except BaseException as error:  # noqa: BLE001  (it is raised again)
        job.abandon(error)


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Have Ctrl-C wait for the end of an import: callbacks in the middle of imports swallow the exception."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        signal.raise_signal(signal.SIGINT)


def attach(name: str, ssh_tunnel: str | None = None) -> MPICluster:
    """Return an object for a cluster that runs; raises what `workbench.MPICluster.attach` does."""
    from workbench.cluster import MPICluster

    # One that waits in its queue may do so for long.
    quiet = registry.running(name).state != "submitted"
    return MPICluster.attach(name, ssh_tunnel=ssh_tunnel, quiet=quiet)


def logs(name: str | None, rank: str | None, bound: Record | None = None) -> str:
    """Return the logs of a cluster, or of one of its ranks, also after its end; which one is as of `choose`."""
    if name is not None:
        return log_files.read(log_files.folder(name), rank)
    return log_files.read((bound or choose(None)).logs, rank)


@contextmanager
def connected(record: Record, bound: MPICluster | None = None) -> Iterator[MPICluster]:
    """Give a connected object of the cluster: the one in use if it is that, else one for the moment.

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
            hint=(Command("status", record.name), " tells whether it goes on."),
        ) from error


def status(record: Record, bound: MPICluster | None = None) -> Status:
    """Return how a cluster is: the one in use as its head tells it now, else as its record does."""
    if bound is not None and bound.record.id == record.id:
        with suppress(OSError):  # the head is busy or ending: its record is as good
            record = bound.refresh()  # type: ignore[assignment]  # an awaitable only of asynchronous clusters
    return Status.of(record)


def scale(record: Record, ranks: str, bound: MPICluster | None = None) -> Status:
    """Have so many ranks in total, and return how the cluster is then."""
    with connected(record, bound) as cluster:
        cluster.scale(ranks)  # type: ignore[arg-type]  # as typed, it is checked there
        return Status.of(cluster.record)


def restart(record: Record, bound: MPICluster | None = None) -> Status:
    """Start all ranks of a cluster again, and return how it is then."""
    with connected(record, bound) as cluster:
        cluster.restart()
        return Status.of(cluster.record)


def where(record: Record, bound: MPICluster | None = None) -> dict[int, dict[int, Any]]:
    """Return of each rank of each world where it is in a call on all ranks; see `workbench.metrics.call_stack`."""
    with connected(record, bound) as cluster:
        head: Any = cluster.scheduler_comm
        timeout = config.seconds("connect-timeout")
        places: dict[int, dict[int, Any]] = cluster.sync(head.workbench_where, callback_timeout=timeout)
        return places


def metrics(record: Record, table: str | None, out: str | None, bound: MPICluster | None = None) -> str:
    """Return what was measured as text, or write it to a file and return a line that says so.

    Parameters
    ----------
    table
        As of `MPICluster.metrics`; None: all of them, as OpenMetrics.
    out
        File; a table goes to ``.parquet`` as Parquet, to any other as CSV. What is there is replaced.

    Raises
    ------
    InvalidRequest
        If there is no such table, or OpenMetrics are to go to a Parquet file, or the file cannot be written.
    """
    parquet = out is not None and out.endswith(".parquet")
    if parquet and table is None:
        raise InvalidRequest(f"--out {out}: OpenMetrics are text; name a table for Parquet, as --table ranks")
    path = None if out is None else atomic_file.checked("--out", out)
    with connected(record, bound) as cluster:
        frame = None if table is None else cluster.metrics(table)
        text = cluster.openmetrics() if frame is None else frame.to_csv(index=False)
    if path is None:
        return str(text).rstrip("\n")
    atomic_file.write("--out", path, frame.to_parquet() if frame is not None and parquet else text.encode())
    return f"{out} has the metrics of cluster {record.name!r}"


def dashboard_url(record: Record) -> str:
    """Return where the browser of this notebook finds a cluster's dashboard: a path of its Jupyter server.

    Raises
    ------
    InvalidRequest
        If the server of this notebook does not show dashboards, or there is none.
    """
    if not (path := notebook.dashboard_path(record.name)):
        raise InvalidRequest(
            "the Jupyter server of this notebook does not show dashboards.",
            hint="In its environment run `jupyter server extension enable workbench.server` and start it again; or run "
            f"`workbench dashboard {record.name}` in a terminal.",
        )
    return path


def script(record: Record) -> str:
    """Return the script of a cluster's job, as it was submitted."""
    from workbench.deploy.start import submitted_script

    return submitted_script(record)


def targets(name: str | None, *, everything: bool, bound: Record | None = None) -> Targets:
    """Return the clusters that `stop` is about: one as of `choose`, or with `everything` all of this user.

    Raises
    ------
    InvalidRequest
        If both are asked for.
    """
    if not everything:
        return Targets([choose(name, bound)], [])
    if name is not None:
        raise InvalidRequest(f"stop {name} --all is not valid. Choose either a name or --all.")
    records, broken, _ = _survey()
    return Targets(records, broken)


def stop(clusters: Targets) -> Stopped:
    """End clusters; when it returns nothing is left of those that it calls stopped."""
    from workbench.deploy.stop import stop as end

    stopped, failed = [], list(clusters.broken)
    for record in clusters.records:
        try:
            end(record)
            stopped.append(record.name)
        except WorkbenchError as error:
            failed.append(Broken(record.name, error.fields()))
    return Stopped(stopped, failed)


def doctor(name: str | None, mpi: str | None) -> Iterator[CheckResult]:
    """Check this installation, and a running cluster if it is named; yield the findings as they come."""
    from workbench.commands.doctor import examine

    return examine(name, mpi=mpi or "auto")


def profile(record: Record, bound: MPICluster | None = None) -> ProfileFrame:
    """Return what each rank of a cluster did since it was started."""
    from distributed import Client

    from workbench.metrics.profile import since_start

    with connected(record, bound) as cluster, Client(cluster, set_as_default=False) as client:
        return since_start(client)
