"""Operations of a communicator that are watched: here each of them begins, is waited for, ends, and is counted."""

from __future__ import annotations

import functools
import time
from array import array
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

from mpi4py import MPI

from workbench.mpi.call_state import CallState
from workbench.mpi.counters import STEP, Counters
from workbench.mpi.pairs import Pairs
from workbench.mpi.polling import barrier_or_cancel, keep_alive, poll, wait
from workbench.mpi.traffic import Destinations, TrafficCounter, is_collective, traffic_rule

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class InterruptibleComm(MPI.Intracomm):
    """A communicator whose operations can be ended from outside, and are counted if its watch has counters."""

    watch: CallState
    key: int
    """Tells it from other communicators, where it was made from none of ours."""
    _counting: TrafficCounter | None = None

    @functools.cached_property
    def gives(self) -> Pairs:
        """What a message to each rank adds to `CallState.messages`."""
        rank = self.rank
        return Pairs(lambda dest: (rank, dest))

    @functools.cached_property
    def takes(self) -> Pairs:
        """What a message from each rank takes from `CallState.messages`."""
        rank = self.rank
        return Pairs(lambda source: (source, rank))

    def _wait(self, request: MPI.Request, status: MPI.Status | None = None) -> None:
        wait(request, self.watch.check, status)

    def _run(
        self,
        twin: Callable[..., MPI.Request],
        *args: Any,
        status: MPI.Status | None = None,
        give_up: Callable[..., None] = keep_alive,
    ) -> None:
        """Post the non-blocking twin of an operation, and wait for it."""
        wait(twin(self, *args), self.watch.check, status, args, give_up)

    def meet(self, arriving: MPI.Request, *held: Any) -> None:
        """Return when all ranks are sure to make a call that cannot be ended, as `barrier_or_cancel` of `polling`.

        Parameters
        ----------
        arriving
            A collective operation that was posted.
        held
            What it reads and writes.
        """
        check = self.watch.check
        given_up: list[Any] = [arriving, held]

        def vote(yes: bool) -> Callable[[], bool | None]:
            votes = array("i", [yes])
            request = MPI.Comm.Iallreduce(self, MPI.IN_PLACE, votes, MPI.MIN)
            given_up.extend((request, votes))
            return lambda: bool(votes[0]) if request.Test() else None

        try:
            barrier_or_cancel(arriving.Test, vote, check)
        except BaseException:
            keep_alive(*given_up)
            check()
            raise

    def blocking(self, method: Callable[..., T], *args: Any, **options: Any) -> T:
        """Make a call that cannot be ended, once all ranks are sure to make it."""
        try:
            return method(self, *args, **options)
        finally:
            self.watch.check()

    def _until(self, attempt: Callable[[], T | None]) -> T:
        return cast("T", poll(attempt, self.watch.check))

    def counting(self, counters: Counters) -> TrafficCounter:
        """Return what counts for this communicator, in the counters of its watch."""
        counting = self._counting
        if counting is None:
            counting = self._counting = TrafficCounter.of(self, self.key, counters)
        elif counting.counters is not counters:
            counting.use(counters)
        return counting

    def _sent(self, operation: str, sends: Callable[[TrafficCounter], Destinations]) -> None:
        """Count what an operation sends whose arguments alone do not tell it."""
        if (counters := self.watch.counters) is not None:
            counting = self.counting(counters)
            entered = self.watch.since if self.watch.operation else time.monotonic()
            counting.sent(operation, sends(counting), entered)

    def _taken(self, source: int) -> None:
        """Count a message that will come from a rank, or has come."""
        if (counters := self.watch.counters) is not None:
            self.counting(counters).message_received(source)

    def _received_from(self, operation: str, source: int, status: MPI.Status | None) -> None:
        """Count a message that was waited for, from a rank or from that of the status."""
        if source == MPI.ANY_SOURCE and status is not None:
            source = status.source
        watch = self.watch
        watch.messages -= self.takes[source]
        if (counters := watch.counters) is not None:
            counting = self._counting
            if counting is None or counting.counters is not counters:
                counting = self.counting(counters)
            counting.message_received(source, operation, watch.since)


def _counts(name: str) -> Callable[[InterruptibleComm, Counters, tuple[Any, ...], dict[str, Any]], None]:
    """Return what counts an operation that is over, of the arguments that it was given."""
    sends, collective = traffic_rule(name), is_collective(name)

    def count(self: InterruptibleComm, counters: Counters, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        since, counting = self.watch.since, self._counting
        if counting is None or counting.counters is not counters:
            counting = self.counting(counters)
        if sends is not None:
            counting.sent(name, sends(counting, *args, **options), since)
        if collective:
            counting.number = number = counting.number + STEP
            if not number & counters.mask:
                counting.synchronised(name, since)

    return count


def operation(method: F) -> F:
    """Make a method an operation that is watched, under its own name. They do not nest."""
    name = method.__name__
    count = _counts(name)

    @functools.wraps(method)
    def watched(self: InterruptibleComm, *args: Any, **options: Any) -> Any:
        watch = self.watch
        watch.enter(name)
        try:
            result = method(self, *args, **options)
            if (counters := watch.counters) is not None:
                count(self, counters, args, options)
            return result
        finally:
            watch.leave()

    return cast("F", named(watched, name))


def waiting(blocking: F, twin: Callable[..., MPI.Request]) -> F:
    """Return the blocking operation as one that posts its non-blocking twin and waits for it."""
    name = blocking.__name__
    count = _counts(name)

    @functools.wraps(blocking)
    def watched(self: InterruptibleComm, *args: Any, **options: Any) -> None:
        # as `operation`, in one function: small messages take a few microseconds
        watch = self.watch
        watch.enter(name)
        try:
            wait(twin(self, *args, **options), watch.check, held=(args, options))
            if (counters := watch.counters) is not None:
                count(self, counters, args, options)
        finally:
            watch.leave()

    return cast("F", named(watched, name))


def posting(method: F) -> F:
    """Make a method an operation that is counted, and that cannot begin once the call was ended. Nobody waits in it."""
    name = method.__name__
    sends, collective = traffic_rule(name), is_collective(name)
    if name.endswith("_init"):
        sends = None  # poll it is started

    @functools.wraps(method)
    def post(self: InterruptibleComm, *args: Any, **options: Any) -> Any:
        self.watch.check()
        if (counters := self.watch.counters) is None:
            return method(self, *args, **options)
        counting = self.counting(counters)
        began = time.monotonic()
        result = method(self, *args, **options)
        if sends is not None:
            counting.sent(name, sends(counting, *args, **options), began)
        if collective:
            counting.number += STEP
        counters.called(name, time.monotonic() - began)
        return result

    return cast("F", named(post, name))


def named(function: Any, name: str) -> Any:
    """Give a function the name that tracebacks and stacks show."""
    if isinstance(function, FunctionType):
        function.__code__ = function.__code__.replace(co_name=name)
    return function
