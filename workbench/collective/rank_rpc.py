"""Requests of the head to a rank, and the answers of the rank."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from workbench import errors
from workbench.cancellation import run_to_end
from workbench.errors import CollectiveFailed, RankLost, WorkbenchError
from workbench.hints import AGAIN, Command

if TYPE_CHECKING:
    from distributed import Scheduler

T = TypeVar("T")

STAYS = "The rank has not ended, and no data on the rank is lost."
"""End of the message about a slow rank."""
LOOK = "Try again; ", Command("where"), " shows the position of each rank."
"""Hint of this message."""

# Seconds for the scheduler to notice the end of a rank, when a connection breaks, and to read the cause in the log.
_NOTICE = 3.0
# Seconds between two checks.
_POLL = 0.02


async def poll(event: Callable[[], T], seconds: float) -> T:
    """Return the first true result of `event`, or the last result after `seconds` seconds.

    The turns of the event loop are counted: a head that gets no core must not miss what its sockets already have.
    """
    for _ in range(round(seconds / _POLL)):
        if result := event():
            return result
        await asyncio.sleep(_POLL)
    return event()


async def leaves(scheduler: Scheduler, address: str) -> bool:
    """Return whether a rank that could not be reached has ended; a busy rank, or a rank on a busy node, has not."""
    # Dask has no event for it.
    return await poll(lambda: address not in scheduler.workers, _NOTICE)


# Bytes of requests in flight: each request is packed for one rank, and waits in memory.
_UNDER_WAY = 64 << 20


def room(nbytes: int) -> asyncio.Semaphore:
    """Return a semaphore that admits as many requests of `nbytes` bytes at once as the head has memory for."""
    return asyncio.Semaphore(max(1, _UNDER_WAY // max(1, nbytes)))


class RankRPC:
    """Sends requests to ranks of a world, given by their addresses; errors contain the `purpose`, ``"a broadcast"``."""

    def __init__(self, scheduler: Scheduler, world: int, ranks: dict[int, str], purpose: str) -> None:
        self._scheduler, self._world, self.ranks, self._purpose = scheduler, world, ranks, purpose

    async def ask(self, rank: int, operation: str, timeout: float | None = None, /, **message: Any) -> Any:
        """Send a request to a rank, and return the answer.

        Raises
        ------
        RankLost
            If the rank has ended, or ends before the answer.
        WorkbenchError
            If the rank refuses.
        CollectiveFailed
            If the handler fails otherwise, the rank has not ended but cannot be reached, or the rank does not answer
            within `timeout` seconds (None: no limit).
        """
        who = f"rank {rank} of world {self._world}"
        if self.ranks[rank] not in self._scheduler.workers:  # Dask would try to connect for 30 s
            raise self.lost(rank)
        try:
            async with asyncio.timeout(timeout) as limit:
                answer = await getattr(self._scheduler.rpc(self.ranks[rank]), operation)(**message)
        except OSError as error:
            if limit.expired():
                raise CollectiveFailed(
                    f"{who} did not answer within {timeout:g} s during {self._purpose}.",
                    hint=("See its log: ", Command("logs", f"--rank {rank}")),
                ) from error
            if await leaves(self._scheduler, self.ranks[rank]):
                raise self.lost(rank) from error
            raise CollectiveFailed(
                f"{who} could not be reached for {self._purpose} ({error}). {STAYS}", hint=LOOK
            ) from error
        if "raised" not in answer:
            return answer["answer"]
        fields = answer["raised"]
        raised = errors.from_fields(fields)
        if raised.kind == fields["kind"]:
            # The class of the error stays, and the message gets the name of the rank.
            raise raised.converted(type(raised), f"{who}: {raised.message}")
        raise CollectiveFailed(f"{who} cannot take part in {self._purpose}: {fields['kind']}: {fields['message']}")

    def lost(self, rank: int) -> RankLost:
        """Return the error of a rank that has ended."""
        causes: Mapping[str, str] = getattr(self._scheduler, "causes", {})
        cause = causes.get(self.ranks[rank], "")
        return RankLost(f"rank {rank} of world {self._world} was lost during {self._purpose}{cause}.", hint=AGAIN)

    def tell(self, operation: str, **message: Any) -> None:
        """Send a message to all ranks by the stream, which does not wait for an answer: a rank may be stuck."""
        for address in self.ranks.values():
            if address in self._scheduler.stream_comms:
                self._scheduler.worker_send(address, {"op": operation, **message})


async def gather_or_cancel(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all calls; at the first error cancel the others, and raise the error."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            # A second cancellation would skip what a call awaits in a `finally`.
            if not task.cancelling():
                task.cancel()
        await run_to_end(asyncio.gather(*tasks, return_exceptions=True))
        raise


def root_cause(results: Iterable[Any]) -> BaseException | None:
    """Return the first `RankLost`, from which other errors follow; without one the first error, if any."""
    raised = [result for result in results if isinstance(result, BaseException)]
    return next((error for error in raised if isinstance(error, RankLost)), raised[0] if raised else None)


Handler = Callable[..., Awaitable[Any]]


def answering(handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """Return handlers of requests by `RankRPC.ask`, made of plain coroutine functions.

    A handler answers ``{"answer": result}``, or, if the function raises an error, ``{"raised": fields}`` with the
    `WorkbenchError.fields`; for errors of other classes, only ``kind`` and ``message``.
    """
    return {operation: _answering(handler) for operation, handler in handlers.items()}


def _answering(handler: Handler) -> Handler:
    @functools.wraps(handler)
    async def answer(**message: Any) -> dict[str, Any]:
        try:
            return {"answer": await handler(**message)}
        except WorkbenchError as error:
            return {"raised": error.fields()}
        except Exception as error:  # noqa: BLE001  (the head raises it)
            return {"raised": {"kind": type(error).__name__, "message": str(error)}}

    return answer
