"""An operation on ranks: a call, or a cell. Its turn, the requests to the ranks, its start and its end.

One operation at a time has the turn on a rank, in the order of the requests: MPI pairs the collective calls of a
communicator by their order, so two calls that reach the ranks in different orders would receive each other's messages.
Cells have a separate communicator and a separate thread, and pass through another queue. Calls without a common rank
have no common communicator, and run at the same time. A call that was ended may leave messages on its communicator, so
the next call gets a new one.

An operation starts when all ranks are prepared, and ends on all ranks at a deadline or when one rank fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from distributed.diagnostics.plugin import SchedulerPlugin

from workbench import errors
from workbench.cancellation import run_to_end
from workbench.errors import CollectiveFailed, CollectiveTimeout, RankLost, WorkbenchError
from workbench.hints import AGAIN, Command
from workbench.positions import ranges

if TYPE_CHECKING:
    from distributed import Scheduler

    from workbench.deploy.world import MPIWorld


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

    async def break_off(self, end: Callable[[str], None], cancelled: str | None, grace: float) -> None:
        """Request the end from the ranks by `end(reason)`, and wait `grace` seconds for the ranks.

        `cancelled` is the reason of an operation that was canceled, else None.
        """
        if self.first_failed is not None:
            end(f"rank {self.first_failed} failed")
        else:
            end(cancelled or "the time limit has passed")
        if running := self.running:
            await asyncio.wait(running.values(), timeout=grace)

    @property
    def running(self) -> dict[int, asyncio.Future[T]]:
        """Futures of the ranks that have not ended, by rank."""
        return {rank: future for rank, future in self.futures.items() if not future.done()}


NOT_LOST = "The rank has not ended, and no data on the rank is lost."
"""End of the message about a slow rank."""
WHERE_HINT = "Try again; ", Command("where"), " shows the position of each rank."
"""Hint of this message."""

# Seconds for the scheduler to notice the end of a rank, when a connection breaks, and to read the cause in the log.
_NOTICE = 3.0
# Seconds between two checks.
_POLL = 0.02


async def poll_until(event: Callable[[], T], seconds: float) -> T:
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
    return await poll_until(lambda: address not in scheduler.workers, _NOTICE)


# Bytes of requests in flight: each request is packed for one rank, and waits in memory.
_UNDER_WAY = 64 << 20


def send_limit(nbytes: int) -> asyncio.Semaphore:
    """Return a semaphore that admits as many requests of `nbytes` bytes together as the head has memory for."""
    return asyncio.Semaphore(max(1, _UNDER_WAY // max(1, nbytes)))


class RankRPC:
    """Sends requests to ranks, given by their addresses; errors contain the `purpose`, ``"a broadcast"``."""

    def __init__(self, scheduler: Scheduler, ranks: dict[int, str], purpose: str) -> None:
        self._scheduler, self.ranks, self._purpose = scheduler, ranks, purpose

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
        who = f"rank {rank}"
        if self.ranks[rank] not in self._scheduler.workers:  # Dask would try to connect for 30 s
            raise self.lost(rank)
        try:
            async with asyncio.timeout(timeout) as limit:
                answer = await getattr(self._scheduler.rpc(self.ranks[rank]), operation)(**message)
        except OSError as error:
            if limit.expired():
                raise CollectiveFailed(
                    f"{who} did not answer within {timeout:g} s during {self._purpose}.",
                    ranks=(rank,),
                    hint=("See its log: ", Command("logs", f"--rank {rank}")),
                ) from error
            if await leaves(self._scheduler, self.ranks[rank]):
                raise self.lost(rank) from error
            raise CollectiveFailed(
                f"{who} could not be reached for {self._purpose} ({error}). {NOT_LOST}", hint=WHERE_HINT, ranks=(rank,)
            ) from error
        if "raised" not in answer:
            return answer["answer"]
        fields = answer["raised"]
        raised = errors.from_fields(fields)
        if raised.kind == fields["kind"]:
            # The class of the error stays, and the message gets the name of the rank.
            raise raised.converted(type(raised), f"{who}: {raised.message}", ranks=(rank,))
        words = f"{who} cannot take part in {self._purpose}: {fields['kind']}: {fields['message']}"
        raise CollectiveFailed(words, ranks=(rank,))

    def lost(self, rank: int) -> RankLost:
        """Return the error of a rank that has ended."""
        causes: Mapping[str, str] = getattr(self._scheduler, "causes", {})
        cause = causes.get(self.ranks[rank], "")
        words = f"rank {rank} was lost during {self._purpose}{cause}."
        return RankLost(words, hint=AGAIN, ranks=(rank,))

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


class Cancelled:
    """Identities of canceled calls or cells: the cancellation may arrive before the request.

    Parameters
    ----------
    seconds
        Time for which an identity is kept.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._known: set[str] = set()

    def add(self, call: str) -> None:
        """Keep the identity of a canceled call. On an event loop."""
        self._known.add(call)
        asyncio.get_running_loop().call_later(self._seconds, self._known.discard, call)

    def __contains__(self, call: object) -> bool:
        return call in self._known


Request: TypeAlias = tuple[Collection[Hashable] | None, asyncio.Event]
"""The members (None: all), and whether the lock is granted."""


class DisjointLock:
    """A lock on members of a set, granted for each member in the order of the requests.

    A request waits for all earlier requests with a common member, whether these hold the lock or wait. So a request
    overtakes only requests without a common member, and none waits forever.
    """

    def __init__(self) -> None:
        # Requests that hold the lock or wait, in their order.
        self._requests: list[Request] = []

    async def acquire(self, members: Collection[Hashable] | None = None) -> Request:
        """Wait for the lock on members (None: all); return the request to `release`."""
        request: Request = None if members is None else frozenset(members), asyncio.Event()
        self._requests.append(request)
        self._grant()
        try:
            await request[1].wait()
        except BaseException:
            self.release(request)
            raise
        return request

    def release(self, request: Request) -> None:
        """Release the lock of a request."""
        self._requests.remove(request)
        self._grant()

    @contextlib.asynccontextmanager
    async def held(self, members: Collection[Hashable] | None = None) -> AsyncIterator[None]:
        """Wait for the lock on members (None: all), and hold the lock in this context."""
        request = await self.acquire(members)
        try:
            yield
        finally:
            self.release(request)

    def locked(self) -> bool:
        """Return whether a request holds the lock on any member."""
        return bool(self._requests)  # the first request is always granted

    def _grant(self) -> None:
        wanted: set[Hashable] = set()
        for number, (members, granted) in enumerate(self._requests):
            if members is None:
                if not number:
                    granted.set()
                return
            if wanted.isdisjoint(members):
                granted.set()
            wanted.update(members)


BLOCKED = "No other SPMD call can begin on a rank that has not returned."
"""End of a message about ranks that have not returned from an operation."""


class CallQueue(SchedulerPlugin):
    """The queue of the operations, and the numbers of the communicators. Cells have a separate object.

    The scheduler reports clients that disconnect to this plugin, which cancels their operations.
    """

    name = "workbench-collectives"

    def __init__(self) -> None:
        self._lock = DisjointLock()
        self._of_clients: defaultdict[str, set[Turn]] = defaultdict(set)
        # Of the communicators in order, for the ranks of a start of a world.
        self._serials: WeakKeyDictionary[MPIWorld, dict[tuple[int, ...], int]] = WeakKeyDictionary()
        self._next = itertools.count(1)

    def turn(
        self,
        client: str,
        deadline: float,
        *,
        ranks: Collection[int] | None = None,
        busy: str | None = None,
        gone: Callable[[], None] | None = None,
    ) -> Turn:
        """Return a turn on ranks (None: all).

        At the time `deadline` of the loop, the wait ends with the message `busy`. `gone` is called when the client
        disconnects; by default the turn is canceled.
        """
        forget = functools.partial(self._forget, client)
        turn = Turn(self._lock, ranks, forget, deadline, busy=busy, gone=gone)
        self._of_clients[client].add(turn)
        return turn

    def _forget(self, client: str, turn: Turn) -> None:
        if turns := self._of_clients.get(client):
            turns.discard(turn)
            if not turns:
                del self._of_clients[client]

    def is_taken(self) -> bool:
        """Return whether an operation has its turn."""
        return self._lock.locked()

    def paused(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Wait until the earlier operations have ended, and let later ones wait, in this context."""
        return self._lock.held()

    async def wait_idle(self) -> None:
        """Return when all operations have ended that have a turn or wait for a turn."""
        async with self.paused():
            pass

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Cancel the operations of a client that has disconnected."""
        for turn in list(self._of_clients.pop(client, ())):
            turn.gone()

    def communicator(self, world: MPIWorld, ranks: Sequence[int]) -> int:
        """Return the number of the communicator for a call on these ranks of a world."""
        serials = self._serials.setdefault(world, {})
        key = (world.starts, *ranks)
        if key not in serials:
            serials[key] = next(self._next)
        return serials[key]

    def retire_communicator(self, world: MPIWorld, serial: int | None = None) -> None:
        """Have the next call get a fresh communicator, since messages may be left on this one (None: on all)."""
        serials = self._serials.setdefault(world, {})
        for key in [key for key, number in serials.items() if serial in (None, number)]:
            del serials[key]

    def block_until_back(self, world: MPIWorld, stuck: Mapping[int, asyncio.Future[Any]], reason: str) -> None:
        """Block calls on stuck ranks of a world until these return or are lost; errors state the reason."""
        broken = world.broken  # of this start
        for rank, future in stuck.items():
            broken[rank] = reason

            def back(future: asyncio.Future[Any], rank: int = rank) -> None:
                if not future.cancelled():
                    future.exception()
                broken.pop(rank, None)

            future.add_done_callback(back)


class Turn:
    """The turn of a call or a cell."""

    def __init__(
        self,
        lock: DisjointLock,
        ranks: Collection[int] | None,
        forget: Callable[[Turn], None],
        deadline: float,
        *,
        busy: str | None,
        gone: Callable[[], None] | None,
    ) -> None:
        self._lock, self._ranks, self._forget = lock, ranks, forget
        self._deadline, self._busy = deadline, busy
        self._task: asyncio.Task[Any] | None = None
        self._why: Callable[[], str] | None = None
        self.gone = gone or self._client_gone
        """Called when the client disconnects."""

    def _client_gone(self) -> None:
        self.cancel(lambda: "the client of an SPMD call has disconnected")

    def cancel(self, why: Callable[[], str]) -> None:
        """Cancel the task that waits for the turn or has the turn: there `held` raises `CollectiveFailed`.

        `why` returns the reason after the end of the task. Only the first reason counts.
        """
        if self._why is None:
            self._why = why
            if self._task is not None:
                self._task.cancel()

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Wait for the turn, and keep the turn in this context; raises `CollectiveTimeout` or `CollectiveFailed`."""
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        self._task, before = task, task.cancelling()
        try:
            if self._why is not None:
                raise CollectiveFailed(self._why())
            try:
                async with asyncio.timeout_at(self._deadline):
                    request = await self._lock.acquire(self._ranks)
            except TimeoutError:
                raise CollectiveTimeout(self._busy or _busy(self._ranks), ranks=self._ranks or ()) from None
            try:
                yield
            finally:
                self._lock.release(request)
        except asyncio.CancelledError:
            # The head's shutdown may have canceled the task as well.
            if self._why is None or task.cancelling() > before + 1:
                raise
            raise CollectiveFailed(self._why()) from None
        finally:
            if self._why is not None and task.cancelling() > before:
                task.uncancel()
            self._task = None
            self._forget(self)


def _busy(ranks: Collection[int] | None) -> str:
    where = "all ranks" if ranks is None else f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)}"
    return (
        f"the cluster is still busy with another call on {where}, which did not end in time. Allow more time "
        "with timeout=, or repeat the call later."
    )


def require_complete(world: MPIWorld, ranks: Collection[int] | None = None) -> None:
    """Raise `RankLost` or `CollectiveFailed` if ranks of a world (None: all) cannot make a call."""
    if doing := transition(world):
        raise CollectiveFailed(
            f"the world is being {doing}, and an SPMD call needs all its ranks.",
            hint="Repeat the call when the world is ready.",
        )
    if missing := missing_ranks(world, ranks):
        them = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing[:16]))}"
        was = "was" if len(missing) == 1 else "were"
        words = f"{them} {was} lost, and the SPMD call needs all its ranks."
        raise RankLost(words, hint=AGAIN, ranks=missing)
    if broken := [rank for rank in world.broken if ranks is None or rank in ranks]:
        raise CollectiveFailed(f"{world.broken[broken[0]]}. {BLOCKED}", hint=AGAIN, ranks=broken)


def transition(world: MPIWorld) -> str | None:
    """Return the change of a world that cannot be used, ``"started"`` or ``"ended"``; None if the world can be used."""
    if world.stopping:
        return "ended"
    return None if world.ready else "started"


def missing_ranks(world: MPIWorld, ranks: Collection[int] | None = None) -> list[int]:
    """Return the ranks of a world that are gone, among `ranks` (None: all)."""
    return [rank for rank in world.missing() if ranks is None or rank in ranks]
