"""One poller for all jobs of this process, which asks the less often the longer a job waits."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from workbench.launch.interface import UNKNOWN, JobState, JobStatus
from workbench.launch.launchers import launcher

# Seconds between two questions: the first, the growth and the longest. Schedulers are slow and belong to everybody.
_FIRST, _GROWTH, _LONGEST = 0.3, 1.3, 15.0
# Seconds after which nobody is interested any more who has not looked at a job again.
_FORGET = 60.0


@dataclass
class _Watched:
    status: JobStatus
    interval: float
    due: float
    looked: float


class Poller:
    """Knows the status of jobs, as of its last question to their scheduler.

    Notes
    -----
    It may be used from any thread. A thread of its own asks, for all jobs of a scheduler at once, while somebody looks
    at them. A question without an answer changes no status; a job that has ended stays as it is.
    """

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], _Watched] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def status(self, scheduler: str, job: str) -> JobStatus:
        """Return what is known of a job; `UNKNOWN` until the scheduler has answered for the first time."""
        now = time.monotonic()
        with self._changed:
            watched = self._jobs.get((scheduler, job))
            if watched is None:
                watched = self._jobs[scheduler, job] = _Watched(UNKNOWN, _FIRST, now, now)
                self._changed.notify()
            watched.looked = now
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="job-poller", daemon=True)
                self._thread.start()
            return watched.status

    def forget(self, scheduler: str, job: str) -> None:
        """Know nothing of a job that has just been submitted: an earlier one may have had its id."""
        with self._changed:
            self._jobs.pop((scheduler, job), None)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                self._jobs = {key: job for key, job in self._jobs.items() if now - job.looked < _FORGET}
                waiting = {key: job for key, job in self._jobs.items() if not job.status.finished}
                if not self._jobs:
                    self._thread = None
                    return
                due = min((job.due for job in waiting.values()), default=now + _FORGET)
                if due > now:
                    self._changed.wait(due - now)
                    continue
            for scheduler in {scheduler for scheduler, _ in waiting}:
                self._ask(scheduler, [job for its, job in waiting if its == scheduler])

    def _ask(self, scheduler: str, jobs: list[str]) -> None:
        # Those that are not due yet cost nothing more.
        answers = launcher(scheduler).statuses(jobs)
        now = time.monotonic()
        with self._changed:
            for job in jobs:
                watched = self._jobs.get((scheduler, job))
                if watched is None:
                    continue
                answer = answers.get(job, UNKNOWN)
                known = answer.finished or answer.state is not JobState.UNKNOWN
                if answer.reason and watched.status.state is JobState.UNKNOWN:
                    watched.status = answer  # why nothing is known
                if known and answer.state is not watched.status.state:
                    watched.interval = _FIRST
                if known and not watched.status.finished:
                    watched.status = answer
                watched.due = now + watched.interval
                watched.interval = min(_GROWTH * watched.interval, _LONGEST)


poller = Poller()
"""The one of this process."""
