"""Calls on all ranks of a world: one at a time, in the order in which clients asked for them.

MPI pairs the collective calls of a communicator by their order, so two calls that reach the ranks in different
orders would take each other's messages. All of them pass through this queue.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from distributed.diagnostics.plugin import SchedulerPlugin

from workbench.errors import CollectiveFailed, CollectiveTimeout, RankLost

if TYPE_CHECKING:
    from distributed import Scheduler

    from workbench.head.world import MPIWorld

T = TypeVar("T")

_AGAIN = "Start the ranks again: cluster.restart() or %mpicluster restart; results that lie on them are lost by it."


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

    async def run(self, world: MPIWorld, client: str, call: Callable[[], Awaitable[T]], deadline: float) -> T:
        """Run a call when it is its turn, and return its result.

        Parameters
        ----------
        world
            The world whose ranks take part, all of them.
        client
            Identity of the client that has asked. When it goes, the call is cancelled; one that may not be
            cut off in the middle shields that part.
        call
            Asks the ranks. It has to end at the deadline by itself.
        deadline
            Time of the event loop until which to wait for the turn.

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
        running = asyncio.ensure_future(self._in_turn(world, call, deadline))
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

    async def _in_turn(self, world: MPIWorld, call: Callable[[], Awaitable[T]], deadline: float) -> T:
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
            require_complete(world)
            return await call()
        finally:
            turn.release()

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Cancel the calls of a client that is gone."""
        for gone in self._calls.get(client, ()):
            if not gone.done():
                gone.set_result(None)


def require_complete(world: MPIWorld) -> None:
    """Refuse a call on all ranks of a world that cannot make it.

    Raises
    ------
    RankLost
        If a rank is gone.
    CollectiveFailed
        If the world is being started or ended, or an earlier call broke off in the middle.
    """
    if world.stopping or not world.ready:
        raise CollectiveFailed(
            f"world {world.index} is just being {'ended' if world.stopping else 'started'}, and a call on all ranks "
            "needs every one. Ask again when the cluster is ready."
        )
    if missing := world.missing():
        ranks = f"rank {missing[0]} is" if len(missing) == 1 else f"ranks {', '.join(map(str, missing[:16]))} are"
        raise RankLost(f"{ranks} gone from world {world.index}, and a call on all ranks needs every one. {_AGAIN}")
    if world.broken:
        raise CollectiveFailed(
            f"an earlier call on all ranks of world {world.index} broke off in the middle ({world.broken}), and what "
            f"is left of it could be taken for a part of the next. {_AGAIN}"
        )
