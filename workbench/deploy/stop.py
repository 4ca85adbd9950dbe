"""The end of a cluster as anybody of its user's processes can bring it about, in whatever state it is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

from workbench import config
from workbench.deploy import certificates, ended, jobs, registry
from workbench.deploy.registry import Record
from workbench.errors import ClusterNotFound, HeadUnreachable, SchedulerTimeout
from workbench.files import node_dirs
from workbench.hints import Command
from workbench.launch.interface import JobState

STOPPED = "the user has stopped it"
"""Why a cluster ends that is stopped."""
# Seconds between two looks at a cluster that is ending.
_LOOK = 0.05
# Seconds between two questions to a scheduler in that time.
_ASK = 1.0
# Seconds for the end of a cluster: its ranks are asked, then its mpiexec, then both are killed.
_END = 15.0
# Seconds for a scheduler to end a job that is cancelled: by default SLURM gives its processes 30.
_CANCELLED = 90.0


def stop(record: Record) -> None:
    """End a cluster of yours, in whatever state it is, and return when nothing of it is left.

    Raises
    ------
    HeadUnreachable
        If its head neither answers nor ends.
    LaunchError
        If its scheduler does not take that its jobs be cancelled; the record stays, so that they are not forgotten.
    """
    batch = jobs.is_batch(record)
    record = _once_it_has_spoken(record)
    # A job that waits in its queue has no head to be asked.
    asked = not (batch and record.state == "submitted") and _ask(record)
    # Ahead of an end by its scheduler, or without its lease, which the head would take for the reason.
    ended.note(record, ended.STOPPED, STOPPED)
    if not asked and not batch:
        # It does not listen yet, or no longer, or its key is gone: without its lease it ends.
        registry.remove(record)
    if (asked or not batch) and has_ended(record):
        return
    if batch:
        end_jobs(record)
        tidy(record)
        return
    process = record.process
    raise HeadUnreachable(
        f"cluster {record.name!r} does not end: its head neither answers nor gives up after {_END:.0f} s. "
        f"End it on {process.host} with: kill -9 {process.pid}"
    )


def _ask(record: Record) -> bool:
    """Ask the head to end the cluster; False if it does not answer."""
    from distributed.core import rpc

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
        # In a notebook this thread has a loop that runs already.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, ask()).result()
    except OSError:
        return False
    return True


def _once_it_has_spoken(record: Record) -> Record:
    """Return the record that the head has written; until then it names its starter, who is not to be ended."""
    deadline = time.monotonic() + _END
    while record.state == "submitted" and time.monotonic() < deadline:
        if jobs.is_batch(record) and jobs.status(record).state is not JobState.RUNNING:
            return record  # it has no head yet, or no longer
        time.sleep(_LOOK)
        try:
            now = registry.read(record.name)
        except ClusterNotFound:
            break
        if now.id != record.id:
            break
        record = now
    return record


def has_ended(record: Record) -> bool:
    """Wait until neither lease nor head nor jobs are there; False if they outlast the deadline."""
    deadline = time.monotonic() + _END
    ask_again = 0.0
    while time.monotonic() < deadline:
        # A head that has not spoken ends as soon as it finds no record.
        alive = False if record.state == "submitted" else record.process.alive()
        if alive is None and jobs.is_batch(record) and time.monotonic() > ask_again:
            # It is on another host, and was killed maybe: its scheduler knows.
            alive = False if jobs.status(record).finished else None
            ask_again = time.monotonic() + _ASK
        if alive is False:
            # Nothing is left to do if the head has ended in order, but it may have been killed.
            if jobs.is_batch(record):
                end_jobs(record)
            tidy(record)
        with contextlib.suppress(OSError):
            if not alive and not registry.owns_lease(record):
                left = deadline - time.monotonic()
                return not (jobs.is_batch(record) and jobs.wait_finished(record, left))
        time.sleep(_LOOK)
    return False


def end_jobs(record: Record) -> None:
    """Cancel all jobs of a cluster and return when they are over.

    Raises
    ------
    HeadUnreachable
        If they do not end.
    LaunchError
        If the scheduler does not take it.
    """
    deadline = time.monotonic() + config.seconds("submit-timeout")
    while jobs.is_being_submitted(record):
        if time.monotonic() > deadline:
            raise SchedulerTimeout(
                f"cluster {record.name!r}: the command that submits its job has not ended yet.",
                hint="Stop it again when the scheduler answers.",
            )
        time.sleep(_LOOK)
    jobs.cancel(record)
    if left := jobs.wait_finished(record, _CANCELLED):
        raise HeadUnreachable(
            f"cluster {record.name!r}: its jobs {', '.join(left)} were cancelled, but have not ended after "
            f"{_CANCELLED:.0f} s. The scheduler or a node of theirs may be down.",
            hint=("Look again with ", Command("list"), "."),
        )


def tidy(record: Record) -> None:
    """Remove what is on disk of a cluster that has ended, and keep how it has, if its head could not."""
    with contextlib.suppress(OSError):
        if registry.owns_lease(record):
            registry.note_end(record)
        registry.remove(record)
    if record.process.is_local:
        # On a full disk Python finds no folder for temporary files.
        with contextlib.suppress(OSError):
            node_dirs.remove(record.id)
