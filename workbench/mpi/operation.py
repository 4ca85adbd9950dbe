"""The parts that all operations of a communicator share: entry, cancelable wait, exit and counting."""

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
from workbench.mpi.matching_buffers import COMPARED, compare_each_use
from workbench.mpi.polling import barrier_or_cancel, keep_alive, poll, wait
from workbench.mpi.traffic import Destinations, TrafficCounter, is_collective, traffic_rule

# Below 2**28: Python adds larger numbers more slowly.
_LARGEST = 0xFFFFFFF


@functools.cache
def collective_number(rank: int, size: int) -> int:
    """Return the number that a rank of a communicator adds for each collective operation.

    The sum of all ranks is zero, also of several operations, if all have made as many.
    """
    if rank == 0:
        return -sum(collective_number(other, size) for other in range(1, size))
    # Three numbers, since the hashes of two are those of `Pairs`.
    return hash((rank, size, size)) & _LARGEST


class Pairs(dict[int, int]):
    """By rank: a number for the pair of that rank and this one; 0 for `MPI.PROC_NULL`.

    Parameters
    ----------
    pair
        Returns the sender and the receiver, as ranks of their communicator, for the rank of the other.

    Notes
    -----
    The sender adds the number of its pair and the receiver subtracts it, so the sum of all ranks is zero if each
    message was received. The numbers are hashes, so two lost messages do not cancel out.
    """

    def __init__(self, pair: Callable[[int], tuple[int, int]]) -> None:
        super().__init__({MPI.PROC_NULL: 0})
        self._pair = pair

    def __missing__(self, rank: int) -> int:
        """Return the number of a rank at its first use."""
        number = self[rank] = hash(self._pair(rank)) & _LARGEST
        return number


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class InterruptibleComm(MPI.Intracomm):
    """A communicator whose operations can be canceled, and are counted if the state of the call has counters."""

    watch: CallState
    key: int
    """Identity of the communicator in synchronizations."""
    collectives: int = 0
    """Collective operations that this rank has begun on the communicator."""
    compared: tuple[str, ...] = ()
    """Operations whose first arrays the ranks have compared, see `same_buffers`."""
    one_node: bool | None = None
    """Whether all ranks share a node, once `node_reduction.on_one_node` has found out."""
    large_reductions: int = 0
    """Large arrays that the ranks have reduced on one node."""
    shared_reduction: Any = None
    """The `shared_reduction.SharedReduction` for more of them, or None."""
    _counting: TrafficCounter | None = None

    @functools.cached_property
    def sent_pairs(self) -> Pairs:
        """By rank: the number that a message to this rank adds to `CallState.messages`."""
        rank = self.rank
        return Pairs(lambda dest: (rank, dest))

    @functools.cached_property
    def received_pairs(self) -> Pairs:
        """By rank: the number that a message from this rank subtracts from `CallState.messages`."""
        rank = self.rank
        return Pairs(lambda source: (source, rank))

    def _wait(self, request: MPI.Request, status: MPI.Status | None = None) -> None:
        wait(request, self.watch.check, status)

    def _run(
        self,
        counterpart: Callable[..., MPI.Request],
        *args: Any,
        status: MPI.Status | None = None,
        give_up: Callable[..., None] = keep_alive,
    ) -> None:
        """Post the non-blocking counterpart of an operation, and wait for it."""
        wait(counterpart(self, *args), self.watch.check, status, args, give_up)

    def synchronize(self, arriving: MPI.Request, *buffers: Any) -> None:
        """Return when all ranks will make a call that cannot be canceled, see `barrier_or_cancel`.

        `arriving` is a posted collective operation on `buffers`.
        """
        check = self.watch.check
        outstanding: list[Any] = [arriving, buffers]

        def vote(yes: bool) -> Callable[[], bool | None]:
            votes = array("i", [yes])
            request = MPI.Comm.Iallreduce(self, MPI.IN_PLACE, votes, MPI.MIN)
            outstanding.extend((request, votes))
            return lambda: bool(votes[0]) if request.Test() else None

        try:
            barrier_or_cancel(arriving.Test, vote, check)
        except BaseException:
            keep_alive(*outstanding)
            check()
            raise

    def blocking(self, method: Callable[..., T], *args: Any, **options: Any) -> T:
        """Make a call that cannot be canceled, after `synchronize`."""
        try:
            return method(self, *args, **options)
        finally:
            self.watch.check()

    def _until(self, attempt: Callable[[], T | None]) -> T:
        return cast("T", poll(attempt, self.watch.check))

    def counting(self, counters: Counters) -> TrafficCounter:
        """Return the traffic counter of this communicator for these counters."""
        counting = self._counting
        if counting is None:
            counting = self._counting = TrafficCounter.of(self, self.key, counters)
        elif counting.counters is not counters:
            counting.use(counters)
        return counting

    def _count_sent(self, operation: str, sends: Callable[[TrafficCounter], Destinations]) -> None:
        """Count the traffic of an operation that has no rule for its arguments."""
        if (counters := self.watch.counters) is not None:
            counting = self.counting(counters)
            entered = self.watch.since if self.watch.operation else time.monotonic()
            counting.sent(operation, sends(counting), entered)

    def _count_received(self, source: int) -> None:
        """Count a message from a rank, received or expected."""
        if (counters := self.watch.counters) is not None:
            self.counting(counters).message_received(source)

    def _received_from(self, operation: str, source: int, status: MPI.Status | None) -> None:
        """Count a message that was waited for, from `source` or from that of the status."""
        if source == MPI.ANY_SOURCE and status is not None:
            source = status.source
        watch = self.watch
        watch.messages -= self.received_pairs[source]
        if (counters := watch.counters) is not None:
            counting = self._counting
            if counting is None or counting.counters is not counters:
                counting = self.counting(counters)
            counting.message_received(source, operation, watch.since)


def _counting_of(name: str) -> Callable[[InterruptibleComm, Counters, tuple[Any, ...], dict[str, Any]], None]:
    """Return the function that counts a complete operation from its arguments."""
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
                counting.synchronized(name, since)

    return count


def operation(method: F) -> F:
    """Make a method a cancelable, counted operation. Operations do not nest."""
    name = method.__name__
    count, collective, compared = _counting_of(name), is_collective(name), name in COMPARED

    @functools.wraps(method)
    def run(self: InterruptibleComm, *args: Any, **options: Any) -> Any:
        watch = self.watch
        watch.enter(name)
        try:
            if compared and watch.compares:
                compare_each_use(self, watch.check, name, args, options)
            result = method(self, *args, **options)
            if collective:
                self.collectives += 1
            if (counters := watch.counters) is not None:
                count(self, counters, args, options)
            return result
        finally:
            watch.leave()

    return cast("F", named(run, name))


def via_nonblocking(blocking: F, counterpart: Callable[..., MPI.Request]) -> F:
    """Return a blocking collective operation that posts its non-blocking counterpart and waits for it."""
    name = blocking.__name__
    count, compared = _counting_of(name), name in COMPARED

    @functools.wraps(blocking)
    def run(self: InterruptibleComm, *args: Any, **options: Any) -> None:
        # This is `operation` inlined, because small messages take a few microseconds.
        watch = self.watch
        watch.enter(name)
        try:
            if compared and watch.compares:
                compare_each_use(self, watch.check, name, args, options)
            wait(counterpart(self, *args, **options), watch.check, buffers=(args, options))
            self.collectives += 1
            if (counters := watch.counters) is not None:
                count(self, counters, args, options)
        finally:
            watch.leave()

    return cast("F", named(run, name))


def posting(method: F) -> F:
    """Make a method a counted operation that does not wait, and does not begin after the call was canceled."""
    name = method.__name__
    sends, collective = traffic_rule(name), is_collective(name)
    if name.endswith("_init"):
        sends = None  # counted at each start

    @functools.wraps(method)
    def post(self: InterruptibleComm, *args: Any, **options: Any) -> Any:
        self.watch.check()
        began = time.monotonic()
        result = method(self, *args, **options)
        if collective:
            self.collectives += 1
        if (counters := self.watch.counters) is None:
            return result
        counting = self.counting(counters)
        if sends is not None:
            counting.sent(name, sends(counting, *args, **options), began)
        if collective:
            counting.number += STEP
        counters.called(name, time.monotonic() - began)
        return result

    return cast("F", named(post, name))


def named(function: Any, name: str) -> Any:
    """Set the name of a function in tracebacks and stacks."""
    if isinstance(function, FunctionType):
        function.__code__ = function.__code__.replace(co_name=name)
    return function
