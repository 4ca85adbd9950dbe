"""One object from a client to all ranks: uploaded once, then sent on by ``MPI_Bcast`` in each world.

All ranks get ready first; only when each has said so do they begin. So a refusal leaves nothing half done.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from workbench import config
from workbench.collective import protocol
from workbench.collective.operation import RankOperation, Running
from workbench.collective.queue import CallQueue, require_complete
from workbench.collective.rank_rpc import LOOK, STAYS, RankRPC, gather_or_cancel, leaves, root_cause
from workbench.errors import CollectiveFailed, CollectiveTimeout, RankLost

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Scheduler

    from workbench.deploy.world import MPIWorld, Worlds

# Seconds between two looks at whether somebody wants what is sent, and until it is given up if nobody does.
_LOOK = 1.0
_UNWANTED = 30.0


class Broadcasts:
    """Answers what clients and ranks ask for a broadcast, which each rank of each world gets."""

    def __init__(self, scheduler: Scheduler, worlds: Worlds, queue: CallQueue) -> None:
        self.scheduler, self.worlds, self.queue = scheduler, worlds, queue
        self.handlers: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            protocol.BROADCAST_BEGIN: self.begin,
            protocol.BROADCAST_UPLOAD: self.upload,
            protocol.BROADCAST_UPLOADED: self.uploaded,
            protocol.BROADCAST: self.broadcast,
        }

    async def begin(self, key: Key, client: str) -> str:
        """Note that a client wants `key`, before there is data for it; return the address of the rank to upload to."""
        worlds = list(self.worlds)
        for world in worlds:
            require_complete(world)
        # The client's interest comes first: when it is gone, even in the middle of its upload, so is the key.
        self.scheduler.new_task(key, None, "released")
        self.scheduler.client_desires_keys(keys=[key], client=client)
        return self.worlds.addresses(worlds[0])[0]

    async def upload(self, key: Key, value: Any, root: str) -> None:
        """Pass an upload on to rank 0, for a client that cannot reach it."""
        try:
            if root not in self.scheduler.workers:  # a connection to it would be tried for long
                raise ConnectionError(f"{root} has left")
            await getattr(self.scheduler.rpc(root), protocol.BROADCAST_UPLOAD)(key=key, value=value)
        except OSError as error:
            if await leaves(self.scheduler, root):
                raise RankLost("rank 0 was lost before it had the object for a broadcast; no rank has it") from error
            raise CollectiveFailed(
                f"rank 0 could not be reached for a broadcast ({error}), {STAYS}.", hint=LOOK
            ) from error

    async def uploaded(self, key: Key, address: str, nbytes: int) -> None:
        """Note that rank 0 has the object."""
        if key in self.scheduler.tasks:
            self.scheduler.update_data(who_has={key: [address]}, nbytes={key: nbytes})
        else:  # nobody wants it any more, and it is dropped again
            self.scheduler.add_keys(worker=address, keys=[key])

    async def broadcast(self, key: Key, client: str, timeout: float) -> None:
        """Send the object from rank 0 to all other ranks of all worlds."""
        deadline = asyncio.get_running_loop().time() + timeout
        parts = [(world, _Part(self, world, key, deadline)) for world in self.worlds]
        calls = [self.queue.run(world, client, part.run, deadline) for world, part in parts]
        if error := root_cause(await asyncio.gather(*calls, return_exceptions=True)):
            raise error


class _Part(RankOperation[None, bool]):
    """The part of a broadcast in one world; its result is no news."""

    grace = 2.0
    # All ranks take part or none: once they are ready, it is brought to an end, also without its client.
    ends_when_cancelled = False

    def __init__(self, broadcasts: Broadcasts, world: MPIWorld, key: Key, deadline: float) -> None:
        none = RankRPC(broadcasts.scheduler, world.index, {}, "a broadcast")
        super().__init__(broadcasts.scheduler, broadcasts.queue, world, none, deadline)
        self._worlds, self._key = broadcasts.worlds, key
        self._call = uuid.uuid4().hex

    async def run(self) -> bool:
        if self._deadline == math.inf:
            # Who waits for its turn as long as it takes is not to hold the turns of all others.
            self._deadline = asyncio.get_running_loop().time() + config.seconds("broadcast-timeout")
        self._members.ranks = self._worlds.members(self._world)
        return await super().run()

    async def _prepare(self) -> bool | None:
        ranks = self._members.ranks
        await self._fetch(list(ranks.values()))
        if len(ranks) == 1:
            return True
        offer: protocol.Offer = {"call": self._call, "key": self._key, "timeout": self._left() + self.grace}
        sizes = await self._members.ask(0, protocol.BROADCAST_OFFER, **offer)
        take: protocol.Take = {**offer, "sizes": sizes}
        await gather_or_cancel(self._members.ask(rank, protocol.BROADCAST_TAKE, **take) for rank in ranks if rank)
        return None

    async def _fetch(self, ranks: list[str]) -> None:
        """Have the object on rank 0, and pin it to all, before a policy takes the first replicas for surplus."""
        task, root = self._scheduler.tasks.get(self._key), ranks[0]
        if task is None or not task.who_has:
            raise CollectiveFailed(f"{self._key!r} was released, or lost with its rank, before it was sent to all")
        task.worker_restrictions = {*(task.worker_restrictions or ()), *ranks}
        holders = [worker.address for worker in task.who_has]
        if root not in holders and await self._scheduler.gather_on_worker(root, {self._key: holders}):
            raise CollectiveFailed(f"rank 0 of world {self._world.index} could not get the object from {holders[0]}")

    async def _go(self, rank: int) -> None:
        await self._members.ask(rank, protocol.BROADCAST_GO, call=self._call, serial=self._serial)
        # If nobody wants it any more, the scheduler has the rank drop it again.
        self._scheduler.add_keys(worker=self._members.ranks[rank], keys=[self._key])

    async def _finish(self, _: list[None]) -> bool:
        return True

    def _check_wanted(self) -> float:
        if self._key not in self._scheduler.tasks:
            # Nobody wants it any more. If all ranks come, it ends in order; others wait for their turn.
            self._deadline = min(self._deadline, asyncio.get_running_loop().time() + _UNWANTED)
        return _LOOK

    def _end(self, reason: str, *, begun: bool) -> None:
        self._members.tell(protocol.BROADCAST_CANCEL, call=self._call)

    async def _broken(self, running: Running[None], order: Sequence[int]) -> NoReturn:
        stuck = {rank: future for rank, future in running.items() if not future.done()}
        ranks = [str(rank) for rank in stuck]
        if stuck:
            who = f"rank {ranks[0]} does" if len(ranks) == 1 else f"ranks {', '.join(ranks)} do"
            self._queue.block_until_back(self._world, stuck, f"{who} not come back from a broadcast of {self._key!r}")
        # In the order of their ends, which tells who was lost first.
        error = root_cause(running[rank].exception() for rank in order)
        if error and (self._first is not None or isinstance(error, RankLost)):
            raise error
        raise CollectiveTimeout(
            f"a broadcast among the ranks of world {self._world.index} did not end in time"
            f"{', and these do not answer: ' * bool(ranks)}{', '.join(ranks)}. Look at their logs."
        )

    def _not_ready(self) -> CollectiveTimeout:
        return CollectiveTimeout(
            f"the ranks of world {self._world.index} did not all get ready for a broadcast in time, and nothing was "
            "sent among them. Look at their logs, or allow more with timeout=."
        )
