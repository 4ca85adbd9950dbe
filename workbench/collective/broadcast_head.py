"""One object from a client to all ranks: uploaded once, then sent on by ``MPI_Bcast`` in each world.

All ranks get ready first; only when each has said so do they begin. So a refusal leaves nothing half done.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.collective import protocol
from workbench.collective.queue import CallQueue, require_complete
from workbench.collective.rank_rpc import LOOK, STAYS, RankRPC, gather_or_cancel, leaves, root_cause
from workbench.errors import CollectiveFailed, CollectiveTimeout, RankLost

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Scheduler

    from workbench.deploy.world import MPIWorld, Worlds

# Seconds for the ranks to say why they gave up.
_GRACE = 2.0
# Seconds between two looks at whether somebody wants what is sent, and until it is given up if nobody does.
_LOOK = 1.0
_UNWANTED = 30.0


class Broadcasts:
    """Answers what clients and ranks ask for a broadcast.

    Parameters
    ----------
    scheduler
        Keeps account of who has the object and who wants it.
    worlds
        All worlds of the cluster; each rank of each gets the object.
    collectives
        Their queues.
    """

    def __init__(self, scheduler: Scheduler, worlds: Worlds, collectives: CallQueue) -> None:
        self.scheduler, self.worlds, self.collectives = scheduler, worlds, collectives
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
        parts = [_Part(self, world, key, deadline) for world in self.worlds]
        calls = [self.collectives.run(part.world, client, part.run, deadline) for part in parts]
        if error := root_cause(await asyncio.gather(*calls, return_exceptions=True)):
            raise error


class _Part:
    """The part of a broadcast in one world."""

    def __init__(self, broadcasts: Broadcasts, world: MPIWorld, key: Key, deadline: float) -> None:
        self._scheduler, self._collectives = broadcasts.scheduler, broadcasts.collectives
        self._worlds, self.world, self._key, self._deadline = broadcasts.worlds, world, key, deadline
        self._call = uuid.uuid4().hex

    async def run(self) -> None:
        """Have all ranks of the world hold the object; to be called when it is its turn."""
        if self._deadline == math.inf:
            # Who waits for its turn as long as it takes is not to hold the turns of all others.
            self._deadline = asyncio.get_running_loop().time() + config.seconds("broadcast-timeout")
        members = self._worlds.members(self.world)
        self._ranks = RankRPC(self._scheduler, self.world.index, members, "a broadcast")
        self.ranks = list(members.values())
        serial = self._collectives.communicator(self.world, list(members))
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._fetch()
                if len(self.ranks) == 1:
                    return
                offer: protocol.Offer = {"call": self._call, "key": self._key, "timeout": self._left() + _GRACE}
                sizes = await self._ranks.ask(0, protocol.BROADCAST_OFFER, **offer)
                take: protocol.Take = {**offer, "sizes": sizes}
                await gather_or_cancel(
                    self._ranks.ask(rank, protocol.BROADCAST_TAKE, **take) for rank in range(1, len(self.ranks))
                )
        except BaseException as error:
            self._cancel()
            if isinstance(error, TimeoutError) and not isinstance(error, CollectiveTimeout):
                raise CollectiveTimeout(
                    f"the ranks of world {self.world.index} did not all get ready for a broadcast in time, and "
                    "nothing was sent among them. Look at their logs, or allow more with timeout=."
                ) from None
            raise
        # All are ready. From here on it is brought to an end, also without its client: all ranks take part or none.
        sending = asyncio.ensure_future(self._send(serial))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            await sending
            raise

    async def _fetch(self) -> None:
        """Have the object on rank 0, and pin it to all, before a policy takes the first replicas for surplus."""
        task, root = self._scheduler.tasks.get(self._key), self.ranks[0]
        if task is None or not task.who_has:
            raise CollectiveFailed(f"{self._key!r} was released, or lost with its rank, before it was sent to all")
        task.worker_restrictions = {*(task.worker_restrictions or ()), *self.ranks}
        holders = [worker.address for worker in task.who_has]
        if root not in holders and await self._scheduler.gather_on_worker(root, {self._key: holders}):
            raise CollectiveFailed(f"rank 0 of world {self.world.index} could not get the object from {holders[0]}")

    async def _send(self, serial: int) -> None:
        going = [asyncio.ensure_future(self._go(rank, serial)) for rank in range(len(self.ranks))]
        ended: list[asyncio.Task[None]] = []  # in this order, which tells who was lost first
        for task in going:
            task.add_done_callback(ended.append)
        late, failed = True, False
        while late and not failed and self._left():
            until = min(_LOOK, self._left())
            done, left = await asyncio.wait(going, timeout=until, return_when=asyncio.FIRST_EXCEPTION)
            late, failed = bool(left), any(task.exception() for task in done)
            if self._key not in self._scheduler.tasks:
                # Nobody wants it any more. If all ranks come, it ends in order; others wait for their turn.
                self._deadline = min(self._deadline, asyncio.get_running_loop().time() + _UNWANTED)
        if not late and not failed:
            return
        # The others cannot come to an end without the one that failed or is late.
        self._collectives.retire_communicator(self.world, serial)
        self._cancel()
        _, silent = await asyncio.wait(going, timeout=_GRACE)
        ranks = [str(rank) for rank, task in enumerate(going) if task in silent]
        if silent:
            who = f"rank {ranks[0]} does" if len(ranks) == 1 else f"ranks {', '.join(ranks)} do"
            self._collectives.block_until_back(
                self.world, silent, f"{who} not come back from a broadcast of {self._key!r}"
            )
        error = root_cause(task.exception() for task in ended)
        if error and (failed or isinstance(error, RankLost)):
            raise error
        raise CollectiveTimeout(
            f"a broadcast among the ranks of world {self.world.index} did not end in time"
            f"{', and these do not answer: ' * bool(ranks)}{', '.join(ranks)}. Look at their logs."
        )

    def _left(self) -> float:
        """Return the seconds until the deadline."""
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    async def _go(self, rank: int, serial: int) -> None:
        await self._ranks.ask(rank, protocol.BROADCAST_GO, call=self._call, serial=serial)
        # If nobody wants it any more, the scheduler has the rank drop it again.
        self._scheduler.add_keys(worker=self.ranks[rank], keys=[self._key])

    def _cancel(self) -> None:
        self._ranks.tell(protocol.BROADCAST_CANCEL, call=self._call)
