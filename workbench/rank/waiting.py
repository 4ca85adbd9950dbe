"""Wait for MPI in a way that can be called off and holds no core for long."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

# Seconds to test at full speed, and then without a pause, but so that others may have the core.
_BUSY, _SPIN = 50e-6, 0.001
# Seconds of the longest pause.
_PAUSE = 0.001
# Seconds for what MPI completes without any other rank.
_AT_ONCE = 1.0
# Seconds that a rank waits on, once it is told to stop, for the others to come to where they cannot be stopped.
_GRACE = 0.2


class _Abandoned(threading.local):
    """Of each thread: requests that were given up, and their buffers, which MPI may use until they are complete."""

    def __init__(self) -> None:
        self.things: list[tuple[Any, ...]] = []


_abandoned = _Abandoned()


def abandon(*things: Any) -> None:
    """Keep requests that are given up, and what they write to, until `release` finds them complete."""
    _abandoned.things.append(things)


def release() -> None:
    """Let go of the requests that this thread gave up and MPI is done with, and of their buffers."""
    _abandoned.things = [things for things in _abandoned.things if not all(map(_is_over, things))]


def _is_over(thing: Any) -> bool:
    """Tell whether MPI is done with a thing, if it is a request."""
    from mpi4py import MPI

    if not isinstance(thing, MPI.Request):
        return True
    with contextlib.suppress(MPI.Exception):  # of the operation, and nobody asks for that any more
        if thing and MPI.Request.Test(thing) and thing:
            MPI.Request.Free(thing)  # a persistent one
    return not thing


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
            abandon(receive, *held)


def until(attempt: Callable[[], T], check: Callable[[], None]) -> T:
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


def complete(
    request: MPI.Request,
    check: Callable[[], None],
    status: MPI.Status | None = None,
    held: object = None,
    give_up: Callable[..., None] = abandon,
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
            until(request.Test if status is None else partial(request.Test, status), check)
    except BaseException:
        if request:  # else it is complete, though in error
            give_up(request, held)
        raise


def meet(attempt: Callable[[], object], check: Callable[[], None]) -> BaseException | None:
    """Wait for all ranks, before an operation that cannot be ended; return what is to be raised after it, if anything.

    A rank that is told to stop may have been seen by others, who are in the operation by now: then it has to go there
    as well. So it breaks off only if somebody is still missing some time later.

    Parameters
    ----------
    attempt
        Tells whether all are here.
    check
        As for `until`.
    """
    try:
        until(attempt, check)
    except BaseException as error:
        deadline = time.monotonic() + _GRACE
        while not attempt():
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
        return error
    return None
