"""One MPI world in a separate job, which the head submits, follows and cancels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench import config
from workbench.deploy.job_spec import world_job_spec
from workbench.deploy.jobs import describe
from workbench.deploy.record import Record
from workbench.deploy.world import MPIWorld
from workbench.errors import LaunchError, StartError
from workbench.launch.interface import JobState, JobStatus
from workbench.launch.launchers import launcher
from workbench.launch.mpi_library import MPI

# Seconds between two queries of the job: at the beginning or when its end is near, and the longest interval.
_FIRST_INTERVAL, _MAX_INTERVAL = 0.3, 10.0
# Seconds for the requested end of a job before it is canceled, and for its end after that.
_END_TIMEOUT = 8.0


class JobWorld(MPIWorld):
    """A world whose ``mpiexec`` runs in another job of the same scheduler, as a child of that job's keeper.

    `report` is called with messages about the job.
    """

    def __init__(self, record: Record, mpi: MPI, index: int, ranks: int, *, report: Callable[[str], None]) -> None:
        super().__init__(record, mpi, index, ranks)
        self._report = report
        self._launcher = launcher(record.scheduler)
        self._no_rank_left = asyncio.Event()
        self._queued = False
        self._submitting: asyncio.Future[str] | None = None

    @property
    def state(self) -> str:
        """As for `MPIWorld`, but ``queued`` while the job waits."""
        return "queued" if self._queued else super().state

    async def start(self, timeout: float, address: str) -> None:
        """Submit the job and wait until it runs; raise LaunchError if it is rejected, StartError if it ends before.

        The keeper reads the address from the record.
        """
        self.begin()
        self._no_rank_left.clear()
        self.job = None
        spec = await asyncio.to_thread(world_job_spec, self.record, self.index, self.ranks, self.starts)
        # The submission continues if this coroutine is canceled, because a job without a known id cannot be canceled.
        self._submitting = asyncio.ensure_future(asyncio.to_thread(self._launcher.submit, spec))
        self.job = await asyncio.shield(self._submitting)
        self._queued = True
        try:
            await self._await_run(str(spec.log))
        finally:
            self._queued = False

    async def _await_run(self, log: str) -> None:
        reported, deadline = "", time.monotonic() + config.seconds("queue-timeout")
        for interval in _intervals():
            status = await self._status()
            if status.finished:
                raise StartError(f"{self._end_message(status)}. The job had not run. See {log}.")
            message = f"world {self.index}: job {self.job} {describe(status)}"
            if message != reported:
                self._report(reported := message)
            if not (status.state.waits or status.state is JobState.UNKNOWN):
                return
            if time.monotonic() > deadline:
                await self._cancel()
                raise StartError(f"{message}. The job was cancelled at the end of workbench.queue-timeout.")
            await asyncio.sleep(interval)

    async def _status(self) -> JobStatus:
        job = str(self.job)
        return (await asyncio.to_thread(self._launcher.statuses, [job]))[job]

    def _end_message(self, status: JobStatus) -> str:
        return f"its job {self.job} has ended: {describe(status)}"

    def left(self, rank: int) -> dict[str, Any]:
        """Record that a rank has left; after the last one the end of the job is near."""
        info = super().left(rank)
        if not self.present:
            self._no_rank_left.set()
        return info

    async def exited(self) -> str:
        """Wait for the end of the job and return a message about its end."""
        intervals = _intervals()
        while not (status := await self._status()).finished:
            if self._no_rank_left.is_set():
                await asyncio.sleep(next(intervals))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(next(intervals)):
                    await self._no_rank_left.wait()
                intervals = _intervals()  # the end is near
        return self._end_message(status)

    async def stop(self, request_end: Callable[[], Awaitable[None]]) -> None:
        """Request the end of the ranks, then cancel the job."""
        self.stopping = True
        if self.job is None and self._submitting is not None:
            with suppress(LaunchError, OSError):  # reported by `start`
                self.job = await self._submitting
        if self.job is not None and await self._end_job(request_end):
            # The job has ended, so its id is not needed. An error of the disk must not stop the end of a cluster.
            with suppress(OSError):
                await asyncio.to_thread(self._receipt().unlink, missing_ok=True)

    def _receipt(self) -> Path:
        return self.record.folder / f"world-{self.index}-{self.starts}.job"

    async def _end_job(self, request_end: Callable[[], Awaitable[None]]) -> bool:
        if self.ready:  # otherwise a rank does not receive the request
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_TIMEOUT):
                    await request_end()
                    await self.exited()
                    return True
        await self._cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT):
                await self.exited()
                return True
        return False

    async def _cancel(self) -> None:
        try:
            await asyncio.to_thread(self._launcher.cancel, str(self.job))
        except LaunchError as error:
            self._report(f"world {self.index}: job {self.job} could not be cancelled: {error}")


def _intervals() -> Iterator[float]:
    interval = _FIRST_INTERVAL
    while True:
        yield interval
        interval = min(1.4 * interval, _MAX_INTERVAL)
