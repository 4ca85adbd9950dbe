"""An operation on ranks of a world that has the turn: a call, the part of a broadcast in one world, or a cell."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from workbench.collective.rank_rpc import RankRPC
from workbench.errors import CollectiveTimeout

if TYPE_CHECKING:
    from distributed import Scheduler

    from workbench.collective.queue import CallQueue
    from workbench.deploy.world import MPIWorld

Outcome = TypeVar("Outcome")
Result = TypeVar("Result")
Running: TypeAlias = Mapping[int, asyncio.Future[Outcome]]
"""Futures of the outcomes, by rank."""


class RankOperation(ABC, Generic[Outcome, Result]):
    """Begins when all members are prepared, and ends on all members at a deadline or when one fails."""

    grace: ClassVar[float]
    """Seconds for the ranks to return when the operation is ended."""
    ends_when_cancelled: ClassVar[bool] = True
    """Whether a cancellation ends an operation that has begun."""

    def __init__(
        self, scheduler: Scheduler, queue: CallQueue, world: MPIWorld, members: RankRPC, deadline: float
    ) -> None:
        self._scheduler, self._queue, self._world, self._members = scheduler, queue, world, members
        self._deadline = deadline
        self._stopped = asyncio.Event()
        self._cancelled = "the call was cancelled"
        """Reason that the ranks report for a cancelled operation."""
        self._first: int | None = None
        """The rank whose failure has ended the operation."""

    @functools.cached_property
    def _serial(self) -> int:
        """Number of the communicator of the ranks."""
        return self._queue.communicator(self._world, list(self._members.ranks))

    async def run(self) -> Result:
        """Prepare all ranks, run the operation, and return the result."""
        try:
            async with asyncio.timeout_at(self._deadline):
                result = await self._prepare()
        except BaseException as error:
            self._end("it was called off", begun=False)
            if isinstance(error, TimeoutError) and not isinstance(error, CollectiveTimeout) and not self._left():
                raise self._not_ready() from None
            raise
        if result is not None:
            return result
        running = {rank: asyncio.ensure_future(self._go(rank)) for rank in self._members.ranks}
        supervising = asyncio.ensure_future(self._supervise(running))
        try:
            return await asyncio.shield(supervising)
        except asyncio.CancelledError:
            if self.ends_when_cancelled:
                self._stopped.set()
            # Also after several cancellations: the next operation must wait for the end of this one.
            while not supervising.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([supervising])
            raise

    async def _supervise(self, running: Running[Outcome]) -> Result:
        """Wait for all ranks, or until one fails; then end the operation on the others."""
        order = await self._wait(running)
        if self._succeeded(running):
            return await self._finish([future.result() for future in running.values()])
        return await self._break_off(running, order)

    async def _wait(self, running: Running[Outcome]) -> list[int]:
        """Return the ranks that have ended, in order, when all have ended, one has failed, or the end is requested."""
        order: list[int] = []
        # An event, so that the end of one rank of many does not search all ranks.
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(rank: int, future: asyncio.Future[Outcome]) -> None:
            order.append(rank)
            if not over.done() and (len(order) == len(running) or self._failed(future)):
                over.set_result(None)

        if not running:
            over.set_result(None)
        for rank, future in running.items():
            future.add_done_callback(functools.partial(ended, rank))
        stopping = asyncio.ensure_future(self._stopped.wait())
        either: list[asyncio.Future[Any]] = [over, stopping]
        try:
            while True:
                seconds = min(self._check_wanted(), self._left())
                done, _ = await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if done or not self._left():
                    return order  # ranks that end later are appended
        finally:
            stopping.cancel()

    async def _break_off(self, running: Running[Outcome], order: Sequence[int]) -> Result:
        """End the operation on all ranks, and return or raise what has happened."""
        self._retire()
        self._first = next((rank for rank in order if self._failed(running[rank])), None)
        if self._first is not None:
            reason = f"rank {self._first} of world {self._world.index} failed"
        else:
            reason = self._cancelled if self._stopped.is_set() else "its time is over"
        self._end(reason, begun=True)
        if waiting := [future for future in running.values() if not future.done()]:
            await asyncio.wait(waiting, timeout=self.grace)
        return await self._broken(running, order)

    def _succeeded(self, running: Running[Outcome]) -> bool:
        return all(future.done() and not self._failed(future) for future in running.values())

    def _left(self) -> float:
        """Return the seconds until the deadline."""
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    # -- of subclasses -----------------------------------------------------------------------------------------

    @abstractmethod
    async def _prepare(self) -> Result | None:
        """Prepare all ranks; return a result if no rank has to run anything."""

    @abstractmethod
    def _go(self, rank: int) -> Awaitable[Outcome]:
        """Start the operation on a rank; return the future of its outcome."""

    @abstractmethod
    async def _finish(self, outcomes: list[Outcome]) -> Result:
        """Return the result of an operation that has not failed on any rank."""

    @abstractmethod
    def _end(self, reason: str, *, begun: bool) -> None:
        """Ask the ranks to end the operation; if `begun`, they may have sent messages."""

    @abstractmethod
    async def _broken(self, running: Running[Outcome], order: Sequence[int]) -> Result:
        """Return the result or raise the error of an operation that was ended; some ranks may not have returned."""

    def _not_ready(self) -> CollectiveTimeout:
        """Return the error to raise where the deadline passes before all ranks are ready."""
        raise NotImplementedError

    def _failed(self, future: asyncio.Future[Outcome]) -> bool:
        """Return whether what has become of a rank ends the operation."""
        return future.done() and (future.cancelled() or future.exception() is not None)

    def _retire(self) -> None:
        """Have the next operation get a fresh communicator, since messages may be left on this one."""
        self._queue.retire_communicator(self._world, self._serial)

    def _check_wanted(self) -> float:
        """Shorten the deadline if nobody wants the result; return the seconds until the next check."""
        return math.inf
