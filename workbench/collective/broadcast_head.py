"""One object from a client to all ranks: one upload, then ``MPI_Bcast`` in each world.

A broadcast starts when all ranks are prepared, so a rank that refuses leaves nothing half done.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from workbench.cancellation import run_to_end
from workbench.collective import protocol
from workbench.collective.operation import LOOK, STAYS, Outcomes, RankRPC, gather_or_cancel, leaves, prepare, root_cause
from workbench.collective.queue import CallQueue, require_complete
from workbench.errors import CollectiveFailed, CollectiveTimeout, RankLost

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Scheduler

    from workbench.deploy.world import MPIWorld, Worlds

# Seconds between two checks that a client wants the object, and for a broadcast that no client wants.
_LOOK = 1.0
_UNWANTED = 30.0


class Broadcasts:
    """Handlers of the head for broadcasts to each rank of each world."""

    def __init__(self, scheduler: Scheduler, worlds: Worlds, queue: CallQueue) -> None:
        self.scheduler, self.worlds, self.queue = scheduler, worlds, queue
        self.handlers: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            protocol.BROADCAST_BEGIN: self.begin,
            protocol.BROADCAST_UPLOAD: self.upload,
            protocol.BROADCAST_UPLOADED: self.uploaded,
            protocol.BROADCAST: self.broadcast,
        }

    async def begin(self, key: Key, client: str) -> str:
        """Note that a client wants `key`, before the upload; return the address of the rank for the upload."""
        worlds = list(self.worlds)
        for world in worlds:
            require_complete(world)
        # Before the upload: when the client disconnects, also during the upload, the scheduler forgets the key.
        self.scheduler.new_task(key, None, "released")
        self.scheduler.client_desires_keys(keys=[key], client=client)
        return self.worlds.addresses(worlds[0])[0]

    async def upload(self, key: Key, value: Any, root: str) -> None:
        """Forward an upload to rank 0, for a client that cannot connect to rank 0."""
        try:
            if root not in self.scheduler.workers:  # a connection would be tried for a long time
                raise ConnectionError(f"{root} has left")
            await getattr(self.scheduler.rpc(root), protocol.BROADCAST_UPLOAD)(key=key, value=value)
        except OSError as error:
            if await leaves(self.scheduler, root):
                raise RankLost(protocol.UPLOAD_LOST) from error
            raise CollectiveFailed(
                f"rank 0 could not be reached for a broadcast ({error}). {STAYS}", hint=LOOK
            ) from error

    async def uploaded(self, key: Key, address: str, nbytes: int) -> None:
        """Note that rank 0 has the object."""
        if key in self.scheduler.tasks:
            self.scheduler.update_data(who_has={key: [address]}, nbytes={key: nbytes})
        else:  # no client wants the key now: the scheduler has the rank drop it
            self.scheduler.add_keys(worker=address, keys=[key])

    async def broadcast(self, key: Key, client: str, timeout: float) -> None:
        """Send the object from rank 0 to all other ranks of all worlds."""
        deadline = asyncio.get_running_loop().time() + timeout
        parts = [(world, _Part(self, world, key, deadline)) for world in self.worlds]
        calls = [self.queue.run(world, client, part.run, deadline) for world, part in parts]
        if error := root_cause(await asyncio.gather(*calls, return_exceptions=True)):
            raise error


class _Part:
    """The part of a broadcast in one world."""

    def __init__(self, broadcasts: Broadcasts, world: MPIWorld, key: Key, deadline: float) -> None:
        self._broadcasts, self._scheduler, self._world = broadcasts, broadcasts.scheduler, world
        self._key, self._deadline = key, deadline
        self._call = uuid.uuid4().hex
        self._members = RankRPC(self._scheduler, world.index, {}, "a broadcast")

    async def run(self) -> None:
        """Prepare all ranks, and send the object to them."""
        if self._deadline == math.inf:
            # A broadcast that may wait forever for a turn must not hold the turn forever.
            self._deadline = asyncio.get_running_loop().time() + protocol.BROADCAST_S
        ranks = self._members.ranks = self._broadcasts.worlds.members(self._world)
        await prepare(self._prepare(), self._deadline, self._cancel, self._not_ready)
        if len(ranks) > 1:
            # When all ranks are prepared, the broadcast is brought to an end, also without its client.
            await run_to_end(self._run_all())

    async def _prepare(self) -> None:
        ranks = self._members.ranks
        await self._fetch(list(ranks.values()))
        if len(ranks) == 1:
            return
        offer: protocol.Offer = {
            "call": self._call,
            "key": self._key,
            "timeout": self._left() + protocol.BROADCAST_END_S,
        }
        sizes = await self._members.ask(0, protocol.BROADCAST_OFFER, **offer)
        take: protocol.Take = {**offer, "sizes": sizes}
        await gather_or_cancel(self._members.ask(rank, protocol.BROADCAST_TAKE, **take) for rank in ranks if rank)

    async def _fetch(self, ranks: list[str]) -> None:
        """Get the object to rank 0, and pin the key to all ranks, so that no policy drops the first replicas."""
        task, root = self._scheduler.tasks.get(self._key), ranks[0]
        if task is None or not task.who_has:
            raise CollectiveFailed(f"{self._key!r} was released, or lost with its rank, before all ranks had a copy.")
        task.worker_restrictions = {*(task.worker_restrictions or ()), *ranks}
        holders = [worker.address for worker in task.who_has]
        if root not in holders and await self._scheduler.gather_on_worker(root, {self._key: holders}):
            raise CollectiveFailed(f"rank 0 of world {self._world.index} could not get the object from {holders[0]}")

    async def _run_all(self) -> None:
        serial = self._broadcasts.queue.communicator(self._world, list(self._members.ranks))
        outcomes = Outcomes({rank: asyncio.ensure_future(self._go(rank, serial)) for rank in self._members.ranks})
        if await outcomes.wait(self._left, poll=_LOOK):
            return
        self._broadcasts.queue.retire_communicator(self._world, serial)
        await outcomes.break_off(lambda _: self._cancel(), self._world.index, None, protocol.BROADCAST_END_S)
        stuck = outcomes.running
        ranks = [str(rank) for rank in stuck]
        if stuck:
            who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(ranks)} have"
            reason = f"{who} not returned from a broadcast of {self._key!r}"
            self._broadcasts.queue.block_until_back(self._world, stuck, reason)
        # In the order of their ends, which shows the rank that was lost first.
        error = root_cause(outcomes.futures[rank].exception() for rank in outcomes.order)
        if error and (outcomes.first_failed is not None or isinstance(error, RankLost)):
            raise error
        raise CollectiveTimeout(
            f"a broadcast among the ranks of world {self._world.index} did not end in time"
            f"{', and these ranks do not answer: ' * bool(ranks)}{', '.join(ranks)}. Read the logs of the ranks."
        )

    async def _go(self, rank: int, serial: int) -> None:
        await self._members.ask(rank, protocol.BROADCAST_GO, call=self._call, serial=serial)
        # If no client wants the key now, the scheduler has the rank drop the key.
        self._scheduler.add_keys(worker=self._members.ranks[rank], keys=[self._key])

    def _left(self) -> float:
        """Return the seconds until the deadline, which is earlier if no client wants the key."""
        now = asyncio.get_running_loop().time()
        if self._key not in self._scheduler.tasks:
            # If all ranks come, the broadcast ends in order. Other operations wait for their turn.
            self._deadline = min(self._deadline, now + _UNWANTED)
        return max(0.0, self._deadline - now)

    def _cancel(self) -> None:
        self._members.tell(protocol.BROADCAST_CANCEL, call=self._call)

    def _not_ready(self) -> CollectiveTimeout:
        return CollectiveTimeout(
            f"not all ranks of world {self._world.index} were ready for a broadcast in time, and no rank has sent "
            "data. Allow more time with timeout=, or read the logs of the ranks."
        )
