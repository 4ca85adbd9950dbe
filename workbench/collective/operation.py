"""Steps of an operation on ranks of a world that has the turn: a call, the part of a broadcast in one world, or a cell.

An operation starts when all ranks are prepared, and ends on all ranks at a deadline or when one rank fails.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from workbench.errors import CollectiveTimeout

T = TypeVar("T")


async def prepare(
    work: Awaitable[T], deadline: float, call_off: Callable[[], None], late: Callable[[], CollectiveTimeout]
) -> T:
    """Return the result of `work`, the preparation of all ranks; if that fails, call `call_off`.

    At the deadline, a time of the event loop, the error that `late` returns is raised.
    """
    limit = asyncio.timeout_at(deadline)
    try:
        async with limit:
            return await work
    except BaseException as error:
        call_off()
        if limit.expired() and isinstance(error, TimeoutError) and not isinstance(error, CollectiveTimeout):
            raise late() from None
        raise


class Outcomes(Generic[T]):
    """The outcomes of the ranks of an operation that has started.

    `futures` has the futures of the outcomes by rank. `failed` returns whether an outcome is a failure; an exception is
    always one.
    """

    def __init__(self, futures: Mapping[int, asyncio.Future[T]], failed: Callable[[T], bool] = lambda _: False) -> None:
        self.futures, self._failed = futures, failed
        self.order: list[int] = []
        """Ranks that have ended, in the order of their ends."""
        self.first_failed: int | None = None
        """The rank whose failure has ended `wait`."""
        # A future, so that the end of one rank of many does not search all ranks.
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for rank, future in futures.items():
            future.add_done_callback(functools.partial(self._ended, rank))

    def _ended(self, rank: int, future: asyncio.Future[T]) -> None:
        self.order.append(rank)
        if self._over.done():
            return
        if self._is_failure(future):
            self.first_failed = rank
        if self.first_failed is not None or len(self.order) == len(self.futures):
            self._over.set_result(None)

    async def wait(
        self,
        left: Callable[[], float] = lambda: math.inf,
        stop: asyncio.Future[None] | None = None,
        poll: float = math.inf,
    ) -> bool:
        """Return whether all ranks have succeeded: when all have ended, one has failed, or the operation must end.

        The operation must end when `stop` is done, or `left` returns 0 seconds; `left` is called every `poll` seconds.
        """
        either = [self._over] if stop is None else [self._over, stop]
        while self.futures and not any(event.done() for event in either) and (seconds := min(left(), poll)) > 0:
            timeout = None if seconds == math.inf else seconds
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        self._over.cancel()  # later failures are consequences
        return all(future.done() and not self._is_failure(future) for future in self.futures.values())

    def _is_failure(self, future: asyncio.Future[T]) -> bool:
        return future.cancelled() or future.exception() is not None or self._failed(future.result())

    async def break_off(self, end: Callable[[str], None], world: int, cancelled: str | None, grace: float) -> None:
        """Request the end from the ranks by `end(reason)`, and wait `grace` seconds for the ranks.

        `cancelled` is the reason of an operation that was cancelled, else None.
        """
        if self.first_failed is not None:
            end(f"rank {self.first_failed} of world {world} failed")
        else:
            end(cancelled or "the time limit has passed")
        if running := self.running:
            await asyncio.wait(running.values(), timeout=grace)

    @property
    def running(self) -> dict[int, asyncio.Future[T]]:
        """Futures of the ranks that have not ended, by rank."""
        return {rank: future for rank, future in self.futures.items() if not future.done()}
