"""Stop a cluster, in any state, from any process of its user."""

from __future__ import annotations

import contextlib
import socket
import time

from workbench.deploy import ended
from workbench.deploy.job import ClusterJob
from workbench.deploy.record import Record
from workbench.errors import HeadUnreachable, SchedulerTimeout
from workbench.hints import Command
from workbench.host import node_dirs
from workbench.launch import command
from workbench.launch.interface import JobState

STOPPED = "the user has stopped it"
"""The reason of the end of a cluster that `stop` has ended."""
_POLL_INTERVAL_S = 0.05
_SCHEDULER_POLL_INTERVAL_S = 1.0
# The head asks the ranks to end, then mpiexec, and then kills both.
_STOP_TIMEOUT_S = 15.0
_REFUSAL_TIMEOUT_S = 1.0
# By default Slurm gives the processes of a canceled job 30 s.
_CANCEL_TIMEOUT_S = 90.0


@command.answering_soon()
@command.insisting()
def stop(record: Record) -> None:
    """Stop a cluster, in any state, and return when nothing of it is left.

    Raises
    ------
    HeadUnreachable
        If its head neither answers nor ends.
    LaunchError
        If its scheduler does not cancel its jobs, or does not confirm their end; the record of a cluster whose jobs
        may remain stays, so that they are not forgotten.
    """
    job = ClusterJob(record)
    _wait_for_head(job)
    record, folder = job.record, job.folder
    # A queued job has no head.
    accepted = not (job.batch and record.state == "submitted") and _ask_to_end(job)
    noted = folder.end() is not None
    # Written before the jobs are canceled or the lease is removed, which the head would take for the reason.
    folder.note(record, ended.STOPPED, STOPPED)
    if not accepted and not job.batch:
        # The head does not listen, or its key is gone: without its lease the head ends.
        folder.remove()
    if (accepted or not job.batch) and _has_ended(job):
        return
    if job.batch:
        try:
            _cancel_jobs(job)
        except BaseException:
            if not (accepted or noted):
                folder.withdraw_note()  # the cluster continues
            raise
        _await_jobs(job)
        _tidy(job)
        return
    process = record.process
    raise HeadUnreachable(
        f"cluster {record.name!r} does not stop: its head neither answered nor ended in {_STOP_TIMEOUT_S:.0f} s.",
        hint=f"End the head on {process.host} with: kill -9 {process.pid}",
    )


def await_end(job: ClusterJob) -> None:
    """Wait until nothing is left of a cluster whose head was asked to end; remove what is left after a deadline."""
    if not _has_ended(job):
        job.note(ended.STOPPED, "the user has closed it")
        remove(job)


def remove(job: ClusterJob) -> None:
    """Remove everything of a cluster: job, record, key, sockets."""
    if job.batch:
        _end_jobs(job)
    else:
        job.end_process()
    _tidy(job)


def _ask_to_end(job: ClusterJob) -> bool:
    """Ask the head to stop the cluster; return False if it does not answer."""
    from workbench.deploy.connection import ask_once  # loads Dask

    try:
        ask_once(job, "workbench_close", reason=STOPPED)
    except OSError:
        return False
    return True


def _wait_for_head(job: ClusterJob) -> None:
    """Get the record that the head has written; until then the record names its starter, which must not be ended."""
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    next_query = 0.0
    while job.record.state == "submitted" and time.monotonic() < deadline:
        if job.batch and time.monotonic() > next_query:
            if job.ask_status().state is not JobState.RUNNING:
                return  # no head runs
            next_query = time.monotonic() + _SCHEDULER_POLL_INTERVAL_S
        time.sleep(_POLL_INTERVAL_S)
        try:
            latest = job.folder.read()
        except FileNotFoundError:
            return
        if latest.id != job.record.id:
            return
        job.record = latest


def _has_ended(job: ClusterJob) -> bool:
    """Wait until lease, head and jobs of a cluster are gone whose head was asked to end; return False at the deadline.

    Raises
    ------
    SchedulerTimeout
        If the head has ended, and the scheduler does not answer.
    """
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    # An orderly end takes less, and shows without the scheduler.
    next_query = time.monotonic() + _SCHEDULER_POLL_INTERVAL_S
    while time.monotonic() < deadline:
        # A head that has not written its record yet ends when it finds none.
        alive = False if job.record.state == "submitted" else job.record.process.alive()
        if alive is None and job.batch and time.monotonic() > next_query:
            # The head is on another host, and may have been killed: its scheduler knows. While the scheduler is silent,
            # a head keeps its record, but not its port.
            status = job.ask_status()
            gone = status.finished or (status.state is JobState.UNKNOWN and _refuses(job.record))
            alive = False if gone else None
            next_query = time.monotonic() + _SCHEDULER_POLL_INTERVAL_S
        try:
            if alive is False:
                # A head that was killed has left jobs and files.
                if job.batch:
                    _end_jobs(job)
                _tidy(job)
            with contextlib.suppress(OSError):
                if not alive and not job.folder.owns_lease():
                    left = deadline - time.monotonic()
                    return not (job.batch and job.wait_finished(left))
        except SchedulerTimeout as error:
            raise error.converted(SchedulerTimeout, f"the ranks have ended, but {error.message}") from error
        time.sleep(_POLL_INTERVAL_S)
    return False


def _refuses(record: Record) -> bool:
    """Return whether the host of a head refuses connections to its port, which the head closes after its ranks."""
    host, _, port = str(record.address).partition("://")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_REFUSAL_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        pass
    return False


@command.insisting()
def _end_jobs(job: ClusterJob) -> None:
    """Cancel all jobs of a cluster and wait until they have ended.

    Raises
    ------
    HeadUnreachable
        If a job does not end.
    LaunchError
        If the scheduler does not cancel the jobs, or does not confirm their end.
    """
    _cancel_jobs(job)
    _await_jobs(job)


def _cancel_jobs(job: ClusterJob) -> None:
    deadline = time.monotonic() + command.submit_timeout()
    if job.is_being_submitted():
        command.say("waiting for the command that submits a job of the cluster")
    while job.is_being_submitted():
        if time.monotonic() > deadline:
            raise SchedulerTimeout(
                f"cluster {job.record.name!r}: the command that submits its job has not ended yet.",
                hint="Stop the cluster again when the scheduler answers.",
            )
        time.sleep(_POLL_INTERVAL_S)
    job.cancel()


def _await_jobs(job: ClusterJob) -> None:
    if left := job.wait_finished(_CANCEL_TIMEOUT_S):
        raise HeadUnreachable(
            f"cluster {job.record.name!r}: its jobs {', '.join(left)} were canceled, but have not ended after "
            f"{_CANCEL_TIMEOUT_S:.0f} s. The scheduler or a node of the jobs may be down.",
            hint=("Check again with ", Command("list"), "."),
        )


def _tidy(job: ClusterJob) -> None:
    """Remove the files of a cluster that has ended, and note how it has ended if its head could not."""
    with contextlib.suppress(OSError):
        if job.folder.owns_lease():
            job.note_end()
        job.folder.remove()
    if job.record.process.is_local:
        node_dirs.remove(job.record.id)
