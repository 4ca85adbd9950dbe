"""The turns on the ranks of a world: one operation at a time on each rank, in the order of the requests.

MPI pairs the collective calls of a communicator by their order, so two calls that reach the ranks in different
orders would receive each other's messages. Calls and broadcasts pass through one queue. Cells have a separate
communicator and a separate thread, and pass through another queue. Calls without a common rank have no common
communicator, and run at the same time. A call that was ended may leave messages on its communicator, so the next call
gets a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from distributed.diagnostics.plugin import SchedulerPlugin

from workbench.collective.operation import DisjointLock
from workbench.collective.positions import ranges
from workbench.errors import CollectiveFailed, CollectiveTimeout, RankLost
from workbench.hints import AGAIN

if TYPE_CHECKING:
    from distributed import Scheduler

    from workbench.deploy.world import MPIWorld

BLOCKED = "No other SPMD call can begin on a rank that has not returned."
"""End of a message about ranks that have not returned from an operation."""


class CallQueue(SchedulerPlugin):
    """The queue of each world, and the numbers of its communicators. Cells have a separate object.

    The scheduler reports clients that disconnect to this plugin, which cancels their operations.
    """

    name = "workbench-collectives"

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[MPIWorld, DisjointLock] = WeakKeyDictionary()
        self._of_clients: defaultdict[str, set[Turn]] = defaultdict(set)
        # Of the communicators in order, for the ranks of a start of a world.
        self._serials: WeakKeyDictionary[MPIWorld, dict[tuple[int, ...], int]] = WeakKeyDictionary()
        self._next = itertools.count(1)

    def turn(
        self,
        world: MPIWorld,
        client: str,
        deadline: float,
        *,
        ranks: Collection[int] | None = None,
        busy: str | None = None,
        gone: Callable[[], None] | None = None,
    ) -> Turn:
        """Return a turn on ranks of a world (None: all).

        At the time `deadline` of the loop, the wait ends with the message `busy`. `gone` is called when the client
        disconnects; by default the turn is cancelled.
        """
        lock = self._locks.setdefault(world, DisjointLock())
        forget = functools.partial(self._forget, client)
        turn = Turn(world, lock, ranks, forget, deadline, busy=busy, gone=gone)
        self._of_clients[client].add(turn)
        return turn

    def _forget(self, client: str, turn: Turn) -> None:
        if turns := self._of_clients.get(client):
            turns.discard(turn)
            if not turns:
                del self._of_clients[client]

    def is_taken(self, world: MPIWorld) -> bool:
        """Return whether an operation has its turn on a world."""
        return world in self._locks and self._locks[world].locked()

    async def rest(self) -> None:
        """Return when all operations have ended that have a turn or wait for a turn."""
        for lock in list(self._locks.values()):
            async with lock.held():
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
        world: MPIWorld,
        lock: DisjointLock,
        ranks: Collection[int] | None,
        forget: Callable[[Turn], None],
        deadline: float,
        *,
        busy: str | None,
        gone: Callable[[], None] | None,
    ) -> None:
        self._world, self._lock, self._ranks, self._forget = world, lock, ranks, forget
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
                raise CollectiveTimeout(self._busy or _busy(self._world, self._ranks)) from None
            try:
                yield
            finally:
                self._lock.release(request)
        except asyncio.CancelledError:
            # The head's shutdown may have cancelled the task as well.
            if self._why is None or task.cancelling() > before + 1:
                raise
            raise CollectiveFailed(self._why()) from None
        finally:
            if self._why is not None and task.cancelling() > before:
                task.uncancel()
            self._task = None
            self._forget(self)


def _busy(world: MPIWorld, ranks: Collection[int] | None) -> str:
    where = "all its ranks" if ranks is None else f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)}"
    return (
        f"world {world.index} is still busy with another call on {where}, which did not end in time. Allow more time "
        "with timeout=, or repeat the call later."
    )


def require_complete(world: MPIWorld, ranks: Collection[int] | None = None) -> None:
    """Raise `RankLost` or `CollectiveFailed` if ranks of a world (None: all) cannot make a call."""
    if doing := just_being(world):
        raise CollectiveFailed(
            f"world {world.index} is being {doing}, and an SPMD call needs all its ranks.",
            hint="Repeat the call when the world is ready.",
        )
    if missing := gone(world, ranks):
        them = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing[:16]))}"
        was = "was" if len(missing) == 1 else "were"
        raise RankLost(f"{them} of world {world.index} {was} lost, and the SPMD call needs all its ranks.", hint=AGAIN)
    if reason := next((reason for rank, reason in world.broken.items() if ranks is None or rank in ranks), None):
        raise CollectiveFailed(f"{reason}. {BLOCKED}", hint=AGAIN)


def just_being(world: MPIWorld) -> str | None:
    """Return the change of a world that cannot be used, ``"started"`` or ``"ended"``; None if the world can be used."""
    if world.stopping:
        return "ended"
    return None if world.ready else "started"


def gone(world: MPIWorld, ranks: Collection[int] | None = None) -> list[int]:
    """Return the ranks of a world that are gone, among `ranks` (None: all)."""
    return [rank for rank in world.missing() if ranks is None or rank in ranks]
