"""One MPI world in a job of its own: submitted, awaited in its queue, watched and cancelled from the head."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench import config
from workbench.deploy.job_spec import world_job_spec
from workbench.deploy.jobs import words
from workbench.deploy.registry import Record
from workbench.deploy.world import MPIWorld
from workbench.errors import LaunchError, StartError
from workbench.launch.interface import JobState, JobStatus
from workbench.launch.launchers import launcher
from workbench.launch.mpi_library import MPI

# Seconds between two questions about the job: a few in the beginning, or when its end is near, then ever fewer.
_SOON, _LATE = 0.3, 10.0
# Seconds for the end of a job that was asked for, before it is cancelled, and after that.
_PATIENCE = 8.0


class JobWorld(MPIWorld):
    """A world whose ``mpiexec`` runs in another job of the same scheduler, as a child of that job's keeper.

    Parameters
    ----------
    record, mpi, index, ranks
        As of `MPIWorld`.
    say
        Takes what becomes of the job, in words.
    """

    def __init__(self, record: Record, mpi: MPI, index: int, ranks: int, *, say: Callable[[str], None]) -> None:
        super().__init__(record, mpi, index, ranks)
        self._say = say
        self._launcher = launcher(record.scheduler)
        self._emptied = asyncio.Event()
        self._queued = False
        self._submitting: asyncio.Future[str] | None = None

    @property
    def state(self) -> str:
        """As of `MPIWorld`; ``queued`` while its job waits."""
        return "queued" if self._queued else super().state

    async def start(self, timeout: float, address: str) -> None:
        """Submit the job and wait until it runs; the keeper finds the address in the record.

        Raises
        ------
        LaunchError
            If the scheduler does not take it.
        StartError
            If it ends in the queue.
        """
        self.begin()
        self._emptied.clear()
        self.job = None
        spec = await asyncio.to_thread(world_job_spec, self.record, self.index, self.ranks, self.starts)
        # It goes on whoever stops waiting for it: a job that is not known could not be cancelled.
        self._submitting = asyncio.ensure_future(asyncio.to_thread(self._launcher.submit, spec))
        self.job = await asyncio.shield(self._submitting)
        self._queued = True
        try:
            await self._await_run(str(spec.log))
        finally:
            self._queued = False

    async def _await_run(self, log: str) -> None:
        said, deadline = "", time.monotonic() + config.seconds("queue-timeout")
        for pause in _pauses():
            status = await self._status()
            if status.finished:
                raise StartError(f"{self._end_words(status)} before it ran. See {log}")
            if status.state not in (JobState.QUEUED, JobState.UNKNOWN):
                self._say(f"world {self.index}: job {self.job} {words(status)}")
                return
            now = f"world {self.index}: job {self.job} {words(status)}"
            if now != said:
                self._say(said := now)
            if time.monotonic() > deadline:
                await self._cancel()
                raise StartError(f"{now}; given up after the time of workbench.queue-timeout")
            await asyncio.sleep(pause)

    async def _status(self) -> JobStatus:
        job = str(self.job)
        return (await asyncio.to_thread(self._launcher.statuses, [job]))[job]

    def _end_words(self, status: JobStatus) -> str:
        return f"its job {self.job} has ended: {words(status)}"

    def left(self, rank: int) -> dict[str, Any]:
        """Note that the worker of a rank is gone; with the last one the end of the job is near."""
        told = super().left(rank)
        if not self.present:
            self._emptied.set()
        return told

    async def exited(self) -> str:
        """Wait for the end of the job and return in words how it came."""
        pauses = _pauses()
        while not (status := await self._status()).finished:
            if self._emptied.is_set():
                await asyncio.sleep(next(pauses))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(next(pauses)):
                    await self._emptied.wait()
                pauses = _pauses()  # its end is near
        return self._end_words(status)

    async def stop(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask the ranks to end, then cancel the job."""
        self.stopping = True
        if self.job is None and self._submitting is not None:
            with suppress(LaunchError):
                self.job = await self._submitting
        if self.job is not None and await self._ends(ask):
            # Nobody has to look for it any more.
            await asyncio.to_thread(self._receipt().unlink, missing_ok=True)

    def _receipt(self) -> Path:
        return self.record.folder / f"world-{self.index}-{self.starts}.job"

    async def _ends(self, ask: Callable[[], Awaitable[None]]) -> bool:
        if self.ready:  # else there is somebody who cannot be asked
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await ask()
                    await self.exited()
                    return True
        await self._cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self.exited()
                return True
        return False

    async def _cancel(self) -> None:
        try:
            await asyncio.to_thread(self._launcher.cancel, str(self.job))
        except LaunchError as error:
            self._say(f"world {self.index}: job {self.job} could not be cancelled: {error}")


def _pauses() -> Iterator[float]:
    pause = _SOON
    while True:
        yield pause
        pause = min(1.4 * pause, _LATE)
