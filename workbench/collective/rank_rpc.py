"""How the head asks one rank for its part in a call on all ranks, and how the rank answers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from workbench import errors
from workbench.errors import CollectiveFailed, RankLost, WorkbenchError
from workbench.hints import AGAIN, Command

if TYPE_CHECKING:
    from distributed import Scheduler

T = TypeVar("T")

STAYS = "but has not ended: nothing that lies on it is lost"
"""What is known of a rank that is slow ..."""
LOOK = "Ask again; ", Command("where"), " shows what it does."
"""... and what to do."""

# Seconds for the scheduler to notice that a rank has ended, which it does as soon as a connection breaks.
_NOTICE = 2.0


async def leaves(scheduler: Scheduler, address: str) -> bool:
    """Return whether a rank that could not be reached has ended; one that is busy, or whose node is, has not."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_NOTICE):
            while address in scheduler.workers:  # noqa: ASYNC110  (Dask has no event for it)
                await asyncio.sleep(0.02)
    return address not in scheduler.workers


# Bytes of requests that may be under way at once: each is packed for its rank by itself, and waits in memory.
_UNDER_WAY = 64 << 20


def room(nbytes: int) -> asyncio.Semaphore:
    """Return what lets as many requests of so many bytes through at once as the head has memory for."""
    return asyncio.Semaphore(max(1, _UNDER_WAY // max(1, nbytes)))


class RankRPC:
    """Asks ranks of a world, given with their addresses; messages name the `purpose`, as ``"a broadcast"``."""

    def __init__(self, scheduler: Scheduler, world: int, ranks: dict[int, str], purpose: str) -> None:
        self._scheduler, self._world, self.ranks, self._purpose = scheduler, world, ranks, purpose

    async def ask(self, rank: int, operation: str, **message: Any) -> Any:
        """Ask a rank, and return its answer.

        Raises
        ------
        RankLost
            If the rank is gone, or goes meanwhile.
        WorkbenchError
            If it refuses.
        CollectiveFailed
            If it fails otherwise, or cannot be reached although it is there.
        """
        who = f"rank {rank} of world {self._world}"
        try:
            answer = await getattr(self._scheduler.rpc(self.ranks[rank]), operation)(**message)
        except OSError as error:
            if await leaves(self._scheduler, self.ranks[rank]):
                raise RankLost(f"{who} was lost during {self._purpose}.", hint=AGAIN) from error
            raise CollectiveFailed(
                f"{who} could not be reached for {self._purpose} ({error}), {STAYS}.", hint=LOOK
            ) from error
        if "raised" not in answer:
            return answer["answer"]
        fields = answer["raised"]
        raised = errors.from_fields(fields)
        if raised.kind == fields["kind"]:
            # The class of the error stays, and its message gets the name of the rank.
            raise raised.retold(type(raised), f"{who}: {raised.message}")
        raise CollectiveFailed(f"{who} cannot take part in {self._purpose}: {fields['kind']}: {fields['message']}")

    def tell(self, operation: str, **message: Any) -> None:
        """Send all of them a message, by the stream, which waits for nobody: one of them may be stuck."""
        for address in self.ranks.values():
            if address in self._scheduler.stream_comms:
                self._scheduler.worker_send(address, {"op": operation, **message})


async def gather_or_cancel(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Wait for all of them, and return their results; at the first error raise it, and leave none of them running."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def root_cause(results: Iterable[Any]) -> BaseException | None:
    """Return the first error of a rank that is gone, since others follow from it; else the first of any kind."""
    raised = [result for result in results if isinstance(result, BaseException)]
    return next((error for error in raised if isinstance(error, RankLost)), raised[0] if raised else None)


Handler = Callable[..., Awaitable[Any]]


def answering(handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """Return handlers for what the head asks by `RankRPC.ask`, made of plain coroutine functions.

    Each answers ``{"answer": result}``, or, if the function raised, ``{"raised": fields}``, as of
    `WorkbenchError.fields`; of other errors than ours ``kind`` and ``message`` alone.
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
