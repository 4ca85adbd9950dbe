"""Cancelable waits for MPI that do not occupy a core for long."""

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

# Seconds of tests at full speed, and seconds until then of tests that yield the core after each one.
_BUSY, _SPIN = 50e-6, 0.001
# Seconds of a yield that show that other programs use the core, and seconds for which pauses then replace yields: a
# program that has yielded is the last to get a busy core again, and one that has paused is the first.
_TAKEN, _CROWDED = 500e-6, 0.2
# Seconds of the longest pause between tests.
_MAX_PAUSE = 0.001
# Seconds for operations that MPI completes without another rank.
_LOCAL_TIMEOUT = 1.0
# Seconds that a canceled rank makes progress for the votes of others.
_FORWARD_TIMEOUT = 0.2
# Seconds for the verdict of ranks that have all arrived.
_VERDICT_TIMEOUT = 60.0


_crowded_until = 0.0

# By thread: abandoned requests and their buffers, which MPI may use until they are complete. A thread of the user may
# end before that.
abandoned: dict[int, list[tuple[Any, ...]]] = {}


def keep_alive(*things: Any) -> None:
    """Keep abandoned requests and their buffers until `release` finds them complete."""
    abandoned.setdefault(threading.get_ident(), []).append(things)


def release() -> None:
    """Drop the complete requests, with their buffers, of this thread and of threads that have ended."""
    others = sys._current_frames().keys() - {threading.get_ident()}  # noqa: SLF001  (documented)
    for thread in abandoned.keys() - others:
        # One assignment, so that an interrupt loses no request.
        abandoned[thread] = [things for things in abandoned[thread] if not all(map(is_over, things))]


def is_over(thing: Any) -> bool:
    """Return whether a request is complete; True for other objects.

    The user may have freed a persistent request through a copy, ``MPI.Prequest(request)``, and MPI may have reused its
    memory. Completing or freeing such a request can crash the rank, so this function only queries persistent requests.
    """
    from mpi4py import MPI

    if not isinstance(thing, MPI.Request) or not thing:
        return True
    try:
        return thing.Get_status() if isinstance(thing, MPI.Prequest) else MPI.Request.Test(thing)
    except MPI.Exception:  # the error of an abandoned operation
        return isinstance(thing, MPI.Prequest) or not thing


def completes(attempt: Callable[[], object]) -> bool:
    """Return whether `attempt` succeeds in time; it must not depend on other ranks, like a canceled receive."""
    deadline = time.monotonic() + _LOCAL_TIMEOUT
    while not attempt():
        if time.monotonic() > deadline:
            return False
    return True


def withdraw(receive: MPI.Request, *buffers: Any) -> None:
    """Cancel an abandoned receive, so that it matches no later message and its buffer can be freed."""
    if receive:
        receive.Cancel()
        if not completes(receive.Test):
            keep_alive(receive, *buffers)


def poll(attempt: Callable[[], T], check: Callable[[], None]) -> T:
    """Call `attempt` repeatedly and return the first true result; `check` is called in between and may raise.

    The pauses are a twentieth of the elapsed time, at most one millisecond. They begin after one millisecond, or after
    50 microseconds while other programs use the core.
    """
    global _crowded_until  # noqa: PLW0603  (all waits of the process share its cores)
    began = time.monotonic()
    while not (result := attempt()):
        check()
        now = time.monotonic()
        waited = now - began
        if waited > (_SPIN if now > _crowded_until else _BUSY):
            time.sleep(min(waited / 20, _MAX_PAUSE))
        elif waited > _BUSY:
            os.sched_yield()
            if time.monotonic() - now > _TAKEN:
                _crowded_until = now + _CROWDED
    return result


def wait(
    request: MPI.Request,
    check: Callable[[], None],
    status: MPI.Status | None = None,
    buffers: object = None,
    give_up: Callable[..., None] = keep_alive,
) -> None:
    """Wait for a request.

    Parameters
    ----------
    check
        Called repeatedly during the wait; raises to cancel it. Then the request is abandoned, and the communicator must
        not be used for such operations.
    status
        Set when the request is complete.
    buffers
        Buffers to keep with an abandoned request. mpi4py's requests of reductions and some others do not hold them.
    give_up
        Called with the request and the buffers if the request is abandoned: `withdraw` for a receive.
    """
    try:
        if not request.Test(status):
            poll(request.Test if status is None else partial(request.Test, status), check)
    except BaseException:
        if request:  # otherwise it is complete, with an error
            give_up(request, buffers)
        check()  # a cancellation is the cause of other errors after it
        raise


def barrier_or_cancel(
    arrived: Callable[[], object], vote: Callable[[bool], Callable[[], bool | None]], check: Callable[[], None]
) -> None:
    """Return when all ranks will make a call of MPI that cannot be canceled; raise on all ranks otherwise.

    Parameters
    ----------
    arrived
        Returns whether all ranks have arrived.
    vote
        Sends the vote of this rank, and returns a function for the verdict: None until the verdict is known, then
        whether all ranks have voted for the call.
    check
        As for `poll`.

    Raises
    ------
    CollectiveFailed
        If another rank was canceled and `check` does not raise, or if another rank does not vote.

    Notes
    -----
    An arrival cannot be withdrawn, so a late rank sees the others as arrived although they have left. Therefore
    all ranks vote after all have arrived. A rank that is canceled before its vote votes against the
    call and leaves. Then no rank makes the call, also no late one. A rank that has voted for the call waits for the
    verdict, also if it is canceled. All others have arrived, so each of them votes, a suspended one as soon as it
    runs. So either all ranks make the call or none. A suspended rank would also delay the next call of the others. They
    wait for its vote for at most one minute.
    """
    try:
        poll(arrived, check)
        check()
    except BaseException:
        until = time.monotonic() + _FORWARD_TIMEOUT
        with contextlib.suppress(Exception):  # MPI raises if a rank is dead
            verdict = vote(False)
            # This rank may have to forward the votes of others.
            poll(lambda: verdict() is not None or time.monotonic() > until, lambda: None)
        raise
    verdict = vote(True)
    deadline = Deadline(_VERDICT_TIMEOUT, "a rank did not vote on a call of MPI, because it hangs or has ended")
    poll(lambda: verdict() is not None, deadline.check)
    if not verdict():
        deadline = Deadline(_VERDICT_TIMEOUT, "another rank was canceled before a call of MPI that all ranks must make")

        def check_both() -> None:
            check()
            deadline.check()

        poll(lambda: False, check_both)


class Deadline:
    """A deadline in `seconds` from now, with a message for its end."""

    def __init__(self, seconds: float, message: str) -> None:
        self._until, self._message = time.monotonic() + seconds, f"{message}. The wait of {seconds:.0f} s has ended"

    def check(self) -> None:
        """Raise CollectiveFailed after the deadline."""
        if time.monotonic() > self._until:
            raise CollectiveFailed(self._message)
