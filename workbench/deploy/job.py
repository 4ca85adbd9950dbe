"""The handle of a cluster and of its jobs, from its folder, its record and its scheduler.

A receipt (``job.job``, ``world-1-1.job``) is a file beside the record, to which the command of the scheduler itself
writes the id of a job, in a separate session: the id is known also if the submitting process is killed. The command
locks the receipt until it ends, so a pending id is visible. A job that was accepted without an id is found by its
comment or its name, which has the id of the cluster.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench import config, hints
from workbench.deploy import ended, logs
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job_spec import identity, job_spec, job_stem
from workbench.deploy.record import Record
from workbench.errors import (
    LaunchError,
    RecordError,
    SchedulerTimeout,
    StartError,
    StartTimeout,
    WorkbenchError,
    from_fields,
)
from workbench.hints import Command, Hint, Option
from workbench.launch import command
from workbench.launch.command import settled
from workbench.launch.interface import UNKNOWN, JobState, JobStatus, describe
from workbench.launch.launchers import launcher, poller

_SEVERAL = " and job "
# After this time a message says that the end of a job is awaited.
_QUIET_S = 3.0
# Bytes at the end of a head's log among which its scheduler's last message is.
_REASON_BYTES = 8192
PUBLISHED_S = 10.0
"""Seconds after a submission in which a scheduler, or a site's cache of its answers, may not know the job yet."""
POLL_INTERVAL_S = 0.05
"""Seconds between two reads of the state of a cluster that is starting."""
_QUEUE_POLL_INTERVAL_S = 0.25
# The head ends a start that misses its deadline, and knows the reason; this is for a head that does not.
_GRACE_S = 5.0


class ClusterJob:
    """The handle of one cluster, in any state.

    The default of the folder is that of the record. The object of a cluster and the connection to its head share this
    handle: they read the record here, and the connection replaces the record by the one that the head sends. The
    methods may block for a while: call them off the event loop.
    """

    def __init__(self, record: Record, folder: ClusterFolder | None = None) -> None:
        self.record = record
        """The latest record of the cluster, from its starter, its head or its folder."""
        self.folder = folder or ClusterFolder.of(record)
        """The folder of the cluster."""
        self.launcher = launcher(record.scheduler)
        """The launcher of the job."""
        self.status = UNKNOWN
        """The latest status of the job from the batch scheduler."""
        self.start_error: WorkbenchError | None = None
        """Why the start has failed, without the log; None if it has not."""
        # Id of the job, or of the process that this process has started as the job; None: not known yet.
        self._id: str | None = None

    @property
    def batch(self) -> bool:
        """Whether a batch scheduler runs the jobs of the cluster."""
        return self.launcher.batch

    # -- start -------------------------------------------------------------------------------------------------

    def poll(self) -> Record:
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
            state = f"job {self._id} {describe(self.status)}" if self.batch else self.record.state
            raise self._failure(StartTimeout(f"its head was not ready at its deadline ({state})"))
        return self.record

    def _read(self) -> None:
        try:
            record = self.folder.read()
        except FileNotFoundError:
            record = self.record  # a network file system may show the record late
        except RecordError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            record = self.record  # the file server does not answer, and the job may have waited for days
        if record.id != self.record.id:
            raise StartError(
                f"cluster {self.record.name!r} did not start: the cluster was stopped, and another cluster now has "
                f"its name. The logs are in {self.folder.logs}.",
                hint=("Use the other cluster with ", Command("attach", self.record.name), "."),
            )
        self.record = record
        if self._id is None and self.batch:
            self._id = self.job_id()  # another process has submitted it

    def _job_has_ended(self) -> StartError | None:
        """Return how the job has ended, or why it will never start; None while it runs or is queued."""
        if self._id is None:
            return self._start_has_ended()
        if not self.batch:
            finished = self.launcher.statuses([self._id])[self._id].finished
            return StartError("its head ended unexpectedly") if finished else None
        self.status = self.verified(poller.status(self.record.scheduler, self._id))
        if self.status.finished:
            return StartError(f"its job {self._id} has ended: {describe(self.status)}")
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
        """Return how a start by another process has ended, from the note of its end; None before the end."""
        if self.record.state in ("ready", "degraded", "restarting"):
            return None
        with suppress(OSError):
            end = None if self.folder.owns_lease() else self.folder.end()
            return None if end is None else StartError(f"{end.reason}.", hint=hints.from_json(end.hint))
        return None

    def _was_stopped(self) -> StartError | None:
        """Return why the cluster was stopped; None if it was not, or this cannot be read."""
        if self.batch:
            return None  # a `stop` that failed has left the same note; the scheduler knows more
        end = self.folder.end()
        return StartError(f"{end.reason}.") if end is not None and end.state == ended.STOPPED else None

    @property
    def pause(self) -> float:
        """Seconds between two reads: a job may be queued for days, on a file system that others use too."""
        return _QUEUE_POLL_INTERVAL_S if self.batch and self.record.state == "submitted" else POLL_INTERVAL_S

    def description(self) -> str:
        """Describe the state of the job, and of its world once the job runs."""
        world = "world starting" if self.record.state == "starting" else self.record.state
        if not self.batch:
            return world
        job = "submitted" if self.status == UNKNOWN else describe(self.status)
        return f"job {self._id or self.record.job} {job}" + ("" if world == "submitted" else f" · {world}")

    def failure(self) -> StartError:
        """Return why the cluster did not start, from its head or its scheduler."""
        job = self.ask_status() if self.batch else UNKNOWN
        if job.state in (JobState.TIMEOUT, JobState.CANCELLED):
            # The head knows only that its ranks have died.
            return self._failure(StartError(f"its job {self._id or self.record.job} has ended: {describe(job)}"))
        error = from_fields(self.record.failure) if self.record.failure else StartError(self.record.message)
        # The last line of the head's log is this reason.
        return self._failure(error, head=False)

    def _failure(self, error: WorkbenchError, *, head: bool = True) -> StartError:
        kind = StartTimeout if isinstance(error, StartTimeout) else StartError
        self.start_error = error
        message = f"cluster {self.record.name!r} did not start: {error.message}"
        return error.converted(kind, message, log=logs.tail(self.folder.logs, head=head))

    # -- state -------------------------------------------------------------------------------------------------

    def runs(self) -> bool:
        """Return whether the cluster may still run."""
        with suppress(OSError):
            return self.folder.owns_lease() and self.record.process.alive() is not False
        return True

    def job_id(self) -> str | None:
        """Return the id of the job that holds the head, or None while it has none."""
        return self.record.job or self._read_receipt(self._receipt)

    def all_jobs(self, *, certain: bool = False) -> list[str]:
        """Return the known ids of all jobs of a cluster, also of those that have just been submitted.

        Parameters
        ----------
        certain
            Have the scheduler look for jobs whose id was never received.

        Raises
        ------
        LaunchError
            With `certain`, if such a job may exist, and the scheduler does not answer or is not the one with the job.
        """
        if certain:
            for receipt in self._receipts():
                self._recover(receipt)
        known = [self.record.job, *(each.job for each in (self.record.world, self.record.next) if each)]
        received = (self._read_receipt(path) for path in self._receipts())
        return list(dict.fromkeys(job for job in (*known, *received) if job))

    def is_being_submitted(self) -> bool:
        """Return whether a command that submits a job of the cluster is running."""
        return not all(settled(path) for path in self._receipts())

    def plain(self) -> dict[str, Any]:
        """Return the plain values of a cluster that every list of clusters has."""
        record = self.record
        return {
            "name": record.name,
            "state": record.state,
            "message": record.message,
            "up": record.up,
            "ranks": record.total,
            "threads": record.threads,
            "scheduler": record.scheduler,
            "host": record.process.host,
            "nodes": record.resources.nodes,
            "jobs": self.all_jobs() if self.batch else [],
            "ends": record.ends,
            "idle_timeout": record.idle_timeout,
        }

    def decides(self) -> bool:
        """Return whether only its job shows how a cluster is: no head runs yet, or none that this host can see."""
        return self.batch and (self.record.state == "submitted" or self.record.alive() is None)

    def shows_more(self) -> bool:
        """Return whether its job may show more than its record: the job decides, or may be suspended."""
        return self.batch and (self.record.state == "submitted" or self.record.alive() is not False)

    def shown(self, status: JobStatus) -> tuple[str, str]:
        """Return state and message of a cluster for users, from its record and the status of its job.

        Notes
        -----
        The head of a job that is suspended has written the state of before. A scheduler that does not answer is not
        named for a head that runs on this host.
        """
        record, submitted = self.record, self.record.state == "submitted"
        if submitted and status.unknown_to_scheduler:
            return "gone", describe(status)
        if (submitted and status.state is not JobState.UNKNOWN) or status.state is JobState.SUSPENDED:
            return status.state.value, describe(status)
        silent = status.state is JobState.UNKNOWN and status.reason and not status.finished
        if not submitted and silent and not record.alive():
            return record.state, f"{record.message}; {status.reason}"
        return record.state, record.message

    def ask_status(self) -> JobStatus:
        """Ask the scheduler for the status of the job that holds the head."""
        job = self.job_id()
        if job is None and self._receipt.exists():
            with suppress(LaunchError):
                self._recover(self._receipt)
                job = self.job_id()
        return UNKNOWN if job is None else self.verified(self.launcher.statuses([job]).get(job, UNKNOWN))

    def verified(self, status: JobStatus) -> JobStatus:
        """Return the status of a job, or UNKNOWN if the job is new, or is not one of the cluster's.

        Notes
        -----
        Several systems may share a home. The scheduler of one does not know the jobs of another, or has given their
        numbers to other jobs.
        """
        if status.unknown_to_scheduler and is_new(self._receipt):
            return UNKNOWN
        if (status.state is JobState.UNKNOWN and not status.finished) or self._is_job_of(status):
            return status
        system = f"{self.record.system}" if self.record.system else "another system"
        return JobStatus(JobState.UNKNOWN, f"its job is in the scheduler of {system}")

    def _is_job_of(self, status: JobStatus) -> bool:
        """Return whether the job is certainly one of the cluster's."""
        if self.record.id[:8] in status.label:
            return True
        # Some sites remove the comment or the name; names in an earlier version of PBS begin with a letter.
        name = re.escape(self.record.name)
        if status.label and not re.fullmatch(rf"w?{name}|(job|world-\d+-\d+)\.sh", status.label):
            return False
        return self.launcher.system() == self.record.system

    def alive(self, job_status: JobStatus | None = None) -> bool | None:
        """Return whether the cluster runs, or waits to run; None where this is not known.

        Parameters
        ----------
        job_status
            Status of its job; None: the scheduler is asked.

        Notes
        -----
        The scheduler decides where the record's process is on another host, or is only the starter's.
        """
        alive = self.record.alive()
        if self.batch and (self.record.state == "submitted" or alive is None):
            with command.answering_soon():
                alive = self._alive_by_scheduler(job_status)
        # Its next job may be about to continue a cluster whose head was killed.
        if alive is False and (following := self.following()) is not None and following.job_id() is not None:
            return following.alive()
        return alive

    def is_continued(self) -> bool:
        """Return whether another job continues the cluster after the job of this record, whose head has ended."""
        return self.has_moved() or (self.following() is not None and self.alive() is not False)

    def has_moved(self) -> bool:
        """Return whether the record is that of another head than the one of this record, or of a job that is queued."""
        if not (self.batch and (self.record.resubmit or self.record.turn)):
            return False
        with suppress(OSError, RecordError):
            before, now = self.record, self.folder.read()
            return now.id == before.id and (now.turn, now.process) != (before.turn, before.process)
        return False

    def following(self) -> ClusterJob | None:
        """Return the handle of the next job of the cluster, or None if no job follows this one."""
        record = self.record.in_job(self.record.turn + 1) if self.batch else None
        return None if record is None else ClusterJob(record, self.folder)

    def submit_following(self) -> str:
        """Submit the next job of the cluster, which begins after the present one, and return its id.

        A job that was put back into its queue finds the next one there.

        Raises
        ------
        LaunchError
            If the scheduler does not accept the job.
        """
        following = self.following()
        if following is None:
            raise LaunchError(f"no job follows the present one of cluster {self.record.name!r}.")
        known = following.job_id()
        if known is not None and not following.ask_status().finished:
            return known
        return self.launcher.submit(job_spec(following.record, self.folder, after=str(self.job_id())))

    def cause_of_end(self) -> str:
        """Return why the scheduler ends the job of the head without a request of its user; empty if it does not."""
        with suppress(OSError), (self.folder.logs / "head.log").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _REASON_BYTES))
            return self.launcher.end_reason(log.read().decode(errors="replace"), str(self.record.job))
        return ""

    def _alive_by_scheduler(self, job_status: JobStatus | None) -> bool | None:
        # The receipt is checked first: a command that ends after this check has written the id.
        submitted = settled(self._receipt)
        if self.job_id() is None:
            # The starter is about to submit the job, was killed before it could, or has failed to.
            starter = self.record.process.alive()
            if starter or not submitted:
                return starter or None
            try:
                if not self.all_jobs(certain=True):
                    return starter
            except LaunchError:
                return None
        job_status = self.ask_status() if job_status is None else job_status
        if job_status.finished:
            return False
        return None if job_status.state is JobState.UNKNOWN else True

    # -- end ---------------------------------------------------------------------------------------------------

    def end_reason(self) -> str:
        """Return why the scheduler ends the job of the head, or an empty string if it does not report a reason."""
        if self.record.job is None:
            return ""
        # Slurm shows a job that is ending without its cause, and has written the cause to the output of the job.
        if cause := self.cause_of_end():
            return cause
        with command.answering_soon():
            status = self.verified(self.launcher.statuses([self.record.job])[self.record.job])
        return status.reason if status.state.ended or status.state is JobState.COMPLETING else ""

    def note(self, state: str, reason: str, hint: Hint = ()) -> None:
        """Note how the cluster ends, if the folder is this cluster's; a note that exists stays."""
        with suppress(OSError):
            if self.folder.owns_lease():
                self.folder.note(self.record, state, reason, hint=hint)

    def note_end(self, status: JobStatus | None = None) -> None:
        """Note how the cluster has ended if its head could not; without a status of its job the scheduler is asked."""
        if self.folder.end_note.exists():
            return
        record = self.record
        if record.state in ("closing", "failed"):
            state = ended.ENDED if record.state == "closing" else ended.FAILED
            hint = hints.from_json(record.failure.get("hint", ()))
            self.folder.note(record, state, record.message, hint=hint)
            return
        status = UNKNOWN if status is None else status
        if self.batch and not status.finished:
            status = self.ask_status()
        self.folder.note(record, ended.FAILED, self.why_gone(status), status.end if status.finished else None)

    def why_gone(self, status: JobStatus) -> str:
        """Describe, by the status of its job, the end of a cluster whose head has written no reason."""
        if status.finished:
            return f"its job {self.job_id()} has ended: {describe(status)}"
        if self.record.state == "submitted":
            return "its start was canceled"
        return f"its head, process {self.record.process.pid} on {self.record.process.host}, was killed or crashed"

    def cancel(self, *, later: bool = False, world: int | None = None) -> None:
        """Cancel all jobs of a cluster, or only the `later` ones, or only those of one `world`, in any state.

        The receipts of the jobs of one `world` that have ended are removed.

        Raises
        ------
        LaunchError
            If the scheduler does not cancel a job, or a job is not certainly this cluster's.
        """
        scheduler = self.launcher
        # Inside a job its id may be spelled differently from the one in the receipt.
        kept = {self.record.job, self._read_receipt(self._receipt)} if later else set()
        jobs = [job for job in self.all_jobs(certain=True) if job not in kept]
        paths = self.folder.path.glob("*.job" if world is None else f"world-{world}-*.job")
        receipts = {job: path for path in paths if (job := self._read_receipt(path))}
        if world is not None:
            jobs = [*receipts]
        if not jobs:
            return
        self._check_system()
        for job, status in scheduler.statuses(jobs).items():
            if status.unknown_to_scheduler and job in receipts and is_new(receipts[job]):
                scheduler.cancel(job)
                continue
            if status.finished:
                if world is not None:
                    receipts[job].unlink(missing_ok=True)
                continue
            if status.state is JobState.UNKNOWN:
                reason = status.reason or "the scheduler does not report the owner of the job"
                raise SchedulerTimeout(f"job {job} is not canceled, because {reason}.", hint=self._again(), given=job)
            if not (status.label and self._is_job_of(status)):
                system = f" ({self.record.system})" if self.record.system else ""
                raise LaunchError(
                    f"job {job} has the label {status.label!r} here, so the job does not belong to cluster "
                    f"{self.record.name!r}, whose jobs are on another system{system}. The job is not canceled.",
                    given=job,
                    hint=f"Stop the cluster on that system, or remove {self.folder.path} if the cluster has ended.",
                )
            scheduler.cancel(job)

    def _check_system(self) -> None:
        expected, system = self.record.system, self.launcher.system()
        if expected and system is None:
            known = self.all_jobs()
            end = f"the end of job {_SEVERAL.join(known)} is not confirmed"
            raise SchedulerTimeout(
                f"{end if known else 'a job may have been submitted'}, because the scheduler {expected} does not "
                "answer here.",
                hint=(*self._again(), " If the scheduler is another system's, stop the cluster there."),
            )
        if expected and system != expected:
            raise LaunchError(
                f"cluster {self.record.name!r} has its jobs in the scheduler {expected}, and here the scheduler is "
                f"{system}.",
                given=system,
                hint=f"Stop the cluster on that system, or remove {self.folder.path} if the cluster has ended.",
            )

    def _again(self) -> tuple[str | Command, ...]:
        return "When the scheduler answers, run ", Command("stop", self.record.name), " again."

    def end_process(self) -> None:
        """End the process that this process has started as the job, if any."""
        if self._id is not None:
            self.launcher.cancel(self._id)

    def wait_finished(self, timeout: float) -> list[str]:
        """Wait until all jobs of a cluster have ended; return those that have not after `timeout` seconds.

        Raises
        ------
        SchedulerTimeout
            If the scheduler does not answer.
        """
        scheduler, answered = self.launcher, time.monotonic()
        left, pause, deadline, told_at = self.all_jobs(), 0.1, answered + timeout, answered + _QUIET_S
        if self.record.system and scheduler.system() not in (None, self.record.system):
            return []  # this system does not know the jobs; their head has ended them
        while left:
            statuses = scheduler.statuses(left)
            left = [job for job in left if not statuses.get(job, UNKNOWN).finished]
            silent = [status.reason for job in left if (status := statuses.get(job, UNKNOWN)).state is JobState.UNKNOWN]
            if len(silent) < len(left):
                answered = time.monotonic()
            elif left and (command.found_silence() or time.monotonic() - answered >= command.silence_limit()):
                reason = silent[0] or "the scheduler does not report their states"
                raise SchedulerTimeout(
                    f"the end of job {_SEVERAL.join(left)} is not confirmed, because {reason}.",
                    hint=self._again(),
                )
            if time.monotonic() > deadline:
                break
            if left:
                if time.monotonic() > told_at:
                    command.say(f"waiting for the end of job {_SEVERAL.join(left)}, which the scheduler still shows")
                    told_at = deadline
                time.sleep(pause)
                pause = min(1.4 * pause, 2.0)
        return left

    # -- receipts ----------------------------------------------------------------------------------------------

    def _recover(self, receipt: Path) -> None:
        """Look for the job of a submission without an answer, and write its id to the receipt."""
        if settled(receipt) and self._read_receipt(receipt) is None:
            self._check_system()
            job = self.launcher.find(identity(self.record, receipt.stem), self.record.name)
            if job is not None:
                try:
                    receipt.write_text(f"{job}\n", encoding="utf-8")
                except OSError as error:
                    raise LaunchError(
                        f"job {job} was found, but its id cannot be written to {receipt}: {error}.",
                        hint="Check the free space of the disk and your quota.",
                    ) from error

    def _receipts(self) -> list[Path]:
        """Return the receipts of all jobs of the cluster; its folder may have become another cluster's."""
        with suppress(OSError):  # while the file server does not answer, the folder is taken as this cluster's
            if not self.folder.owns_lease():
                return []
        return sorted(self.folder.path.glob("*.job"))

    @property
    def _receipt(self) -> Path:
        return self.folder.path / f"{job_stem(self.record)}.job"

    def _read_receipt(self, path: Path) -> str | None:
        try:
            return self.launcher.receipt(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return None


@command.answering_soon()
def ask_all(jobs: Iterable[ClusterJob]) -> dict[str, JobStatus]:
    """Return, by the ids of the clusters, the status of the job of each cluster that has one.

    Notes
    -----
    Each scheduler is asked once for all its jobs.
    """
    pending = [(job, number) for job in jobs if (number := job.job_id())]
    statuses: dict[str, JobStatus] = {}
    for scheduler in {job.record.scheduler for job, _ in pending}:
        own = [(job, number) for job, number in pending if job.record.scheduler == scheduler]
        answers = launcher(scheduler).statuses([number for _, number in own])
        statuses |= {job.record.id: job.verified(answers.get(number, UNKNOWN)) for job, number in own}
    return statuses


def is_new(receipt: Path) -> bool:
    """Return whether a scheduler that does not list the job of a receipt may list the job soon."""
    try:
        return abs(time.time() - receipt.stat().st_mtime) < PUBLISHED_S
    except OSError:
        return False
