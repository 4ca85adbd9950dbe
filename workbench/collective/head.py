"""SPMD calls on the head: the ranks of a call, the turn of a call on each rank, and the end of a call by the client."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from workbench.collective import protocol
from workbench.collective.cancelled import Cancelled
from workbench.collective.head_call import CollectiveCall, whereabouts
from workbench.collective.queue import CallQueue, Turn, require_complete
from workbench.collective.rank_locations import ranges
from workbench.collective.rank_rpc import RankRPC
from workbench.errors import CollectiveFailed, InvalidRequest, RankLost

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Scheduler

    from workbench.deploy.world import MPIWorld, Worlds

# Seconds for a client to release the blocks of a call that ended while it was cancelled.
_TAKE_BACK = 60.0


class SpmdCalls:
    """Handlers of the head for SPMD calls."""

    def __init__(
        self,
        scheduler: Scheduler,
        worlds: Worlds,
        queue: CallQueue,
        began: Callable[[str, int | None], None],
        got_on: Callable[[int, Collection[int]], float],
    ) -> None:
        self._scheduler, self._worlds, self._queue = scheduler, worlds, queue
        # Called with the identity of each call, and the number of the notebook's cell that has made the call.
        self._began = began
        # Returns the last time when one of some ranks of a world has entered or left an operation of MPI, if that is
        # known, in seconds since the epoch.
        self._got_on = got_on
        # Calls that wait for their turn, or have their turn.
        self._runs: dict[str, tuple[Turn, CollectiveCall]] = {}
        # Calls that have their turn, by identity: the name, the index of the world, and the ranks.
        self._current: dict[str, tuple[str, int, dict[int, str]]] = {}
        self._made: dict[str, list[Key]] = {}
        self._cancelled = Cancelled(_TAKE_BACK)
        self.handlers: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            protocol.CALL: self.call,
            protocol.RUNNING: self.running,
            protocol.WHERE: self.where,
        }
        self.stream_handlers: dict[str, Callable[..., None]] = {protocol.CANCEL: self.cancel}

    async def call(self, **request: Unpack[protocol.Call]) -> protocol.Answer:
        """Run a call on all its ranks, and return the answer to the client."""
        call, name = request["call"], request["work"]["name"]
        if call in self._cancelled:
            raise CollectiveFailed(f"{name} was cancelled.")
        self._began(call, request["origin"])
        world, ranks = self._members(request["addresses"], request["world"], request["ranks"])
        timeout = request["timeout"]
        deadline = math.inf if timeout is None else asyncio.get_running_loop().time() + timeout
        members = RankRPC(self._scheduler, world.index, ranks, f"the call {name}")
        operation = CollectiveCall(self._scheduler, self._queue, world, members, request, deadline=deadline)
        needed = request["ranks"] or (None if request["addresses"] is None else [*ranks])
        turn = self._queue.turn(world, request["client"], deadline, ranks=needed)
        self._runs[call] = turn, operation
        try:
            async with turn.held():
                require_complete(world, needed)
                self._current[call] = name, world.index, ranks
                try:
                    answer = await operation.run()
                finally:
                    del self._current[call]
        finally:
            del self._runs[call]
        if "blocks" in answer:
            self._made[call] = answer.pop("keys")
            asyncio.get_running_loop().call_later(_TAKE_BACK, self._made.pop, call, None)
        return answer

    def _members(
        self, addresses: Sequence[str] | None, index: int | None, asked: Sequence[int] | None
    ) -> tuple[MPIWorld, dict[int, str]]:
        """Return the world and the ranks of a call, without ranks that are gone."""
        members = {world.index: (world, self._worlds.members(world)) for world in self._worlds}
        if addresses is None:
            if index is None or index not in members:
                raise InvalidRequest(f"world={index} does not exist. Valid values: {', '.join(map(str, members))}.")
            world, present = members[index]
            if asked is None:
                return world, present
            if unknown := [rank for rank in asked if rank >= world.ranks]:
                raise InvalidRequest(
                    f"ranks={list(asked)} is not valid: world {index} has no rank {unknown[0]}. Valid ranks: "
                    f"{ranges(range(world.ranks))}."
                )
            return world, {rank: present[rank] for rank in asked if rank in present}
        places = {address: (world, rank) for world, ranks in members.values() for rank, address in ranks.items()}
        if gone := [number for number, address in enumerate(addresses) if address not in places]:
            raise RankLost(
                f"block {gone[0]} of {len(addresses)} was on {addresses[gone[0]]}, and that rank was lost. Place the "
                "data again: X = place(X)."
            )
        if len({places[address][0].index for address in addresses}) > 1:
            listed = ", ".join(f"block {n} on world {places[a][0].index}" for n, a in enumerate(addresses[:64]))
            raise InvalidRequest(
                f"the blocks are on several MPI worlds ({listed}), and an SPMD call runs in one world. Place the data "
                "in one world, X = place(X, world=0)."
            )
        world = places[addresses[0]][0]
        if index not in (None, world.index):
            raise InvalidRequest(
                f"world={index} is not valid, because the blocks are on world {world.index}. Omit world=, or place the "
                f"data on that world, X = place(X, world={index})."
            )
        holders = {places[address][1]: address for address in addresses}
        if asked is not None and set(asked) != set(holders):
            them = ranges(holders)
            raise InvalidRequest(
                f"ranks={list(asked)} is not valid, because the blocks are on "
                f"{'rank' if len(holders) == 1 else 'ranks'} {them} of world {world.index}. Omit ranks=, or pass "
                "broadcast(client, X), which copies X to each rank."
            )
        return world, holders

    def cancel(self, call: str, client: str) -> None:
        """End a call in any state, for its client."""
        if running := self._runs.get(call):
            turn, operation = running
            turn.cancel(operation.was_cancelled)
        elif made := self._made.pop(call, None):
            self._scheduler.client_releases_keys(keys=made, client=client)
        else:
            # This request uses another connection than the call, and may arrive earlier.
            self._cancelled.add(call)

    async def running(self, call: str, patience: float) -> dict[str, tuple[str, dict[int, Any]]]:
        """Return by identity the name of each call that has its turn, and the positions of the ranks of `call`.

        The head asks the ranks of `call` if they have made no progress for `patience` seconds. The head does not ask
        the ranks of other calls, since each client that waits would then ask all ranks.
        """
        running = {}
        for current, (name, world, ranks) in list(self._current.items()):
            places: dict[int, Any] = {}
            if current == call and time.time() - self._got_on(world, ranks) >= patience:
                reports = await whereabouts(self._scheduler, world, ranks)
                places = {rank: place for rank, place in reports.items() if place and place.get("call", call) == call}
            running[current] = name, places
        return running

    async def where(self, world: int | None = None) -> dict[int, dict[int, Any]]:
        """Return the position of each rank by index of the world (of one, or of all) and rank; see `whereabouts`.

        A rank that does not answer counts as in the call that has its turn on this rank.
        """
        places = {}
        for each in [each for each in self._worlds if world in (None, each.index)]:
            members = self._worlds.members(each)
            reports = places[each.index] = await whereabouts(self._scheduler, each.index, members, tasks=True)
            for call, (name, index, ranks) in list(self._current.items()):
                for rank, place in reports.items():
                    if index == each.index and rank in ranks and place and "silent" in place:
                        place.update(call=call, name=name)
        return places
