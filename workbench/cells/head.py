"""Cells of notebooks on the ranks of a world: one at a time, in the order in which clients asked for them.

Code and output go between notebook and engines by themselves. The head says when: it lets a cell begin once all its
ranks are ready for it, and ends it on all of them when one fails, or its notebook asks for that or goes away.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakKeyDictionary

from distributed.diagnostics.plugin import SchedulerPlugin

from workbench.cells import protocol
from workbench.cells.controller_process import Engines, ask
from workbench.collective.cancelled import Cancelled
from workbench.collective.protocol import part
from workbench.collective.queue import CallQueue, Turn, gone, just_being
from workbench.collective.rank_locations import ranges
from workbench.collective.rank_rpc import RankRPC, gather_or_cancel, room
from workbench.errors import CollectiveFailed, InvalidRequest, PlacementError, RankLost
from workbench.hints import Command
from workbench.placement.head import drop_copies
from workbench.text import count

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Scheduler

    from workbench.deploy.registry import Record
    from workbench.deploy.world import MPIWorld, Worlds

# Seconds that ranks have to end a cell; theirs are fewer.
_PATIENCE = 11.0

# Seconds for which cells are remembered that were called off before they were asked for.
_REMEMBER = 60.0


@dataclass(eq=False)
class _Cell:
    """A cell that waits for its turn, or has it."""

    asked: protocol.Begin
    world: MPIWorld
    granted: asyncio.Future[protocol.Granted]
    addresses: dict[int, str] = field(default_factory=dict)
    """Of the ranks that run it."""
    running: set[int] = field(default_factory=set)
    """Ranks that have not come to its end."""
    lost: list[int] = field(default_factory=list)
    """Ranks that died in it."""
    broken: bool = False
    """Whether it did not end well on some rank."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    """Has the turn."""

    @property
    def id(self) -> str:
        """Identity of the cell."""
        return self.asked["cell"]


class Cells(SchedulerPlugin):
    """The queue of each world, and its engines.

    Parameters
    ----------
    scheduler, worlds, record
        Of the cluster.
    run
        Runs something beside all else.
    began
        Called with the identity of each cell, and its number in its notebook.

    Notes
    -----
    As a plugin of the scheduler it learns which clients and ranks go.
    """

    name = "workbench-cells"

    def __init__(
        self,
        scheduler: Scheduler,
        worlds: Worlds,
        record: Record,
        run: Callable[[Coroutine[Any, Any, None]], None],
        began: Callable[[str, int | None], None],
    ) -> None:
        self._scheduler, self._worlds, self._record, self._run = scheduler, worlds, record, run
        self._began = began
        self._turns = CallQueue()
        self._engines: dict[tuple[int, int], Engines] = {}
        self._cells: dict[str, _Cell] = {}
        self._called_off = Cancelled(_REMEMBER)
        # Blocks that cells of a world were given, and their ranks. They stay in the namespaces, where later cells may
        # write to them.
        self._given: WeakKeyDictionary[MPIWorld, dict[Key, str]] = WeakKeyDictionary()
        # Communicators are made anew after a cell that broke off: of the old ones messages may be on their way.
        self._generations: defaultdict[MPIWorld, int] = defaultdict(int)
        self.handlers: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            protocol.BEGIN: self.begin,
            protocol.WAIT: self.wait,
            protocol.INTERRUPT: self.interrupt,
            protocol.COMPLETE: self.complete,
        }
        scheduler.stream_handlers[protocol.ENDED] = self.ended

    # -- what clients ask for ----------------------------------------------------------------------------------

    async def begin(self, **asked: Unpack[protocol.Begin]) -> protocol.Granted:
        """Get all ranks of a cell ready for it when it is its turn; return how the client reaches their engines."""
        cell, world = asked["cell"], asked["world"]
        if cell in self._called_off:
            raise CollectiveFailed(_was_called_off())
        self._began(cell, asked["origin"])
        place = self._worlds.get(world)
        if place is None:
            have = ", ".join(str(each.index) for each in self._worlds)
            raise InvalidRequest(f"there is no world {world}: this cluster has {have}")
        granted: asyncio.Future[protocol.Granted] = asyncio.get_running_loop().create_future()
        now = self._cells[cell] = _Cell(asked, place, granted)
        turn = self._turns.turn(
            place,
            asked["client"],
            asyncio.get_running_loop().time() + asked["timeout"],
            busy=f"world {world} is still busy with another cell after {asked['timeout']:.0f} s. Ask again later, or "
            "allow more with the setting workbench.cells.queue-timeout.",
            gone=lambda: self._call_off(now, "its notebook has gone"),
        )
        # The head's shutdown cancels it, too.
        granted.add_done_callback(lambda _: turn.cancel(_was_called_off) if granted.cancelled() else None)
        now.task = asyncio.ensure_future(self._take_turn(now, turn))
        try:
            return await granted
        except asyncio.CancelledError:
            raise CollectiveFailed(_was_called_off()) from None

    async def wait(self, cell: str) -> dict[str, Any]:
        """Return when a cell is over on all its ranks, or those that do not end have had their time."""
        now = self._cells.get(cell)
        if now is None:
            return {"lost": []}
        await now.over.wait()
        self._cells.pop(cell, None)
        return {"lost": sorted(now.lost)}

    async def interrupt(self, cell: str, reason: str) -> None:
        """End a cell wherever it is."""
        if now := self._cells.get(cell):
            self._call_off(now, reason)
        else:
            # It may have been faster than the request for the cell.
            self._called_off.add(cell)

    async def complete(self, world: int, text: str) -> list[str]:
        """Return the names on rank 0 that continue `text`; nothing while a cell runs."""
        place = self._worlds.get(world)
        if place is None or 0 not in place.present or self._turns.is_taken(place):
            return []
        asking = RankRPC(self._scheduler, world, self._worlds.members(place), "a completion")
        found: list[str] = await ask(asking, 0, protocol.COMPLETE, text=text)
        return found

    async def rest(self) -> None:
        """Return when the cells that run have ended."""
        await self._turns.rest()

    async def close(self) -> None:
        """End the controllers."""
        await asyncio.gather(*(engines.close() for engines in self._engines.values()))

    # -- a turn ------------------------------------------------------------------------------------------------

    async def _take_turn(self, cell: _Cell, turn: Turn) -> None:
        """Have the turn until the cell is over; the client gets what goes wrong before it begins."""
        granted = cell.granted
        try:
            async with turn.held():
                await self._have_turn(cell)
        except Exception as error:  # noqa: BLE001  (the client gets it)
            if not granted.done():
                granted.set_exception(error)
        finally:
            cell.over.set()
            if not granted.done() or granted.cancelled() or granted.exception():
                self._cells.pop(cell.id, None)
            # A notebook that was interrupted does not ask how the cell has ended.
            asyncio.get_running_loop().call_later(_REMEMBER, self._cells.pop, cell.id, None)

    async def _have_turn(self, cell: _Cell) -> None:
        try:
            told = await self._get_ready(cell)
            if not cell.granted.done():
                cell.granted.set_result(told)
                await cell.over.wait()
        finally:
            if not cell.granted.done() or cell.granted.cancelled():
                # Those that are ready for it, or about to be, are not to wait for it.
                cell.running = set(cell.addresses)
                self._tell(cell, "it was called off", interrupt=True)
            self._drop_copies(cell)
            if cell.broken:
                self._generations[cell.world] += 1
                self._turns.retire_communicator(cell.world)

    async def _get_ready(self, cell: _Cell) -> protocol.Granted:
        world, objects = cell.world, cell.asked["names"]
        ranks = _check_ranks(world, cell.asked["ranks"])
        everyone = self._worlds.members(world)
        cell.addresses = {rank: everyone[rank] for rank in ranks}
        names = {rank: {name: self._on_rank(cell, name, rank) for name in objects} for rank in ranks}
        asking = RankRPC(self._scheduler, world.index, everyone, "a cell")
        given = self._given.setdefault(world, {})
        for how in objects.values():
            given |= {how["blocks"][address]: address for address in cell.addresses.values() if "blocks" in how}
        told = await self._engines_of(world).ready(asking)
        generation = self._generations[world]
        serial = self._turns.communicator(world, ranks)
        cell.running = set(ranks)
        admitted = room(sum(len(how.get("parcel", b"")) for how in objects.values()))

        async def prepare(rank: int) -> None:
            message: protocol.Prepare = {
                "cell": cell.id,
                **part(protocol.Allowed, cell.asked),
                "generation": generation,
                "serial": serial,
                "ranks": ranks,
                "names": names[rank],
            }
            async with admitted:
                await ask(asking, rank, protocol.PREPARE, **message)

        await gather_or_cancel(map(prepare, ranks))
        return {**told, "ranks": ranks, "size": world.ranks}

    def _drop_copies(self, cell: _Cell) -> None:
        """Have other ranks let go of their copies of what the cell may have written to."""
        given = self._given.get(cell.world, {})
        for key in [key for key in given if key not in self._scheduler.tasks]:
            del given[key]
        drop_copies(self._scheduler, given.items(), f"cell-{cell.id}")

    def _engines_of(self, world: MPIWorld) -> Engines:
        start = (world.index, world.starts)
        if start not in self._engines:
            self._engines[start] = Engines(self._scheduler.address, self._record, f"{world.index}-{world.starts}")
        return self._engines[start]

    def _on_rank(self, cell: _Cell, name: str, rank: int) -> protocol.How:
        """Return how an object comes to a rank."""
        how = cell.asked["names"][name]
        if "blocks" in how:
            if wrong := self._elsewhere(cell, name, rank):
                raise PlacementError(wrong)
            address = cell.addresses[rank]
            return {"key": how["blocks"][address], "holders": [address]}
        if "key" in how:
            task = self._scheduler.tasks.get(how["key"])
            return {"key": how["key"], "holders": [holder.address for holder in (task and task.who_has) or ()]}
        return how

    def _elsewhere(self, cell: _Cell, name: str, rank: int) -> str | None:
        """Return why a rank does not see all of the world's part of a collection, or None."""
        blocks = cell.asked["names"][name]["blocks"]
        told = [
            self._scheduler.workers[address].extra["workbench"]
            for address in blocks
            if address in self._scheduler.workers
        ]
        here = sorted(each["rank"] for each in told if each["world"] == cell.world.index)
        others = sorted({each["world"] for each in told} - {cell.world.index})
        if not here and others:
            where = f"world {others[0]}, and this cell runs on world {cell.world.index}"
            return f"{name!r} lies on {where}: --world {others[0]}"
        if here and others:
            worlds = ranges([cell.world.index, *others])
            return f"{name!r} has blocks on worlds {worlds}, and a cell runs in one: it would miss the rest"
        if cell.addresses[rank] in blocks:
            return None
        if not here:
            return f"the ranks that held the blocks of {name!r} are gone: place it again"
        return f"rank {rank} holds no block of {name!r}: run the cell on those that do, --ranks {_option(here)}"

    # -- the end of a cell -------------------------------------------------------------------------------------

    def ended(self, *, worker: str, **told: Unpack[protocol.Ended]) -> None:
        """Note that a rank is done with a cell; if it failed, the others are not to wait for it in MPI."""
        rank, status, summary = told["rank"], told["status"], told["summary"]
        if now := self._cells.get(told["cell"]):
            why = {"exit": f"rank {rank} left it by exit()", "ended": None, "interrupted": None, "ok": None}
            why["called off"] = summary
            reason = why.get(status, f"rank {rank} raised {summary}")
            if status == "failing":
                # Its traceback takes time, and the others are not to wait for it.
                now.broken = True
                self._tell(now, str(reason), interrupt=False)
            else:
                self._leaves(now, rank, reason, well=status == "ok")

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        """Note that a rank is gone."""
        for cell in list(self._cells.values()):
            for rank, address in cell.addresses.items():
                if address == worker and rank in cell.running:
                    cell.lost.append(rank)
                    self._leaves(cell, rank, f"rank {rank} is gone", well=False)
        for (index, starts), engines in list(self._engines.items()):
            world = self._worlds.get(index)
            if world is None or world.starts != starts or not world.present:
                del self._engines[index, starts]
                self._run(engines.close())

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """End the cells of a client that is gone."""
        self._turns.remove_client(scheduler, client)

    def _leaves(self, cell: _Cell, rank: int, why: str | None, *, well: bool) -> None:
        cell.running.discard(rank)
        cell.broken |= not well
        if why:
            self._tell(cell, why, interrupt=False)
        if not cell.running:
            cell.over.set()

    def _call_off(self, cell: _Cell, reason: str) -> None:
        if not cell.granted.done():
            cell.granted.cancel()
            return
        cell.broken = True
        self._tell(cell, reason, interrupt=True)
        # Whoever is in C code then is left to itself; it refuses the next cell as long as it is there.
        asyncio.get_running_loop().call_later(_PATIENCE, cell.over.set)

    def _tell(self, cell: _Cell, reason: str, *, interrupt: bool) -> None:
        running = {rank: cell.addresses[rank] for rank in cell.running}
        message: protocol.End = {"cell": cell.id, "reason": reason, "interrupt": interrupt}
        RankRPC(self._scheduler, cell.world.index, running, "a cell").tell(protocol.END, **message)


def _was_called_off() -> str:
    return "the cell was called off before its turn came"


def _check_ranks(world: MPIWorld, asked: Sequence[int] | None) -> list[int]:
    """Return the ranks that run a cell; raise if there are no such ranks, or they cannot run it."""
    if doing := just_being(world):
        raise CollectiveFailed(f"world {world.index} is just being {doing}: run the cell again when it is ready")
    ranks = sorted(set(range(world.ranks) if asked is None else asked))
    if unknown := [rank for rank in ranks if not 0 <= rank < world.ranks]:
        raise InvalidRequest(
            f"--ranks {_option(ranks)}: world {world.index} has {count(world.ranks, 'rank')}, no rank {unknown[0]}; "
            f"allowed: {ranges(range(world.ranks))}",
            option="ranks",
            given=_option(ranks),
            allowed=ranges(range(world.ranks)),
        )
    if missing := gone(world, ranks):
        left = sorted(world.present)
        others = f"Run it on the others, --ranks {_option(left)}, or s" if left else "S"
        raise RankLost(
            f"{'rank' if len(missing) == 1 else 'ranks'} {ranges(missing)} of world {world.index} "
            f"{'is' if len(missing) == 1 else 'are'} gone.",
            hint=(f"{others}tart the ranks again: ", Command("restart")),
        )
    return ranks


def _option(ranks: Iterable[int]) -> str:
    """Return ranks as ``--ranks`` takes them."""
    return ranges(ranks).replace(" ", "")
