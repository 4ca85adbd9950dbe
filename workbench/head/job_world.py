"""One MPI world in a separate job, which the head submits, follows and cancels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench import config
from workbench.deploy.job import PUBLISHED_S, ClusterJob
from workbench.deploy.job_spec import world_job_spec
from workbench.deploy.record import Record
from workbench.deploy.world import MPIWorld
from workbench.errors import LaunchError, StartError
from workbench.launch.interface import UNKNOWN, JobState, JobStatus, describe
from workbench.launch.launchers import launcher
from workbench.launch.mpi_library import MPI

# Seconds between two queries of the job: at the beginning or when its end is near, and the longest interval.
_FIRST_INTERVAL, _MAX_INTERVAL = 0.3, 10.0
# Seconds for the jobs of a removed world to end; the end of the cluster cancels them once more.
_SETTLE_TIMEOUT = 600.0
# Seconds for the requested end of a job before it is canceled, and for its end after that.
_END_TIMEOUT = 8.0


@dataclass(frozen=True)
class _Job:
    """The job of one start of a world."""

    id: str
    receipt: Path
    """File with the id, for processes that search for the jobs of the cluster."""
    log: str
    no_rank_left: asyncio.Event
    """Set when the last rank has left, since the end of the job is near then."""
    submitted: float
    """Time of the monotonic clock after the submission: the time of the receipt is that of its file server."""


class JobWorld(MPIWorld):
    """A world whose ``mpiexec`` runs in another job of the same scheduler, as a child of that job's keeper.

    `report` is called with messages about the job.
    """

    def __init__(self, record: Record, mpi: MPI, index: int, ranks: int, *, report: Callable[[str], None]) -> None:
        super().__init__(record, mpi, index, ranks)
        self._report = report
        self._launcher = launcher(record.scheduler)
        # The job of the latest start. Each method reads it once, because the next start may begin meanwhile.
        self._submitted: asyncio.Future[_Job] | None = None
        self._no_rank_left = asyncio.Event()

    @property
    def state(self) -> str:
        """As for `MPIWorld`, but ``queued`` while the job waits."""
        return "queued" if self.waiting else super().state

    async def start(self, timeout: float, address: str) -> None:
        """Submit the job and wait until it runs; raise LaunchError if it is rejected, StartError if it ends before.

        The keeper reads the address from the record.
        """
        self.begin()
        self.job = None
        # An earlier start whose submission or end was not confirmed must not have ranks with the same names.
        await asyncio.to_thread(self._cancel_unconfirmed)
        self._no_rank_left = asyncio.Event()
        # The submission continues if this coroutine is canceled, because a job without a known id cannot be canceled.
        self._submitted = asyncio.ensure_future(self._submit(self.starts, self._no_rank_left))
        job = await asyncio.shield(self._submitted)
        self.job, self.waiting = job.id, f"job {job.id} was submitted"
        try:
            await self._await_run(job)
        finally:
            self.waiting = ""

    async def _submit(self, start: int, no_rank_left: asyncio.Event) -> _Job:
        spec = await asyncio.to_thread(world_job_spec, self.record, self.folder, self.index, self.ranks, start)
        receipt = self.folder.path / f"world-{self.index}-{start}.job"
        job = await asyncio.to_thread(self._launcher.submit, spec)
        return _Job(job, receipt, str(spec.log), no_rank_left, time.monotonic())

    async def _await_run(self, job: _Job) -> None:
        deadline = time.monotonic() + config.seconds("queue-timeout")
        for interval in _intervals():
            status = await self._status(job)
            if status.finished:
                raise StartError(f"{_end_message(job, status)}. The job had not run. See {job.log}.")
            message = f"job {job.id} {describe(status)}"
            if message != self.waiting:
                self.waiting = message
                self._report(message)
            if not (status.state.waits or status.state is JobState.UNKNOWN):
                return
            if status.hopeless and config.switch("cancel-hopeless"):
                raise StartError(
                    f"{message}. The job is canceled.",
                    hint="Add fewer ranks. If nodes are created on demand, set workbench.cancel-hopeless to false.",
                )
            if time.monotonic() > deadline:
                raise StartError(f"{message}. The job is canceled at the end of workbench.queue-timeout.")
            await asyncio.sleep(interval)

    async def _status(self, job: _Job) -> JobStatus:
        return await asyncio.to_thread(self._ask, job)

    def _ask(self, job: _Job) -> JobStatus:
        status = self._launcher.statuses([job.id])[job.id]
        if status.unknown_to_scheduler and time.monotonic() < job.submitted + PUBLISHED_S:
            return UNKNOWN
        if status.finished:
            # The id is not needed any more. An error of the disk must not stop the end of a cluster.
            with suppress(OSError):
                job.receipt.unlink(missing_ok=True)
        return status

    def left(self, rank: int) -> dict[str, Any]:
        """Record that a rank has left; after the last one the end of the job is near."""
        info = super().left(rank)
        if not self.present:
            self._no_rank_left.set()
        return info

    async def exited(self) -> str:
        """Wait for the end of the job and return a message about its end."""
        if self._submitted is None:
            raise RuntimeError(f"World {self.index} was not started. Call start() first.")
        return await self._exited(await asyncio.shield(self._submitted))

    async def _exited(self, job: _Job) -> str:
        intervals = _intervals()
        while not (status := await self._status(job)).finished:
            if job.no_rank_left.is_set():
                await asyncio.sleep(next(intervals))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(next(intervals)):
                    await job.no_rank_left.wait()
                intervals = _intervals()  # the end is near
        return _end_message(job, status)

    async def stop(self, request_end: Callable[[], Awaitable[None]]) -> None:
        """Request the end of the ranks of this start, then cancel its job."""
        self.stopping = True
        submitted, ready = self._submitted, self.ready
        if submitted is None:
            return
        try:
            job = await asyncio.shield(submitted)
        except (LaunchError, OSError):
            return  # reported by `start`
        if ready:  # otherwise a rank does not receive the request
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_TIMEOUT):
                    await request_end()
                    await self._exited(job)
                    return
        await self._cancel(job)
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT):
                await self._exited(job)

    def _cancel_unconfirmed(self) -> bool:
        """Cancel jobs that have a receipt; return whether there is one. A file server that hangs holds the thread."""
        if not any(self.folder.path.glob(f"world-{self.index}-*.job")):
            return False
        ClusterJob(self.record, self.folder).cancel(world=self.index)
        return True

    async def settle(self) -> None:
        """After `stop`: cancel jobs whose submission or end was not confirmed, until the scheduler confirms the end."""
        deadline = time.monotonic() + _SETTLE_TIMEOUT
        for interval in _intervals():
            if time.monotonic() > deadline:
                return
            with suppress(LaunchError, OSError):
                if not await asyncio.to_thread(self._cancel_unconfirmed):
                    return
            await asyncio.sleep(interval)

    async def _cancel(self, job: _Job) -> None:
        try:
            await asyncio.to_thread(self._launcher.cancel, job.id)
        except LaunchError as error:
            self._report(f"job {job.id} could not be canceled: {error}")


def _end_message(job: _Job, status: JobStatus) -> str:
    return f"its job {job.id} has ended: {describe(status)}"


def _intervals() -> Iterator[float]:
    interval = _FIRST_INTERVAL
    while True:
        yield interval
        interval = min(1.4 * interval, _MAX_INTERVAL)
