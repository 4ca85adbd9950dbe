"""Submit the job of a cluster, and follow its start; or show in a dry run what would start."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from typing import NoReturn, Self

from workbench import config
from workbench.deploy import certificates, ended, jobs, logs, registry
from workbench.deploy.job_spec import allocation_of, job_spec, world_line, write_dask_settings
from workbench.deploy.record import Record, clusters_folder, owns_lease
from workbench.deploy.request import record_of
from workbench.deploy.stop import end_jobs, has_ended, tidy
from workbench.errors import (
    ClusterExists,
    ClusterNotFound,
    LaunchError,
    RecordError,
    SchedulerTimeout,
    StartError,
    StartTimeout,
    WorkbenchError,
    from_fields,
)
from workbench.hints import Command, Hint, Option, from_json
from workbench.host import node_dirs
from workbench.launch import command, mpi_library
from workbench.launch.allocation import Allocation, allocation_hint
from workbench.launch.interface import UNKNOWN, JobState, Launcher
from workbench.launch.launchers import launcher, poller
from workbench.launch.multinode import requested_counts
from workbench.launch.options import ClusterOptions

POLL_INTERVAL_S = 0.05
"""Between two reads of the state of a cluster that is starting."""
_QUEUE_POLL_INTERVAL_S = 0.25
# The head ends a start that misses its deadline, and knows the reason; this is for a head that does not.
_GRACE_S = 5.0


class ClusterStarter:
    """One cluster's job.

    Parameters
    ----------
    record
        The requested cluster, or one that runs already.
    renamable
        Whether the cluster may get another free name if the one in `record` is taken meanwhile.
    attached
        Whether the job was submitted already; it may still be queued.
    requested
        The scheduler that was requested by its name, if any.

    Notes
    -----
    The object of a cluster and the connection to its head share this object: they read the record here, and `update`
    takes what the head sends. All other methods may block for a while: call them off the event loop.
    """

    def __init__(
        self, record: Record, *, renamable: bool, attached: bool = False, requested: str | None = None
    ) -> None:
        self.record = record
        """The latest record of the cluster, from its starter, its head or its folder."""
        self.status = UNKNOWN
        """The latest status of the job from the batch scheduler."""
        self._renamable = renamable
        self.attached = attached
        self._requested = requested
        self._submitted = attached
        self._id = jobs.job_id(record) if attached and jobs.is_batch(record) else None
        # `remove` may run while another thread is still submitting the job.
        self._submitting = threading.Lock()
        self._given_up = False
        self._start_error: WorkbenchError | None = None

    @classmethod
    def of(cls, options: ClusterOptions) -> Self:
        """Return the job of a requested cluster, not submitted yet; raises as `record_of`."""
        return cls(record_of(options), renamable=options.name is None, requested=options.scheduler)

    def update(self, record: Record) -> None:
        """Replace the record by the one that the head has sent."""
        self.record = record

    def note(self) -> str:
        """Return a note for the user about the start."""
        if self.attached:
            return ""
        return allocation_hint(self._requested, self.record.scheduler)

    @command.insisting()
    def submit(self) -> None:
        """Make the cluster's folder and key, and submit its job; once.

        Raises
        ------
        ClusterExists
            If another cluster has the name.
        LaunchError
            If the job was not accepted.
        RecordError
            If the folder cannot be written.
        """
        with self._submitting:
            if self._given_up or self._submitted:
                return
            try:
                self._make_folder()
            except RecordError:
                raise
            except OSError as error:
                raise RecordError(
                    f"cluster {self.record.name!r} cannot be started: {error}. {clusters_folder()} must be a "
                    "folder that you can write to, with free space on its disk.",
                    hint="Check the folder, or set JUPYTER_DATA_DIR to another folder.",
                ) from error
            self._id = self._launcher.submit(job_spec(self.record))
            self._submitted = True
            poller.forget(self.record.scheduler, self._id)
            if self._launcher.batch and not owns_lease(self.record):
                # The cluster was stopped meanwhile, by a process that did not know the job.
                self._launcher.cancel(self._id)

    def _make_folder(self) -> None:
        if self._launcher.batch:
            self.record = self.record.replace(system=self._launcher.system() or "")
        while True:
            try:
                registry.create(self.record)
                break
            except ClusterExists:
                if not self._renamable:
                    raise
                # Another process has taken the name since it was chosen.
                self.record = self.record.replace(name=registry.free_name())
        certificates.make(self.record.folder, self.record.name)
        write_dask_settings(self.record)

    def look(self) -> Record:
        """Return the present record.

        Raises
        ------
        StartError
            If the cluster has failed to start, with the end of the log that has the reason, or was stopped and another
            one has its name.
        StartTimeout
            If it was not ready in time.
        """
        self._read()
        if self.record.state != "failed" and (end := self._job_has_ended()):
            self._read()  # the head may have written why between the two reads
            if self.record.state != "failed":
                stopped = self._was_stopped()
                raise self._failure(stopped or end, head=stopped is None)
        if self.record.state == "failed":
            raise self.failure()
        if self.record.address is None and time.time() > self.record.deadline + _GRACE_S:
            state = f"job {self._id} {jobs.describe(self.status)}" if self._launcher.batch else self.record.state
            raise self._failure(StartTimeout(f"its head was not ready at its deadline ({state})"))
        return self.record

    def _read(self) -> None:
        try:
            record = registry.read(self.record.name)
        except ClusterNotFound:
            record = self.record  # a network file system may show the record late
        except RecordError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            record = self.record  # the file server does not answer, and the job may have waited for days
        if record.id != self.record.id:
            raise StartError(
                f"cluster {self.record.name!r} did not start: the cluster was stopped, and another cluster now has "
                f"its name. The logs are in {self.record.logs}.",
                hint=("Use the other cluster with ", Command("attach", self.record.name), "."),
            )
        self.record = record
        if self._id is None and self._launcher.batch:
            self._id = jobs.job_id(self.record)  # another process has submitted it

    @property
    def _launcher(self) -> Launcher:
        return launcher(self.record.scheduler)

    def _job_has_ended(self) -> StartError | None:
        """Return how the job has ended, or why it will never start; None while it runs or is queued."""
        if self._id is None:
            return self._start_has_ended()
        if not self._launcher.batch:
            finished = self._launcher.statuses([self._id])[self._id].finished
            return StartError("its head ended unexpectedly") if finished else None
        self.status = jobs.of(self.record, poller.status(self.record.scheduler, self._id))
        if self.status.finished:
            return StartError(f"its job {self._id} has ended: {jobs.describe(self.status)}")
        if self.status.hopeless and config.switch("cancel-hopeless"):
            return StartError(
                f"its job {self._id} {self.status.reason}.",
                hint=(
                    "Request less, or pass another ",
                    Option("queue"),
                    ". If nodes are created on demand, set workbench.cancel-hopeless to false.",
                ),
            )
        return None

    def _start_has_ended(self) -> StartError | None:
        """Return how a start by another process has ended, from the note of its end; None while it may go on."""
        if not self.attached or self.record.state in ("ready", "degraded", "restarting"):
            return None
        with contextlib.suppress(OSError):
            end = None if owns_lease(self.record) else ended.of(self.record)
            return None if end is None else StartError(f"{end.reason}.", hint=from_json(end.hint))
        return None

    def _was_stopped(self) -> StartError | None:
        """Return why the cluster was stopped; None if it was not, or this cannot be read."""
        if self._launcher.batch:
            return None  # a `stop` that failed has left the same note; the scheduler knows more
        with contextlib.suppress(RecordError):
            end = ended.last(self.record.name)
            if end is not None and (end.id, end.state) == (self.record.id, ended.STOPPED):
                return StartError(f"{end.reason}.")
        return None

    @property
    def pause(self) -> float:
        """Seconds between two reads: a job may be queued for days, on a file system that others use too."""
        return _QUEUE_POLL_INTERVAL_S if self._launcher.batch and self.record.state == "submitted" else POLL_INTERVAL_S

    def words(self) -> str:
        """Describe the state of the job, and of its world once the job runs."""
        world = "world starting" if self.record.state == "starting" else self.record.state
        if not self._launcher.batch:
            return world
        job = "submitted" if self.status == UNKNOWN else jobs.describe(self.status)
        return f"job {self._id or self.record.job} {job}" + ("" if world == "submitted" else f" · {world}")

    def failure(self) -> StartError:
        """Return why the cluster did not start, from its head or its scheduler."""
        job = jobs.status(self.record) if self._launcher.batch else UNKNOWN
        if job.state in (JobState.TIMEOUT, JobState.CANCELLED):
            # The head knows only that its ranks have died.
            return self._failure(StartError(f"its job {self._id} has ended: {jobs.describe(job)}"))
        error = from_fields(self.record.failure) if self.record.failure else StartError(self.record.message)
        # The last line of the head's log is this reason.
        return self._failure(error, head=False)

    def _failure(self, error: WorkbenchError, *, head: bool = True) -> StartError:
        kind = StartTimeout if isinstance(error, StartTimeout) else StartError
        self._start_error = error
        message = f"cluster {self.record.name!r} did not start: {error.message}"
        return error.converted(kind, message, log=logs.tail(self.record, head=head))

    def runs(self) -> bool:
        """Return whether the cluster may still run."""
        with contextlib.suppress(OSError):
            return owns_lease(self.record) and self.record.process.alive() is not False
        return True

    def await_end(self) -> None:
        """Wait until nothing is left of the cluster; remove what is left after a deadline."""
        if not has_ended(self.record):
            self._note(ended.STOPPED, "the user has closed it")
            self.remove()

    def abandon(self, error: BaseException) -> NoReturn:
        """Remove everything of the cluster, and raise the error that ended its start; a second call only raises.

        Raises
        ------
        SchedulerTimeout
            Instead, if the scheduler does not answer: the record stays then, since a job may exist.
        """
        if self._given_up:
            raise error
        if isinstance(error, WorkbenchError):
            cause = self._start_error or error
            self._note(ended.FAILED, cause.message, cause.hint)
        else:
            self._note(ended.STOPPED, "its start was cancelled")
        try:
            self.remove()
        except LaunchError as no_answer:
            reason = error.message if isinstance(error, WorkbenchError) else str(error) or type(error).__name__
            raise SchedulerTimeout(
                f"{reason} The job of the cluster may have been submitted, and could not be cancelled.",
                hint=(
                    "When the scheduler answers again, search for the cluster with ",
                    Command("list"),
                    ", and stop the cluster with ",
                    Command("stop", self.record.name),
                    ".",
                ),
            ) from no_answer
        raise error

    def _note(self, state: str, reason: str, hint: Hint = ()) -> None:
        with contextlib.suppress(OSError):
            if owns_lease(self.record):  # else it never had a folder, or the folder is another cluster's
                ended.note(self.record, state, reason, hint=hint)

    def remove(self) -> None:
        """Remove everything of the cluster: job, record, key, sockets."""
        with self._submitting:
            self._given_up = True
        if self._launcher.batch:
            end_jobs(self.record)
        elif self._id is not None:
            self._launcher.cancel(self._id)
        tidy(self.record)


def submitted_script(record: Record) -> str:
    """Return the script of a cluster's job as its starter has submitted it.

    Raises
    ------
    ClusterNotFound
        If the cluster has ended.
    """
    try:
        return job_spec(record).script.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ClusterNotFound(
            f"cluster {record.name!r} has ended, and its script was removed. Its logs are in {record.logs}."
        ) from None


def preview(options: ClusterOptions) -> str:
    """Return the job script of `MPICluster` with these options, and in comments below the command line of the world."""
    record = record_of(options)
    mpi = mpi_library.find(record.mpi)
    line = world_line(
        record,
        mpi,
        index=0,
        ranks=record.ranks,
        timeout=record.ready_within,
        shared_memory=node_dirs.shared_memory(record.id, make=False),
        log=logs.of_world(record, 0),
        allocation=_expected_allocation(record),
    )
    variables = {**line.defaults, **line.environment}
    lines = [f"# world 0, started by the head, {mpi}:"]
    lines += [f"#   {name}={value}" for name, value in sorted(variables.items())]
    lines.append(f"#   {shlex.join(line.argv)}")
    scheduler, spec = launcher(record.scheduler), job_spec(record)
    lines += [f"# {notice}" for notice in scheduler.notices(record.resources, record.memory)]
    if verdict := scheduler.test_only(spec):
        lines.append(f"# {scheduler.name} reports: {verdict}")
    return scheduler.script(spec) + "\n".join(lines) + "\n"


def _expected_allocation(record: Record) -> Allocation | None:
    """Return the expected allocation of the job, with placeholders for the names of nodes."""
    if not launcher(record.scheduler).batch:
        return allocation_of(record)
    nodes = record.resources.nodes or 1
    slots = requested_counts(record.ranks, nodes, record.resources.ranks_per_node or record.ranks)
    return Allocation(record.scheduler, "JOB", tuple(f"NODE{i}" for i in range(nodes)), slots)
