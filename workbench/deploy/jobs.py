"""The jobs of a cluster as anybody of the user's processes can see them: by receipt, record and scheduler."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.deploy.job_spec import identity
from workbench.deploy.lease import owns_lease
from workbench.deploy.record import Record
from workbench.errors import LaunchError, SchedulerTimeout
from workbench.launch.command import settled
from workbench.launch.interface import UNKNOWN, JobState, JobStatus
from workbench.launch.launchers import launcher
from workbench.text import clock


def is_batch(record: Record) -> bool:
    """Tell whether the cluster's jobs are a batch scheduler's."""
    return launcher(record.scheduler).batch


def job_id(record: Record) -> str | None:
    """Return the id of the job that holds head and world 0, or None while it has none."""
    return record.job or _read(record, _receipt(record))


def all_jobs(record: Record, *, certain: bool = False) -> list[str]:
    """Return the ids of all jobs of a cluster that are known, also of those that were submitted a moment ago.

    Parameters
    ----------
    certain
        Have the scheduler look for jobs whose id was never heard.

    Raises
    ------
    LaunchError
        With `certain`, if it does not answer, or the cluster has its jobs in another one.
    """
    if certain:
        _check_system(record)
        for receipt in _receipts(record):
            _recover(record, receipt)
    known = [record.job, *(world.job for world in record.worlds)]
    return list(dict.fromkeys(job for job in (*known, *(_read(record, path) for path in _receipts(record))) if job))


def is_being_submitted(record: Record) -> bool:
    """Tell whether a command that submits a job of the cluster runs just now."""
    return not all(settled(path) for path in _receipts(record))


def plain(record: Record) -> dict[str, Any]:
    """Return what every list of clusters has of one, as plain values."""
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


def status(record: Record) -> JobStatus:
    """Return what the scheduler tells of the job that holds head and world 0, asked now."""
    job = job_id(record)
    if job is None and _receipt(record).exists():
        with suppress(LaunchError):
            _recover(record, _receipt(record))
            job = job_id(record)
    return UNKNOWN if job is None else of(record, launcher(record.scheduler).statuses([job]).get(job, UNKNOWN))


def ask_all(records: Iterable[Record]) -> dict[str, JobStatus]:
    """Return the status of the job of each cluster of which only its scheduler knows, by the ids of the clusters.

    Notes
    -----
    Each scheduler is asked once, for all of them.
    """
    asked = [
        (record, job)
        for record in records
        if is_batch(record) and (record.state == "submitted" or record.alive() is None) and (job := job_id(record))
    ]
    told = {
        scheduler: launcher(scheduler).statuses([job for record, job in asked if record.scheduler == scheduler])
        for scheduler in {record.scheduler for record, _ in asked}
    }
    return {record.id: of(record, told[record.scheduler].get(job, UNKNOWN)) for record, job in asked}


def of(record: Record, told: JobStatus) -> JobStatus:
    """Return what a scheduler tells of a job of the cluster, or that it is unknown, if the job is another cluster's.

    Notes
    -----
    Several systems may share a home. The scheduler of one does not know the jobs of another, or has given their
    numbers to other jobs.
    """
    if told.state is JobState.UNKNOWN and not told.finished:
        return told
    if _is_its(record, told):
        return told
    where = f"of {record.system}" if record.system else "of the system that it was submitted to"
    return JobStatus(JobState.UNKNOWN, f"the scheduler {where} has its job; ask there")


def _is_its(record: Record, told: JobStatus) -> bool:
    """Tell whether the job that a scheduler tells of is surely one of the cluster's."""
    if record.id[:8] in told.label:
        return True
    # Where a site takes comment or name away, and in PBS of an earlier version, whose names begin with a letter.
    if told.label and not re.fullmatch(rf"w?{re.escape(record.name)}|(job|world-\d+-\d+)\.sh", told.label):
        return False
    return launcher(record.scheduler).system() == record.system


def alive(record: Record, told: JobStatus | None = None) -> bool | None:
    """Tell whether the cluster still runs, or will: True, False, or None where that cannot be told.

    Parameters
    ----------
    told
        What its scheduler tells of its job; None: it is asked.

    Notes
    -----
    Where the record's process says nothing, since it is another host's or only the starter's, the scheduler does.
    """
    process = record.alive()
    if not is_batch(record) or (record.state != "submitted" and process is not None):
        return process
    # In this order: a command that ends in between has written the id.
    submitted = settled(_receipt(record))
    if job_id(record) is None:
        # Either its starter is about to submit it, or was killed before it could, or has failed to.
        starter = record.process.alive()
        if starter or not submitted:
            return starter or None
        try:
            if not all_jobs(record, certain=True):
                return starter
        except LaunchError:
            return None
    told = status(record) if told is None else told
    if told.finished:
        return False
    return None if told.state is JobState.UNKNOWN else True


def words(told: JobStatus) -> str:
    """Return the status of a job in words.

    Examples
    --------
    >>> words(JobStatus(JobState.QUEUED, "waiting for resources"))
    'QUEUED: waiting for resources'
    """
    if told.unknown_to_scheduler:
        return "gone: the scheduler does not know it any more"
    if told.state is JobState.UNKNOWN and told.reason:
        return told.reason
    text = told.state.name
    if told.reason:
        text += f": {told.reason}"
    if told.state is JobState.QUEUED and told.start:
        text += f", start expected {clock(told.start)}"
    if told.state is JobState.RUNNING and told.nodes:
        text += f" on {told.nodes}"
    return text


def cancel(record: Record, *, later: bool = False) -> None:
    """Cancel all jobs of a cluster, or only those of `later` worlds, in whatever state they are.

    Raises
    ------
    LaunchError
        If the scheduler does not take it, or the jobs are not surely this cluster's.
    """
    its = launcher(record.scheduler)
    # Inside of a job its id may be spelled otherwise than it was when it was submitted.
    kept = {record.job, _read(record, _receipt(record))} if later else set()
    jobs = [job for job in all_jobs(record, certain=True) if job not in kept]
    for job, told in (its.statuses(jobs) if jobs else {}).items():
        if told.finished:
            continue
        if told.state is JobState.UNKNOWN:
            raise SchedulerTimeout(
                f"the scheduler does not tell whose job {job} is, so it is not cancelled.", hint="Try again."
            )
        if not (told.label and _is_its(record, told)):
            raise LaunchError(
                f"job {job} is {told.label!r} here, and not a job of cluster {record.name!r}, which another system "
                f"has{f' ({record.system})' if record.system else ''}: it is not cancelled.",
                hint=f"Stop the cluster there, or remove {record.folder} if it has ended.",
            )
        its.cancel(job)


def _check_system(record: Record) -> None:
    here = launcher(record.scheduler).system()
    if record.system and here != record.system:
        raise LaunchError(
            f"cluster {record.name!r} has its jobs in the scheduler {record.system}, and here "
            f"{f'is {here}' if here else 'no scheduler answers'}.",
            hint=f"Stop it there, or remove {record.folder} if it has ended.",
        )


def wait_finished(record: Record, timeout: float) -> list[str]:
    """Wait until all jobs of a cluster are over; return those that are not after `timeout` seconds."""
    its, deadline = launcher(record.scheduler), time.monotonic() + timeout
    left, pause = all_jobs(record), 0.1
    if record.system and its.system() not in (None, record.system):
        return []  # nobody here can tell; its head has ended it
    while left:
        told = its.statuses(left)
        left = [job for job in left if not told.get(job, UNKNOWN).finished]
        if time.monotonic() > deadline:
            break
        if left:
            time.sleep(pause)
            pause = min(1.4 * pause, 2.0)
    return left


def _recover(record: Record, receipt: Path) -> None:
    """Look for the job of a submission that nobody heard the end of, and note its id where it belongs."""
    if settled(receipt) and _read(record, receipt) is None:
        job = launcher(record.scheduler).find(identity(record, receipt.stem), record.name)
        if job is not None:
            try:
                receipt.write_text(f"{job}\n", encoding="utf-8")
            except OSError as error:
                raise LaunchError(
                    f"job {job} was found, but cannot be noted in {receipt}: {error}.",
                    hint="Check the room on its disk and your quota.",
                ) from error


def _receipts(record: Record) -> list[Path]:
    """Return the receipts of all jobs of the cluster; its folder may have become another cluster's."""
    with suppress(OSError):  # nobody else's is seen while the file server is away
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
