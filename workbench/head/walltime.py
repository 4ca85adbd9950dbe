"""Counts down to the end of the job's walltime: warnings, then no more work, then an orderly end."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from workbench.deploy.record import Record
from workbench.launch.allocation import current_allocation
from workbench.launch.command import answering_soon
from workbench.launch.launchers import launcher
from workbench.text import count

logger = logging.getLogger("workbench.head")

# Seconds before the end at which a warning is sent.
WARNINGS = (600.0, 300.0, 60.0)
# Seconds for the end itself: a request to the ranks, two signals to their mpiexec, and messages to clients.
LAST = 15.0
# Seconds before the grace period in which a signal may announce the end. The signal is configured one minute before,
# and Slurm sends it up to one more minute earlier.
ANNOUNCED = 150.0
# Seconds between two queries of the scheduler. Many users query it, and limits change rarely.
_QUERY_INTERVAL = 60.0
# Seconds by which a new end must differ, because schedulers round, and define the start differently.
_MIN_CHANGE = 30.0


def job_end(record: Record) -> Callable[[], float | None] | None:
    """Return a function for the end of the job, in seconds since the epoch, or None if the job has no end.

    The function blocks, and returns None while the end is unknown. The end that the scheduler reports replaces the
    requested walltime, which may have been changed. A cluster inside an allocation ends with the allocation.
    """
    walltime = record.resources.walltime
    requested = None if walltime is None else time.time() + walltime
    scheduler, job = launcher(record.scheduler), record.job
    if record.scheduler == "here" and (allocation := current_allocation()):
        scheduler, job = launcher(allocation.scheduler), allocation.job
    if job is None or not scheduler.batch:
        return None if requested is None else lambda: requested
    latest = requested

    def query() -> float | None:
        nonlocal latest
        latest = scheduler.statuses([job])[job].end or latest
        return latest

    return query


def _within(end: Callable[[], float | None]) -> float | None:
    with answering_soon():
        return end()


class Countdown:
    """The actions that are due before the end.

    Parameters
    ----------
    grace
        Seconds before the end in which new work is rejected. In a short job at most a quarter of its time,
        and never less than `LAST`.
    saving
        Returns the seconds that a last save before the end takes; in a short job at most a quarter of its time.

    Attributes
    ----------
    ends : float or None
        The end of the job in seconds since the epoch, if it is known.
    """

    def __init__(self, grace: float, saving: Callable[[], float] = lambda: 0.0) -> None:
        self.ends: float | None = None
        self._grace, self._saving, self._quarter = grace, saving, math.inf
        self._ahead: tuple[float, ...] = ()

    def update_deadline(self, ends: float | None, now: float) -> str:
        """Set the end of the job; return a message about the change, or an empty string."""
        if ends is None:
            return ""
        before, self.ends = self.ends, ends
        if before is None:
            self._quarter = (ends - now) / 4
            self._grace = max(LAST, min(self._grace, self._quarter))
        elif ends < before + _MIN_CHANGE:
            return ""
        self._ahead, announced = tuple(span for span in WARNINGS if span < ends - now), self._ahead
        if before is None:
            return f"walltime: {_time_left(ends, now)}" if ends - now <= WARNINGS[0] else ""
        return f"walltime extended: {_time_left(ends, now)}" if self._ahead != announced else ""

    def warning(self, now: float) -> str:
        """Return the warning that is due now, or an empty string."""
        if self.ends is None:
            return ""
        left = self.ends - now
        ahead = tuple(span for span in self._ahead if span < left)
        due, self._ahead = ahead != self._ahead, ahead
        return f"walltime: {_time_left(self.ends, now)}" if due else ""

    def should_drain(self, now: float) -> bool:
        """Return whether new work must be rejected now."""
        return self.ends is not None and now >= self.ends - max(self._grace, LAST) - self._save

    def is_final(self, now: float, since: float) -> bool:
        """Return whether the time for running tasks is over, if new work is rejected since `since`."""
        ends = since + max(self._grace, LAST) + self._save if self.ends is None else self.ends
        return now >= ends - LAST - self._save

    @property
    def _save(self) -> float:
        """Seconds for the last save."""
        return min(self._saving(), self._quarter)


def _time_left(ends: float, now: float) -> str:
    left = max(0, math.ceil(ends - now))
    period = count(left // 60, "minute") if left >= 120 or left == 60 else f"{left} s"
    return f"{period} left, the job ends at {time.strftime('%H:%M:%S', time.localtime(ends))}"


class Walltime:
    """Follows the end of the job.

    Parameters
    ----------
    end
        Returns the end of the job, see `job_end`.
    grace, saving
        As for `Countdown`.
    learned
        Called with each reported end.
    report
        Called with each warning.
    drain
        Called with the reason when new work must be rejected.
    """

    def __init__(
        self,
        end: Callable[[], float | None] | None,
        *,
        grace: float,
        saving: Callable[[], float],
        learned: Callable[[float], None],
        report: Callable[[str], None],
        drain: Callable[[str], None],
    ) -> None:
        self._end, self._learned, self._report, self._drain = end, learned, report, drain
        self._announced = grace + ANNOUNCED
        self.countdown = Countdown(grace, saving)

    def expects_end(self, now: float) -> bool:
        """Return whether a signal now announces the end that is already known."""
        ends = self.countdown.ends
        return ends is not None and ends - now <= self._announced

    async def watch(self) -> None:
        """Send warnings, and drain in time; without an end, return immediately."""
        if self._end is None:
            return
        # A scheduler may be slow to answer. A daemon thread delays neither the countdown nor the head's exit.
        arguments = (self._end, asyncio.get_running_loop())
        threading.Thread(target=self._query_end, args=arguments, name="walltime", daemon=True).start()
        while not self.countdown.should_drain(time.time()):
            if warning := self.countdown.warning(time.time()):
                self._report(warning)
            await asyncio.sleep(0.5)
        self._drain("its walltime is up")

    async def ask(self) -> None:
        """Ask the scheduler for the end of the job now."""
        if self._end is not None:
            with suppress(Exception):  # the next query of the thread reports it
                self._learn(await asyncio.to_thread(_within, self._end))

    def _query_end(self, end: Callable[[], float | None], loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop is closed: the head has ended
            while True:
                try:
                    ends = end()
                except Exception:
                    logger.exception("the query of the job's end failed; it is repeated in %.0f s", _QUERY_INTERVAL)
                else:
                    loop.call_soon_threadsafe(self._learn, ends)
                time.sleep(_QUERY_INTERVAL)

    def _learn(self, ends: float | None) -> None:
        if ends is not None:
            self._learned(ends)
        if message := self.countdown.update_deadline(ends, time.time()):
            self._report(message)
