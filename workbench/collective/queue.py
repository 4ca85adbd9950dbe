"""Calls on all ranks of a world: one at a time, in the order in which clients asked for them.

MPI pairs the collective calls of a communicator by their order, so two calls that reach the ranks in different
orders would take each other's messages. All of them pass through this queue. When one breaks off, messages of it may be
left on its communicator: the next call gets a fresh one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from distributed.diagnostics.plugin import SchedulerPlugin

from workbench.errors import CollectiveFailed, CollectiveTimeout, RankLost
from workbench.hints import AGAIN

if TYPE_CHECKING:
    from distributed import Scheduler

    from workbench.deploy.world import MPIWorld

T = TypeVar("T")


class Collectives(SchedulerPlugin):
    """The queue of each world.

    Notes
    -----
    As a plugin of the scheduler it learns which clients go: their calls are cancelled, also those that wait.
    """

    name = "workbench-collectives"

    def __init__(self) -> None:
        self._turns: WeakKeyDictionary[MPIWorld, asyncio.Lock] = WeakKeyDictionary()
        self._calls: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        # Of the communicators in order, for the ranks of a start of a world.
        self._serials: WeakKeyDictionary[MPIWorld, dict[tuple[int, ...], int]] = WeakKeyDictionary()
        self._next = itertools.count(1)

    async def run(
        self,
        world: MPIWorld,
        client: str,
        call: Callable[[], Awaitable[T]],
        deadline: float,
        ranks: Collection[int] | None = None,
    ) -> T:
        """Run a call when it is its turn, and return its result.

        Parameters
        ----------
        world
            The world whose ranks take part.
        client
            Identity of the client that has asked. When it goes, the call is cancelled; one that may not be
            cut off in the middle shields that part.
        call
            Asks the ranks. It has to end at the deadline by itself.
        deadline
            Time of the event loop until which to wait for the turn.
        ranks
            Those that take part, where it is not all.

        Raises
        ------
        CollectiveTimeout
            If its turn had not come by then.
        CollectiveFailed
            If the world cannot make such calls, or the client went.
        RankLost
            If a rank of the world is gone.
        """
        calls = self._calls[client]
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        calls.add(gone)
        running = asyncio.ensure_future(self._in_turn(world, call, deadline, ranks))
        gone.add_done_callback(lambda _: running.cancel())
        try:
            return await running
        except asyncio.CancelledError:
            if not gone.done():
                raise
            raise CollectiveFailed("the client that asked for a call on all ranks has gone") from None
        finally:
            calls.discard(gone)
            if not calls:
                self._calls.pop(client, None)

    async def _in_turn(
        self, world: MPIWorld, call: Callable[[], Awaitable[T]], deadline: float, ranks: Collection[int] | None
    ) -> T:
        turn = self._turns.setdefault(world, asyncio.Lock())
        try:
            async with asyncio.timeout_at(deadline):
                await turn.acquire()
        except TimeoutError:
            raise CollectiveTimeout(
                f"world {world.index} is still busy with another call on all its ranks, and the time to wait for the "
                "end of that is over. Allow more with timeout=, or ask again later."
            ) from None
        try:
            require_complete(world, ranks)
            return await call()
        finally:
            turn.release()

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Cancel the calls of a client that is gone."""
        for gone in self._calls.get(client, ()):
            if not gone.done():
                gone.set_result(None)

    def communicator(self, world: MPIWorld, ranks: Sequence[int]) -> int:
        """Return the number of the communicator for a call on these ranks of a world."""
        serials = self._serials.setdefault(world, {})
        key = (world.starts, *ranks)
        if key not in serials:
            serials[key] = next(self._next)
        return serials[key]

    def abandon(self, world: MPIWorld, serial: int) -> None:
        """Have the next call get a fresh communicator, since messages may be left on this one."""
        serials = self._serials.setdefault(world, {})
        for key in [key for key, its in serials.items() if its == serial]:
            del serials[key]

    def wait_for(self, world: MPIWorld, stuck: Collection[asyncio.Future[Any]], reason: str) -> None:
        """Make no calls on a world until ranks that do not come back from one have done so.

        Parameters
        ----------
        stuck
            Each is done when its rank is back, or gone.
        reason
            Who does not come back from what.
        """
        world.broken = reason
        start, left = world.starts, set(stuck)

        def back(future: asyncio.Future[Any]) -> None:
            left.discard(future)
            if not future.cancelled():
                future.exception()
            if not left and world.starts == start:
                world.broken = None

        for future in stuck:
            future.add_done_callback(back)


def require_complete(world: MPIWorld, ranks: Collection[int] | None = None) -> None:
    """Refuse a call on ranks of a world that cannot make it.

    Parameters
    ----------
    ranks
        Those that take part. Default: all.

    Raises
    ------
    RankLost
        If a rank is gone.
    CollectiveFailed
        If the world is being started or ended, or ranks do not come back from an earlier call.
    """
    if world.stopping or not world.ready:
        raise CollectiveFailed(
            f"world {world.index} is just being {'ended' if world.stopping else 'started'}, and a call on all ranks "
            "needs every one.",
            hint="Ask again when the cluster is ready.",
        )
    if missing := [rank for rank in world.missing() if ranks is None or rank in ranks]:
        gone = f"rank {missing[0]} is" if len(missing) == 1 else f"ranks {', '.join(map(str, missing[:16]))} are"
        raise RankLost(f"{gone} gone from world {world.index}, and a call on all ranks needs every one.", hint=AGAIN)
    if world.broken:
        raise CollectiveFailed(
            f"{world.broken}. Until that is over no other call on all ranks can be made.", hint=AGAIN
        )
