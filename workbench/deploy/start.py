"""The job of a cluster as its starter sees it: submit it, look how it comes up."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import NoReturn, Self

from workbench import config
from workbench.deploy import certificates, ended, jobs, logs, registry
from workbench.deploy.dask_settings import write_dask_settings
from workbench.deploy.job_spec import job_spec
from workbench.deploy.registry import Record
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
from workbench.hints import NOTEBOOK, Command, Option
from workbench.launch.allocation import allocation_hint
from workbench.launch.interface import UNKNOWN, JobState, Launcher
from workbench.launch.launchers import launcher
from workbench.launch.options import ClusterOptions
from workbench.launch.poller import poller

# Seconds between two looks at a cluster that is starting.
LOOK = 0.05
_QUEUED = 0.25
# Seconds: the head sees to the deadline of a start itself and knows more; this is for a head that does not.
_GRACE = 5.0


class ClusterStarter:
    """One cluster's job.

    Parameters
    ----------
    record
        The cluster that is asked for, or one that runs already.
    renamable
        Whether another free name will do, if the one in `record` is taken meanwhile.
    attached
        Whether it was submitted already, and may wait in its queue.
    asked
        The scheduler that was asked for by its name, if one was.

    Notes
    -----
    The object of a cluster and the connection to its head share this object: they read the record here, and `update`
    takes what the head sends. All other methods may block for a while: call them off the event loop.
    """

    def __init__(self, record: Record, *, renamable: bool, attached: bool = False, asked: str | None = None) -> None:
        self.record = record
        """The cluster, as its starter, its head or its folder last had it."""
        self.status = UNKNOWN
        """What the batch scheduler last told of the job."""
        self._renamable = renamable
        self.attached = attached
        self._asked = asked
        self._submitted = attached
        self._id = jobs.job_id(record) if attached and jobs.is_batch(record) else None
        # A start can be given up while another thread is still submitting it.
        self._submitting = threading.Lock()
        self._given_up = False
        # Why the cluster did not start.
        self._why: WorkbenchError | None = None

    @classmethod
    def of(cls, given: ClusterOptions) -> Self:
        """Return the job of a cluster that is asked for, not submitted yet; raises as `record_of`."""
        return cls(record_of(given), renamable=given.name is None, asked=given.scheduler)

    def update(self, record: Record) -> None:
        """Take the record that the head has sent."""
        self.record = record

    def note(self) -> str:
        """Return what its starter should know ahead of the start."""
        if self.attached:
            return ""
        if self.record.fault_tolerant and self.record.spread:
            return "fault tolerant: between nodes the ranks' messages go by TCP, since ULFM has no faster network"
        return allocation_hint(self._asked, self.record.scheduler)

    def submit(self) -> None:
        """Make the cluster's folder and key, and hand its job to the launcher; once.

        Raises
        ------
        ClusterExists
            If there is a cluster of that name.
        LaunchError
            If the job was not taken.
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
                    f"cluster {self.record.name!r} cannot be started: {registry.clusters_folder()} has to be a folder "
                    f"that you can write to, with room on its disk, but: {error}.",
                    hint="Make it so, or set JUPYTER_DATA_DIR to another folder.",
                ) from error
            self._id = self._launcher.submit(job_spec(self.record))
            self._submitted = True
            poller.forget(self.record.scheduler, self._id)
            if self._launcher.batch and not registry.owns_lease(self.record):
                # Somebody has stopped it meanwhile, and could not know of the job.
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
                # Another process has taken the name that was free a moment ago.
                self.record = self.record.replace(name=registry.free_name())
        certificates.make(self.record.folder, self.record.name)
        write_dask_settings(self.record)

    def look(self) -> Record:
        """Return the record as it is now.

        Raises
        ------
        StartError
            If the cluster has failed to start, with the end of the log that tells why, or was stopped and another one
            has its name.
        StartTimeout
            If it has not come up in time.
        """
        self._read()
        if self.record.state != "failed" and (end := self._job_has_ended()):
            self._read()  # it may have spoken between the two looks
            if self.record.state != "failed":
                stopped = self._was_stopped()
                raise self._failure(stopped or end, head=stopped is None)
        if self.record.state == "failed":
            raise self.failure()
        if self.record.address is None and time.time() > self.record.deadline + _GRACE:
            waited = f"job {self._id} {jobs.words(self.status)}" if self._launcher.batch else self.record.state
            raise self._failure(StartTimeout(f"its head was not ready at its deadline ({waited})"))
        return self.record

    def _read(self) -> None:
        with contextlib.suppress(ClusterNotFound):  # a network file system may show it late
            record = registry.read(self.record.name)
            if record.id != self.record.id:
                raise StartError(
                    f"cluster {self.record.name!r} did not start: it was stopped, and another cluster has its name "
                    f"now. The logs are in {self.record.logs}.",
                    hint=("Use that one with ", Command("attach", self.record.name), "."),
                )
            self.record = record
        if self._id is None and self._launcher.batch:
            self._id = jobs.job_id(self.record)  # another process has submitted it

    @property
    def _launcher(self) -> Launcher:
        return launcher(self.record.scheduler)

    def _job_has_ended(self) -> StartError | None:
        """Return how the job has ended, or why it never starts; None while it runs or waits."""
        if self._id is None:
            return None
        if not self._launcher.batch:
            over = self._launcher.statuses([self._id])[self._id].finished
            return StartError("its head ended unexpectedly") if over else None
        self.status = jobs.of(self.record, poller.status(self.record.scheduler, self._id))
        if self.status.finished:
            return StartError(f"its job {self._id} has ended: {jobs.words(self.status)}")
        if self.status.hopeless and config.get("cancel-hopeless"):
            return StartError(
                f"its job {self._id} {self.status.reason}.",
                hint=(
                    "Ask for less, or for another ",
                    Option("queue"),
                    "; where nodes are made on demand, set workbench.cancel-hopeless to false.",
                ),
            )
        return None

    def _was_stopped(self) -> StartError | None:
        """Return that somebody has stopped the cluster; None if nobody has, or that cannot be read."""
        if self._launcher.batch:
            return None  # whoever could not stop it has noted the same, and the scheduler knows
        with contextlib.suppress(RecordError):
            its = ended.last(self.record.name)
            if its is not None and (its.id, its.state) == (self.record.id, ended.STOPPED):
                return StartError(f"{its.reason}.")
        return None

    @property
    def pause(self) -> float:
        """Seconds until the next look makes sense: a job may wait for days, on a file system that others use too."""
        return _QUEUED if self._launcher.batch and self.record.state == "submitted" else LOOK

    def words(self) -> str:
        """Return what is known of the start: of the job, and once it runs of its world."""
        its = "world starting" if self.record.state == "starting" else self.record.state
        if not self._launcher.batch:
            return its
        state = "" if self.record.state == "submitted" else f" · {its}"
        told = "submitted" if self.status == UNKNOWN else jobs.words(self.status)
        return f"job {self._id or self.record.job} {told}{state}"

    def failure(self) -> StartError:
        """Return the error that says why the cluster did not start, as its head or its scheduler tells."""
        told = jobs.status(self.record) if self._launcher.batch else UNKNOWN
        if told.state in (JobState.TIMEOUT, JobState.CANCELLED):
            # The head sees only that its ranks die.
            return self._failure(StartError(f"its job {self._id} has ended: {jobs.words(told)}"))
        why = from_fields(self.record.failure) if self.record.failure else StartError(self.record.message)
        # The last word of the head's log is this reason.
        return self._failure(why, head=False)

    def _failure(self, why: WorkbenchError, *, head: bool = True) -> StartError:
        kind = StartTimeout if isinstance(why, StartTimeout) else StartError
        self._why = why
        message = f"cluster {self.record.name!r} did not start: {why.message}"
        return why.retold(kind, message, log=logs.tail(self.record, head=head))

    def runs(self) -> bool:
        """Tell whether the cluster may still be there."""
        with contextlib.suppress(OSError):
            return registry.owns_lease(self.record) and self.record.process.alive() is not False
        return True

    def await_end(self) -> None:
        """Return when nothing is left of the cluster; after a deadline, see to it."""
        if not has_ended(self.record):
            self._note(ended.STOPPED, "the user has closed it")
            self.remove()

    def abandon(self, error: BaseException) -> NoReturn:
        """Leave nothing of the cluster, and raise the error for which it is given up; again it raises the error alone.

        Raises
        ------
        SchedulerTimeout
            Instead, if the scheduler does not answer: the record stays then, since there may be a job.
        """
        if self._given_up:
            raise error
        if isinstance(error, WorkbenchError):
            self._note(ended.FAILED, (self._why or error).words(NOTEBOOK))
        else:
            self._note(ended.STOPPED, "its start was given up")
        try:
            self.remove()
        except LaunchError as silence:
            why = error.message if isinstance(error, WorkbenchError) else str(error) or type(error).__name__
            raise SchedulerTimeout(
                f"{why} Its job may have been taken, and could not be cancelled.",
                hint=(
                    "When the scheduler answers again, look for it with ",
                    Command("list"),
                    ", and end it with ",
                    Command("stop", self.record.name),
                    ".",
                ),
            ) from silence
        raise error

    def _note(self, state: str, reason: str) -> None:
        with contextlib.suppress(OSError):
            if registry.owns_lease(self.record):  # else it was refused before it was anything, or is another's
                ended.note(self.record, state, reason)

    def remove(self) -> None:
        """Leave nothing of the cluster: job, record, key, sockets."""
        with self._submitting:
            self._given_up = True
        if self._launcher.batch:
            end_jobs(self.record)
        elif self._id is not None:
            self._launcher.cancel(self._id)
        tidy(self.record)


def submitted_script(record: Record) -> str:
    """Return the script of a cluster's job as its starter has submitted it, whichever Python asks.

    Raises
    ------
    ClusterNotFound
        If the cluster has ended.
    """
    try:
        return job_spec(record).script.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ClusterNotFound(
            f"cluster {record.name!r} has ended, and its script with it. Its logs are in {record.logs}."
        ) from None
