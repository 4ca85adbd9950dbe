"""The end that a scheduler has set for the job, counted down: warnings, then no more work, then an end in order."""

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
from workbench.launch.launchers import launcher
from workbench.text import count

logger = logging.getLogger("workbench.head")

# Seconds before the end at which it is announced.
WARNINGS = (600.0, 300.0, 60.0)
# Seconds kept for the end itself: ranks are asked, then their mpiexec gets two signals, then clients are told.
LAST = 15.0
# Seconds before the grace at which a signal may announce the end: it is asked for a minute ahead, and Slurm sends it up
# to another minute early.
ANNOUNCED = 150.0
# Seconds between two questions to the scheduler: it is asked by many, and limits change seldom.
_ASK = 60.0
# Seconds by which an end has to move to be another one; schedulers round, and count the start differently.
_MOVED = 30.0


def job_end(record: Record) -> Callable[[], float | None] | None:
    """Return what tells when the job ends, in seconds since the epoch; None if nothing will end it.

    Notes
    -----
    The function blocks, and returns None while nobody can tell. The scheduler's own word is better than the
    walltime that was asked for, since that may have been cut or extended. A cluster inside an allocation ends with it.
    """
    walltime = record.resources.walltime
    asked = None if walltime is None else time.time() + walltime
    scheduler, job = launcher(record.scheduler), record.job
    if record.scheduler == "here" and (around := current_allocation()):
        scheduler, job = launcher(around.scheduler), around.job
    if job is None or not scheduler.batch:
        return None if asked is None else lambda: asked
    told = asked

    def ask() -> float | None:
        nonlocal told
        told = scheduler.statuses([job])[job].end or told
        return told

    return ask


class Countdown:
    """What is due how long before the end.

    Parameters
    ----------
    grace
        Seconds before the end from which on no more work is taken; of a short job at most a quarter of its time,
        and never less than `LAST`.

    Attributes
    ----------
    ends : float or None
        When the job ends, in seconds since the epoch; None: not known.
    """

    def __init__(self, grace: float) -> None:
        self.ends: float | None = None
        self._grace = grace
        self._ahead: tuple[float, ...] = ()

    def update_deadline(self, ends: float | None, now: float) -> str:
        """Note when the job ends; return what is to be said of that, or nothing."""
        if ends is None:
            return ""
        before, self.ends = self.ends, ends
        if before is None:
            self._grace = max(LAST, min(self._grace, (ends - now) / 4))
        elif ends < before + _MOVED:
            return ""
        self._ahead, announced = tuple(span for span in WARNINGS if span < ends - now), self._ahead
        if before is None:
            return f"walltime: {_words(ends, now)}" if ends - now <= WARNINGS[0] else ""
        return f"walltime extended: {_words(ends, now)}" if self._ahead != announced else ""

    def warning(self, now: float) -> str:
        """Return the warning that is due now, or nothing."""
        if self.ends is None:
            return ""
        left = self.ends - now
        ahead = tuple(span for span in self._ahead if span < left)
        due, self._ahead = ahead != self._ahead, ahead
        return f"walltime: {_words(self.ends, now)}" if due else ""

    def should_drain(self, now: float) -> bool:
        """Tell whether it is time to take no more work."""
        return self.ends is not None and now >= self.ends - self._grace

    def is_final(self, now: float, since: float) -> bool:
        """Tell whether running tasks have had their time, when no work is taken since a certain moment."""
        ends = since + max(self._grace, LAST) if self.ends is None else self.ends
        return now >= ends - LAST


def _words(ends: float, now: float) -> str:
    left = max(0, math.ceil(ends - now))
    words = count(left // 60, "minute") if left >= 120 or left == 60 else f"{left} s"
    return f"{words} left, the job ends at {time.strftime('%H:%M:%S', time.localtime(ends))}"


class Walltime:
    """Follows the end of the job.

    Parameters
    ----------
    end
        Tells when the job ends, as `job_end` returns it.
    grace
        As for `Countdown`.
    learned
        Called with the end whenever it is told.
    say
        Takes a warning in words.
    drain
        Called with the reason when no more work is to be taken.
    """

    def __init__(
        self,
        end: Callable[[], float | None] | None,
        *,
        grace: float,
        learned: Callable[[float], None],
        say: Callable[[str], None],
        drain: Callable[[str], None],
    ) -> None:
        self._end, self._learned, self._say, self._drain = end, learned, say, drain
        self._announced = grace + ANNOUNCED
        self.countdown = Countdown(grace)

    def expects_end(self, now: float) -> bool:
        """Tell whether an end that a signal announces now is the one that is counted down to."""
        ends = self.countdown.ends
        return ends is not None and ends - now <= self._announced

    async def watch(self) -> None:
        """Warn, and drain when it is time; without an end, return at once."""
        if self._end is None:
            return
        # A scheduler may be slow to answer. A daemon's question holds up neither the countdown nor the head's exit.
        asking = (self._end, asyncio.get_running_loop())
        threading.Thread(target=self._ask_on, args=asking, name="walltime", daemon=True).start()
        while not self.countdown.should_drain(time.time()):
            if warning := self.countdown.warning(time.time()):
                self._say(warning)
            await asyncio.sleep(0.5)
        self._drain("its walltime is up")

    def _ask_on(self, end: Callable[[], float | None], loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop is closed: the head has ended
            while True:
                try:
                    ends = end()
                except Exception:
                    logger.exception("cannot tell when the job ends; asking again in %.0f s", _ASK)
                else:
                    loop.call_soon_threadsafe(self._learn, ends)
                time.sleep(_ASK)

    def _learn(self, ends: float | None) -> None:
        if ends is not None:
            self._learned(ends)
        if said := self.countdown.update_deadline(ends, time.time()):
            self._say(said)
