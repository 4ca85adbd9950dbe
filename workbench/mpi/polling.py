"""Wait for MPI in a way that can be called off and holds no core for long."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.errors import CollectiveFailed

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

# Seconds to test at full speed, and then without a pause, but so that others may have the core.
_BUSY, _SPIN = 50e-6, 0.001
# Seconds of the longest pause.
_PAUSE = 0.001
# Seconds for what MPI completes without any other rank.
_AT_ONCE = 1.0
# Seconds that a rank which is told to stop helps to carry the votes of others.
_GRACE = 0.2
# Seconds for the verdict of ranks that have all arrived.
_VERDICT = 60.0


# By thread: requests that were given up, and their buffers, which MPI may use until they are complete. A thread of the
# user may end before that.
_abandoned: dict[int, list[tuple[Any, ...]]] = {}


def keep_alive(*things: Any) -> None:
    """Keep requests that are given up, and what they write to, until `release` finds them complete."""
    _abandoned.setdefault(threading.get_ident(), []).append(things)


def release() -> None:
    """Let go of requests, and of their buffers, that MPI is done with: of this thread, and of those that have ended."""
    others = sys._current_frames().keys() - {threading.get_ident()}  # noqa: SLF001  (documented)
    for thread in _abandoned.keys() - others:
        # An interrupt may come at any time, and is to lose none.
        _abandoned[thread] = [things for things in _abandoned[thread] if not all(map(is_over, things))]


def is_over(thing: Any) -> bool:
    """Tell whether MPI is done with a thing, if it is a request.

    Notes
    -----
    The user may have freed a persistent request by a copy, ``MPI.Prequest(request)``, and MPI may use its memory for
    another one. So a persistent request is neither completed nor freed here: a rank has crashed by that.
    """
    from mpi4py import MPI

    if not isinstance(thing, MPI.Request) or not thing:
        return True
    try:
        return thing.Get_status() if isinstance(thing, MPI.Prequest) else MPI.Request.Test(thing)
    except MPI.Exception:  # of the operation, and nobody asks for that any more
        return isinstance(thing, MPI.Prequest) or not thing


def completes(attempt: Callable[[], object]) -> bool:
    """Tell whether something becomes true that does not depend on any other rank, as the end of a cancelled receive."""
    deadline = time.monotonic() + _AT_ONCE
    while not attempt():
        if time.monotonic() > deadline:
            return False
    return True


def withdraw(receive: MPI.Request, *held: Any) -> None:
    """Cancel a receive that is given up, so that it takes no message of later and needs its buffer no longer."""
    if receive:
        receive.Cancel()
        if not completes(receive.Test):
            keep_alive(receive, *held)


def poll(attempt: Callable[[], T], check: Callable[[], None]) -> T:
    """Attempt again and again, and return the first result that is true.

    At once for a millisecond, then with pauses of a twentieth of what it has taken so far, at most a millisecond.

    Parameters
    ----------
    check
        Called between attempts; raises to break off.
    """
    began = time.monotonic()
    while not (result := attempt()):
        check()
        waited = time.monotonic() - began
        if waited > _SPIN:
            time.sleep(min(waited / 20, _PAUSE))
        elif waited > _BUSY:
            os.sched_yield()
    return result


def wait(
    request: MPI.Request,
    check: Callable[[], None],
    status: MPI.Status | None = None,
    held: object = None,
    give_up: Callable[..., None] = keep_alive,
) -> None:
    """Wait for a request.

    Parameters
    ----------
    check
        Called again and again while it waits; raises to break off. The request is abandoned then, and the
        communicator is of no use for operations of this kind.
    status
        Filled in when it is complete.
    held
        What MPI reads and writes: kept with the request if that is abandoned. mpi4py's own requests of reductions and
        some others do not hold it.
    give_up
        What is done with the request, and with what is held, if it is given up: `withdraw` for a receive.
    """
    try:
        if not request.Test(status):
            poll(request.Test if status is None else partial(request.Test, status), check)
    except BaseException:
        if request:  # else it is complete, though in error
            give_up(request, held)
        check()  # an order to stop is the reason for whatever else goes wrong after it
        raise


def barrier_or_cancel(
    arrived: Callable[[], object], vote: Callable[[bool], Callable[[], bool | None]], check: Callable[[], None]
) -> None:
    """Return when all ranks are sure to make a call of MPI that cannot be ended; raise where they are not.

    Parameters
    ----------
    arrived
        Tells whether all ranks are here.
    vote
        Gives the vote of this rank, and returns what tells the verdict: None until it is known, then whether all ranks
        have voted for the call.
    check
        As for `until`.

    Raises
    ------
    CollectiveFailed
        If another rank was told to stop and `check` does not raise, or if another rank does not vote.

    Notes
    -----
    What a rank does on its way in stays, so a rank that comes late finds the others here although they have left.
    Therefore all ranks vote once all have arrived. A rank that is told to stop before it has voted votes against the
    call, and leaves; nobody can make the call then, whoever comes late. A rank that has voted for the call does not
    leave before the verdict, whatever it is told; all others have arrived, so each of them votes, the one that is
    held up as soon as it can run. So if one rank makes the call then all ranks make it. The rank that is held up would
    keep the others from their next call in any case; they wait for it no longer than a minute.
    """
    try:
        poll(arrived, check)
        check()
    except BaseException:
        left = time.monotonic() + _GRACE
        with contextlib.suppress(Exception):  # of MPI, if a rank is dead
            verdict = vote(False)
            # The votes of others may pass here.
            poll(lambda: verdict() is not None or time.monotonic() > left, lambda: None)
        raise
    verdict = vote(True)
    within = Deadline(_VERDICT, "a rank did not vote on a call of MPI: it does not run, or is gone")
    poll(lambda: verdict() is not None, within.check)
    if not verdict():
        within = Deadline(_VERDICT, "another rank was told to stop before a call of MPI that all ranks have to make")

        def told() -> None:
            check()
            within.check()

        poll(lambda: False, told)


class Deadline:
    """A limit to how long something is waited for.

    Parameters
    ----------
    seconds
        From now on.
    what
        What has happened if the time is over.
    """

    def __init__(self, seconds: float, what: str) -> None:
        self._until, self._words = time.monotonic() + seconds, f"{what}. The wait of {seconds:.0f} s is over"

    def check(self) -> None:
        """Return as long as the time is not over.

        Raises
        ------
        CollectiveFailed
            Once it is.
        """
        if time.monotonic() > self._until:
            raise CollectiveFailed(self._words)
