"""One poller for all jobs of this process, with intervals that grow while a job waits."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from workbench.launch.interface import UNKNOWN, JobState, JobStatus
from workbench.launch.launchers import launcher

# Seconds between two queries: first interval, growth and longest interval. Schedulers are slow and shared.
_FIRST, _GROWTH, _LONGEST = 0.3, 1.3, 15.0
# Seconds after the last call of `Poller.status` until a job is not polled any more.
_FORGET = 60.0


@dataclass
class _PolledJob:
    status: JobStatus
    interval: float
    due: float
    requested: float


class Poller:
    """Keeps the status of jobs from the last query to their scheduler.

    Notes
    -----
    Thread-safe. A background thread queries all jobs of a scheduler at once, while `status` is called for them. A query
    without an answer changes no status; the status of a job that has ended is final. A job that its scheduler does not
    know may be a new one, so the scheduler is asked again.
    """

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], _PolledJob] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def status(self, scheduler: str, job: str) -> JobStatus:
        """Return the last status of a job; `UNKNOWN` until the first answer of the scheduler."""
        now = time.monotonic()
        with self._changed:
            polled = self._jobs.get((scheduler, job))
            if polled is None:
                polled = self._jobs[scheduler, job] = _PolledJob(UNKNOWN, _FIRST, now, now)
                self._changed.notify()
            polled.requested = now
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="job-poller", daemon=True)
                self._thread.start()
            return polled.status

    def forget(self, scheduler: str, job: str) -> None:
        """Forget the status of a job that has just been submitted: an earlier job may have had the same id."""
        with self._changed:
            self._jobs.pop((scheduler, job), None)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                self._jobs = {key: job for key, job in self._jobs.items() if now - job.requested < _FORGET}
                waiting = {key: job for key, job in self._jobs.items() if not job.status.state.ended}
                if not self._jobs:
                    self._thread = None
                    return
                due = min((job.due for job in waiting.values()), default=now + _FORGET)
                if due > now:
                    self._changed.wait(due - now)
                    continue
            for scheduler in {scheduler for scheduler, _ in waiting}:
                # All waiting jobs of the scheduler: those that are not due yet do not make the query slower.
                self._query(scheduler, [job for other, job in waiting if other == scheduler])

    def _query(self, scheduler: str, jobs: list[str]) -> None:
        statuses = launcher(scheduler).statuses(jobs)
        now = time.monotonic()
        with self._changed:
            for job in jobs:
                polled = self._jobs.get((scheduler, job))
                if polled is None:
                    continue
                status = statuses.get(job, UNKNOWN)
                known = status.finished or status.state is not JobState.UNKNOWN
                if status.reason and polled.status.state is JobState.UNKNOWN:
                    polled.status = status  # the reason why the state is unknown
                if known and status.state is not polled.status.state:
                    polled.interval = _FIRST
                if known and not polled.status.state.ended:
                    polled.status = status
                polled.due = now + polled.interval
                polled.interval = min(_GROWTH * polled.interval, _LONGEST)


poller = Poller()
"""The poller of this process."""
