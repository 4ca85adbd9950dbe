"""Stop a cluster, in any state, from any process of its user."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from workbench import config
from workbench.deploy import certificates, ended, jobs, registry
from workbench.deploy.record import Record, owns_lease
from workbench.errors import ClusterNotFound, HeadUnreachable, SchedulerTimeout
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
# By default Slurm gives the processes of a cancelled job 30 s.
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
    batch = jobs.is_batch(record)
    record = _wait_for_head(record)
    # A queued job has no head.
    accepted = not (batch and record.state == "submitted") and _ask(record)
    noted = ended.of(record) is not None
    # Written before the jobs are cancelled or the lease is removed, which the head would take for the reason.
    ended.note(record, ended.STOPPED, STOPPED)
    if not accepted and not batch:
        # The head does not listen, or its key is gone: without its lease the head ends.
        registry.remove(record)
    if (accepted or not batch) and has_ended(record):
        return
    if batch:
        try:
            _cancel_jobs(record)
        except BaseException:
            if not (accepted or noted):
                ended.withdraw(record)  # the cluster goes on
            raise
        _await_jobs(record)
        tidy(record)
        return
    process = record.process
    raise HeadUnreachable(
        f"cluster {record.name!r} does not stop: its head neither answered nor ended in {_STOP_TIMEOUT_S:.0f} s.",
        hint=f"End the head on {process.host} with: kill -9 {process.pid}",
    )


def _ask(record: Record) -> bool:
    """Ask the head to stop the cluster; return False if it does not answer."""
    from distributed.core import rpc

    from workbench.comm import listener

    listener.use_retrying_connector()

    async def ask() -> None:
        if record.address is None:
            raise OSError("the head does not listen yet")
        security = certificates.security(record.folder).get_connection_args("client")
        async with (
            asyncio.timeout(config.seconds("connect-timeout")),
            rpc(record.address, connection_args=security) as head,
        ):
            await head.workbench_close(reason=STOPPED)

    try:
        # In a notebook this thread has a running event loop.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, ask()).result()
    except OSError:
        return False
    return True


def _wait_for_head(record: Record) -> Record:
    """Return the record that the head has written; until then the record names its starter, which must not be ended."""
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    next_query = 0.0
    while record.state == "submitted" and time.monotonic() < deadline:
        if jobs.is_batch(record) and time.monotonic() > next_query:
            if jobs.status(record).state is not JobState.RUNNING:
                return record  # no head runs
            next_query = time.monotonic() + _SCHEDULER_POLL_INTERVAL_S
        time.sleep(_POLL_INTERVAL_S)
        try:
            latest = registry.read(record.name)
        except ClusterNotFound:
            break
        if latest.id != record.id:
            break
        record = latest
    return record


def has_ended(record: Record) -> bool:
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
        alive = False if record.state == "submitted" else record.process.alive()
        if alive is None and jobs.is_batch(record) and time.monotonic() > next_query:
            # The head is on another host, and may have been killed: its scheduler knows. While the scheduler is silent,
            # a head keeps its record, but not its port.
            job = jobs.status(record)
            alive = False if job.finished or (job.state is JobState.UNKNOWN and _refuses(record)) else None
            next_query = time.monotonic() + _SCHEDULER_POLL_INTERVAL_S
        try:
            if alive is False:
                # A head that was killed has left jobs and files.
                if jobs.is_batch(record):
                    end_jobs(record)
                tidy(record)
            with contextlib.suppress(OSError):
                if not alive and not owns_lease(record):
                    left = deadline - time.monotonic()
                    return not (jobs.is_batch(record) and jobs.wait_finished(record, left))
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
def end_jobs(record: Record) -> None:
    """Cancel all jobs of a cluster and wait until they have ended.

    Raises
    ------
    HeadUnreachable
        If a job does not end.
    LaunchError
        If the scheduler does not cancel the jobs, or does not confirm their end.
    """
    _cancel_jobs(record)
    _await_jobs(record)


def _cancel_jobs(record: Record) -> None:
    deadline = time.monotonic() + command.submit_timeout()
    if jobs.is_being_submitted(record):
        command.say("waiting for the command that submits a job of the cluster")
    while jobs.is_being_submitted(record):
        if time.monotonic() > deadline:
            raise SchedulerTimeout(
                f"cluster {record.name!r}: the command that submits its job has not ended yet.",
                hint="Stop the cluster again when the scheduler answers.",
            )
        time.sleep(_POLL_INTERVAL_S)
    jobs.cancel(record)


def _await_jobs(record: Record) -> None:
    if left := jobs.wait_finished(record, _CANCEL_TIMEOUT_S):
        raise HeadUnreachable(
            f"cluster {record.name!r}: its jobs {', '.join(left)} were cancelled, but have not ended after "
            f"{_CANCEL_TIMEOUT_S:.0f} s. The scheduler or a node of the jobs may be down.",
            hint=("Check again with ", Command("list"), "."),
        )


def tidy(record: Record) -> None:
    """Remove the files of a cluster that has ended, and note how it has ended if its head could not."""
    with contextlib.suppress(OSError):
        if owns_lease(record):
            registry.note_end(record)
        registry.remove(record)
    if record.process.is_local:
        node_dirs.remove(record.id)
