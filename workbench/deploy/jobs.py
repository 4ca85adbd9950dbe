"""The jobs of a cluster, from its receipts, its record and its scheduler.

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

from workbench.deploy.job_spec import identity
from workbench.deploy.record import Record, owns_lease
from workbench.errors import LaunchError, SchedulerTimeout
from workbench.hints import Command
from workbench.launch import command, slurm_parse
from workbench.launch.command import settled
from workbench.launch.interface import UNKNOWN, JobState, JobStatus
from workbench.launch.launchers import launcher
from workbench.text import clock

_SEVERAL = " and job "
# A user who waits longer for the end of a job is told so.
_QUIET_S = 3.0


# Bytes at the end of a head's log among which its scheduler's last message is.
_REASON_BYTES = 8192
PUBLISHED_S = 10.0
"""Seconds after a submission in which a scheduler, or a site's cache of its answers, may not know the job yet."""


def is_batch(record: Record) -> bool:
    """Return whether a batch scheduler runs the cluster's jobs."""
    return launcher(record.scheduler).batch


def job_id(record: Record) -> str | None:
    """Return the id of the job that holds head and world 0, or None while it has none."""
    return record.job or _read(record, _receipt(record))


def all_jobs(record: Record, *, certain: bool = False) -> list[str]:
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
        for receipt in _receipts(record):
            _recover(record, receipt)
    known = [record.job, *(world.job for world in record.worlds)]
    return list(dict.fromkeys(job for job in (*known, *(_read(record, path) for path in _receipts(record))) if job))


def is_being_submitted(record: Record) -> bool:
    """Return whether a command that submits a job of the cluster is running."""
    return not all(settled(path) for path in _receipts(record))


def plain(record: Record) -> dict[str, Any]:
    """Return the plain values of a cluster that every list of clusters has."""
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
        "jobs": all_jobs(record) if is_batch(record) else [],
        "ends": record.ends,
        "idle_timeout": record.idle_timeout,
    }


def decides(record: Record) -> bool:
    """Return whether only its job shows how a cluster is: no head runs yet, or none that this host can see."""
    return is_batch(record) and (record.state == "submitted" or record.alive() is None)


def shows_more(record: Record) -> bool:
    """Return whether its job may show more than its record: the job decides, or may be suspended."""
    return is_batch(record) and (record.state == "submitted" or record.alive() is not False)


def shown(record: Record, status: JobStatus) -> tuple[str, str]:
    """Return state and message of a cluster for users, from its record and the status of its job.

    Notes
    -----
    The head of a job that is suspended has written the state of before. A scheduler that does not answer is not named
    for a head that runs on this host.
    """
    if record.state == "submitted" and status.unknown_to_scheduler:
        return "gone", describe(status)
    if (record.state == "submitted" and status.state is not JobState.UNKNOWN) or status.state is JobState.SUSPENDED:
        return status.state.value, describe(status)
    silent = status.state is JobState.UNKNOWN and status.reason and not status.finished
    if record.state != "submitted" and silent and not record.alive():
        return record.state, f"{record.message}; {status.reason}"
    return record.state, record.message


def status(record: Record) -> JobStatus:
    """Ask the scheduler for the status of the job that holds head and world 0."""
    job = job_id(record)
    if job is None and _receipt(record).exists():
        with suppress(LaunchError):
            _recover(record, _receipt(record))
            job = job_id(record)
    return UNKNOWN if job is None else of(record, launcher(record.scheduler).statuses([job]).get(job, UNKNOWN))


@command.answering_soon()
def ask_all(records: Iterable[Record]) -> dict[str, JobStatus]:
    """Return, by the ids of the clusters, the status of the job of each record that has one.

    Notes
    -----
    Each scheduler is asked once for all its jobs.
    """
    pending = [(record, job) for record in records if (job := job_id(record))]
    statuses = {
        scheduler: launcher(scheduler).statuses([job for record, job in pending if record.scheduler == scheduler])
        for scheduler in {record.scheduler for record, _ in pending}
    }
    return {record.id: of(record, statuses[record.scheduler].get(job, UNKNOWN)) for record, job in pending}


def of(record: Record, status: JobStatus) -> JobStatus:
    """Return the status of a job, or UNKNOWN if the job is new, or is not one of the cluster's.

    Notes
    -----
    Several systems may share a home. The scheduler of one does not know the jobs of another, or has given their
    numbers to other jobs.
    """
    if status.unknown_to_scheduler and is_new(_receipt(record)):
        return UNKNOWN
    if (status.state is JobState.UNKNOWN and not status.finished) or _is_job_of(record, status):
        return status
    system = f"{record.system}" if record.system else "another system"
    return JobStatus(JobState.UNKNOWN, f"its job is in the scheduler of {system}")


def is_new(receipt: Path) -> bool:
    """Return whether a scheduler that does not list the job of a receipt may list the job soon."""
    try:
        return abs(time.time() - receipt.stat().st_mtime) < PUBLISHED_S
    except OSError:
        return False


def _is_job_of(record: Record, status: JobStatus) -> bool:
    """Return whether the job is certainly one of the cluster's."""
    if record.id[:8] in status.label:
        return True
    # Some sites remove the comment or the name; names in an earlier version of PBS begin with a letter.
    if status.label and not re.fullmatch(rf"w?{re.escape(record.name)}|(job|world-\d+-\d+)\.sh", status.label):
        return False
    return launcher(record.scheduler).system() == record.system


def alive(record: Record, job_status: JobStatus | None = None) -> bool | None:
    """Return whether the cluster runs, or waits to run; None where this is not known.

    Parameters
    ----------
    job_status
        Status of its job; None: the scheduler is asked.

    Notes
    -----
    The scheduler decides where the record's process is on another host, or is only the starter's.
    """
    process = record.alive()
    if not is_batch(record) or (record.state != "submitted" and process is not None):
        return process
    with command.answering_soon():
        return _alive_by_scheduler(record, job_status)


def _alive_by_scheduler(record: Record, job_status: JobStatus | None) -> bool | None:
    # The receipt is checked first: a command that ends after this check has written the id.
    submitted = settled(_receipt(record))
    if job_id(record) is None:
        # The starter is about to submit the job, was killed before it could, or has failed to.
        starter = record.process.alive()
        if starter or not submitted:
            return starter or None
        try:
            if not all_jobs(record, certain=True):
                return starter
        except LaunchError:
            return None
    job_status = status(record) if job_status is None else job_status
    if job_status.finished:
        return False
    return None if job_status.state is JobState.UNKNOWN else True


def end_reason(record: Record) -> str:
    """Return why the scheduler ends the job of the head, or an empty string if it does not report a reason."""
    if record.job is None:
        return ""
    # Slurm shows a job that is ending without its cause, and has written the cause to the output of the job.
    with suppress(OSError), (record.logs / "head.log").open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _REASON_BYTES))
        if reason := slurm_parse.end_reason(log.read().decode(errors="replace"), record.job):
            return reason
    with command.answering_soon():
        status = of(record, launcher(record.scheduler).statuses([record.job])[record.job])
    return status.reason if status.state.ended or status.state is JobState.COMPLETING else ""


def describe(status: JobStatus) -> str:
    """Describe the status of a job.

    Examples
    --------
    >>> describe(JobStatus(JobState.QUEUED, "waiting for resources"))
    'QUEUED: waiting for resources'
    >>> describe(JobStatus(JobState.HELD, "held by the user"))
    'HELD by the user'
    """
    if status.unknown_to_scheduler:
        return "gone: the scheduler no longer knows the job"
    if status.state is JobState.UNKNOWN and status.reason:
        return status.reason
    name = status.state.name
    text = f"{name}: {status.reason}" if status.reason else name
    if status.reason.startswith(f"{status.state.value} "):
        text = name + status.reason.removeprefix(status.state.value)
    if status.state is JobState.QUEUED and status.start:
        text += f", start expected {clock(status.start)}"
    if status.state is JobState.RUNNING and status.nodes:
        text += f" on {status.nodes}"
    return text


def cancel(record: Record, *, later: bool = False, world: int | None = None) -> None:
    """Cancel all jobs of a cluster, or only those of `later` worlds, or of one `world` of them, in any state.

    The receipts of the jobs of one `world` that have ended are removed.

    Raises
    ------
    LaunchError
        If the scheduler does not cancel a job, or a job is not certainly this cluster's.
    """
    scheduler = launcher(record.scheduler)
    # Inside a job its id may be spelled differently from the one in the receipt.
    kept = {record.job, _read(record, _receipt(record))} if later else set()
    jobs = [job for job in all_jobs(record, certain=True) if job not in kept]
    paths = record.folder.glob("*.job" if world is None else f"world-{world}-*.job")
    receipts = {job: path for path in paths if (job := _read(record, path))}
    if world is not None:
        jobs = [*receipts]
    if not jobs:
        return
    _check_system(record)
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
            raise SchedulerTimeout(f"job {job} is not cancelled, because {reason}.", hint=_again(record))
        if not (status.label and _is_job_of(record, status)):
            raise LaunchError(
                f"job {job} has the label {status.label!r} here, so the job does not belong to cluster "
                f"{record.name!r}, whose jobs are on another system{f' ({record.system})' if record.system else ''}. "
                "The job is not cancelled.",
                hint=f"Stop the cluster on that system, or remove {record.folder} if the cluster has ended.",
            )
        scheduler.cancel(job)


def _check_system(record: Record) -> None:
    system = launcher(record.scheduler).system()
    if record.system and system is None:
        known = all_jobs(record)
        what = f"the end of job {_SEVERAL.join(known)} is not confirmed" if known else "a job may have been submitted"
        raise SchedulerTimeout(
            f"{what}, because the scheduler {record.system} does not answer here.",
            hint=(*_again(record), " If the scheduler is another system's, stop the cluster there."),
        )
    if record.system and system != record.system:
        raise LaunchError(
            f"cluster {record.name!r} has its jobs in the scheduler {record.system}, and here the scheduler is "
            f"{system}.",
            hint=f"Stop the cluster on that system, or remove {record.folder} if the cluster has ended.",
        )


def _again(record: Record) -> tuple[str | Command, ...]:
    return "When the scheduler answers, run ", Command("stop", record.name), " again."


def wait_finished(record: Record, timeout: float) -> list[str]:
    """Wait until all jobs of a cluster have ended; return those that have not after `timeout` seconds.

    Raises
    ------
    SchedulerTimeout
        If the scheduler does not answer.
    """
    scheduler, answered = launcher(record.scheduler), time.monotonic()
    left, pause, deadline, told_at = all_jobs(record), 0.1, answered + timeout, answered + _QUIET_S
    if record.system and scheduler.system() not in (None, record.system):
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
                hint=_again(record),
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


def _recover(record: Record, receipt: Path) -> None:
    """Look for the job of a submission without an answer, and write its id to the receipt."""
    if settled(receipt) and _read(record, receipt) is None:
        _check_system(record)
        job = launcher(record.scheduler).find(identity(record, receipt.stem), record.name)
        if job is not None:
            try:
                receipt.write_text(f"{job}\n", encoding="utf-8")
            except OSError as error:
                raise LaunchError(
                    f"job {job} was found, but its id cannot be written to {receipt}: {error}.",
                    hint="Check the free space of the disk and your quota.",
                ) from error


def _receipts(record: Record) -> list[Path]:
    """Return the receipts of all jobs of the cluster; its folder may have become another cluster's."""
    with suppress(OSError):  # while the file server does not answer, the folder is taken as this cluster's
        if not owns_lease(record):
            return []
    return sorted(record.folder.glob("*.job"))


def _receipt(record: Record) -> Path:
    return record.folder / "job.job"


def _read(record: Record, path: Path) -> str | None:
    try:
        return launcher(record.scheduler).receipt(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
