"""What a thread does in MPI right now, and the order to stop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from workbench.mpi.counters import Counters

# Requests that are remembered before those that are done with are looked for among them.
_MANY = 64


class CallCancelled(BaseException):
    """The call that this rank takes part in was ended from outside.

    Notes
    -----
    A `BaseException`, as `KeyboardInterrupt` is, so that ``except Exception`` in the code of a user lets it through.
    """


class CallState:
    """What a thread does in MPI right now, and whether it is to stop.

    There is one for each call or cell; a communicator shares it with all that are made from it.

    Parameters
    ----------
    counters
        Where to count the operations, and what they send; None: nowhere.

    Attributes
    ----------
    counters : Counters or None
        As given. The next cell on a communicator may set another one, where the ranks are alike in the program.
    operation : str or None
        Where the thread is, as ``"Allreduce"``; None while it is in the code of the user.
    since : float
        Of `time.monotonic`: when it entered that operation, or left the last one.
    count : int
        Operations begun so far: as long as it grows, the call makes progress.
    ended : str or None
        The reason, once the call was ended.

    Notes
    -----
    `end` may be called from any thread, and the attributes read from any; the thread that is watched does the rest.
    """

    __slots__ = (
        "_many",
        "count",
        "counters",
        "doubtful",
        "ended",
        "messages",
        "operation",
        "posted",
        "since",
        "unknown",
    )

    def __init__(self, counters: Counters | None = None) -> None:
        self.counters = counters
        self.operation: str | None = None
        self.since = time.monotonic()
        self.count = 0
        self.ended: str | None = None
        self.messages = 0
        """Of messages that were sent less those that were received, or will be: as of `Pairs`."""
        self.unknown = 0
        """Receives from any rank of which nobody has seen yet whose message they got."""
        self.doubtful = False
        """Whether the communicator may not be as it was, or messages be on their way that are not counted."""
        self.posted: list[Any] = []
        """Requests that the user has, and maybe has not waited for: MPI may write to their buffers."""
        self._many = _MANY

    def post(self, request: Any) -> None:
        """Remember a request, and its buffers with it, until it is complete."""
        self.posted.append(request)
        if len(self.posted) > self._many:
            self.tidy()

    def tidy(self) -> None:
        """Forget the requests that are complete, and their buffers with them."""
        self.posted = [its for its in self.posted if its]
        self._many = 2 * len(self.posted) + _MANY

    def end(self, reason: str) -> None:
        """End the call: the operation in progress and all later ones raise `CallCancelled`. The first reason stays."""
        if self.ended is None:
            self.ended = reason

    def check(self) -> None:
        """Return as long as the call goes on.

        Raises
        ------
        CallCancelled
            With the reason, once it was ended.
        """
        if self.ended is not None:
            raise CallCancelled(self.ended)

    def enter(self, operation: str) -> None:
        """Note that an operation begins.

        Raises
        ------
        CallCancelled
            If the call was ended before.
        """
        if self.ended is not None:
            raise CallCancelled(self.ended)
        self.operation = operation
        self.count += 1
        self.since = time.monotonic()

    def leave(self) -> None:
        """Note that the operation is over, however it went."""
        now, counters = time.monotonic(), self.counters
        if counters is not None and self.operation is not None:
            counts = counters.operations[self.operation]  # as `Counters.called`, but for a call less
            counts[0] += 1
            counts[2] += now - self.since
            if counters.locate is not None:
                counters.count_call_site(self.operation, now - self.since)
        self.operation, self.since = None, now

    @contextlib.contextmanager
    def doing(self, operation: str) -> Iterator[None]:
        """Enter an operation, and leave it at the end of the block."""
        self.enter(operation)
        try:
            yield
        finally:
            self.leave()
