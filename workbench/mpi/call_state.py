"""The MPI state of a thread: the operation in progress, and the request to cancel the call."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from workbench.mpi.counters import Counters

# Number of posted requests above which complete ones are dropped, at least.
_MIN_TIDY = 64
# Why a thread that a call has left is ended.
RETURNED = "the function of the call that has started this thread has returned"


class CallCancelled(BaseException):
    """The call of this rank was canceled.

    Notes
    -----
    A `BaseException`, like `KeyboardInterrupt`, so that ``except Exception`` in user code does not catch it.
    """


class CallState:
    """The MPI state of one call or cell; a communicator shares it with all communicators derived from it.

    Parameters
    ----------
    counters
        Counters of the operations and their traffic; None: nothing is counted.

    Attributes
    ----------
    compares : bool
        Whether the ranks compare their buffers in each blocking collective operation, see `matching_buffers`.
    counters : Counters or None
        The argument; the next cell on a communicator may replace it, at the same point of the program on all ranks.
    operation : str or None
        The operation in progress, for example ``"Allreduce"``; None in user code.
    since : float
        Entry into that operation, or exit from the last one, in seconds of `time.monotonic`.
    count : int
        Operations begun so far; the call makes progress while the count grows.
    ended : str or None
        The reason, once the call was canceled.

    Notes
    -----
    Any thread may call `end` and read the attributes; only the thread of the call does the rest.
    """

    __slots__ = (
        "_tidy_above",
        "compares",
        "count",
        "counters",
        "ended",
        "maybe_modified",
        "messages",
        "operation",
        "posted",
        "returned",
        "since",
        "unknown",
    )

    def __init__(self, counters: Counters | None = None) -> None:
        self.counters = counters
        self.compares = False
        self.operation: str | None = None
        self.since = time.monotonic()
        self.count = 0
        self.ended: str | None = None
        self.returned: tuple[int | None, ...] | None = None
        """The threads of calls and cells, once the function has returned: operations of others then raise an error."""
        self.messages = 0
        """Sum of the `Pairs` numbers of sent messages, minus those of received messages."""
        self.unknown = 0
        """Receives from any rank whose source is not known yet."""
        self.maybe_modified = False
        """Whether the communicator may have been changed, or may have messages in flight that are not counted."""
        self.posted: list[Any] = []
        """Requests that the user may not have waited for: MPI may still write to their buffers."""
        self._tidy_above = _MIN_TIDY

    def post(self, request: Any) -> None:
        """Keep a request and its buffers until the request is complete."""
        self.posted.append(request)
        if len(self.posted) > self._tidy_above:
            self.tidy()

    def tidy(self) -> None:
        """Drop the complete requests and their buffers."""
        self.posted = [request for request in self.posted if request]
        self._tidy_above = 2 * len(self.posted) + _MIN_TIDY

    def end(self, reason: str) -> None:
        """Cancel the call: the current operation and all later ones raise `CallCancelled` with the first reason."""
        if self.ended is None:
            self.ended = reason

    def end_left_threads(self, *, complete: bool) -> None:
        """End the operations of threads that the function has left: they would take messages of the next call."""
        self.returned = threading.get_ident(), threading.main_thread().ident
        if not complete or self.operation is not None:
            self.end(RETURNED)

    def check(self) -> None:
        """Raise `CallCancelled` if the call was canceled, or if this is a thread that the function has left."""
        if self.ended is not None:
            raise CallCancelled(self.ended)
        if self.returned is not None and threading.get_ident() not in self.returned:
            raise CallCancelled(RETURNED)

    def enter(self, operation: str) -> None:
        """Begin an operation; raises the errors of `check`."""
        if self.ended is not None or self.returned is not None:
            self.check()
        self.operation = operation
        self.count += 1
        self.since = time.monotonic()

    def leave(self) -> None:
        """End the operation, successful or not."""
        now, counters = time.monotonic(), self.counters
        if counters is not None and self.operation is not None:
            counts = counters.operations[self.operation]  # `Counters.called`, inlined for speed
            counts[0] += 1
            counts[2] += now - self.since
            if counters.locate is not None:
                counters.count_call_site(self.operation, now - self.since)
        self.operation, self.since = None, now

    @contextlib.contextmanager
    def entered(self, operation: str, *, counted: bool = True) -> Iterator[None]:
        """Enter an operation, and leave it at the end of the block; counters leave out what is not one of the user."""
        counters = self.counters
        self.counters = counters if counted else None
        self.enter(operation)
        try:
            yield
        finally:
            self.leave()
            self.counters = counters
