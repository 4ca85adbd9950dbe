"""Cells of notebooks on the ranks: one at a time, in the order of the requests.

Code and output do not pass the head. The head starts a cell when all ranks of the cell are prepared, and ends the cell
when one rank fails, when the notebook asks for the end, or when the notebook disconnects.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

from distributed.diagnostics.plugin import SchedulerPlugin

from workbench.cancellation import run_to_end
from workbench.cells import protocol
from workbench.cells.controller_process import Engines
from workbench.cells.protocol import ANSWER_S
from workbench.collective.operation import (
    CallQueue,
    Cancelled,
    Outcomes,
    RankRPC,
    Turn,
    gather_or_cancel,
    missing_ranks,
    send_limit,
    transition,
)
from workbench.collective.protocol import REMEMBER_S
from workbench.errors import CollectiveFailed, InvalidRequest, PlacementError, RankLost, WorkbenchError
from workbench.hints import Command
from workbench.placement.head import drop_copies, mark_written
from workbench.positions import ranges

if TYPE_CHECKING:
    from distributed import Scheduler

    from workbench.deploy.record import Record
    from workbench.deploy.world import CurrentWorld, MPIWorld

# Seconds for which a cell waits for the cells of other notebooks.
_QUEUE = 600.0
# Seconds for which the ranks keep the names of a notebook that has disconnected.
_KEEP_NAMES = 600.0
_CANCELLED = "the cell was canceled before its turn"
_LOST = "lost"  # the status of a rank that died in a cell, beside those of `protocol.Ended`


class Cells(SchedulerPlugin):
    """The cells of a cluster; a plugin of the scheduler, which reports clients and ranks that leave.

    Parameters
    ----------
    run
        Runs a coroutine in the background.
    began
        Called with the identity of each cell, and the number of the cell in its notebook.
    """

    name = "workbench-cells"

    def __init__(
        self,
        scheduler: Scheduler,
        current: CurrentWorld,
        record: Record,
        run: Callable[[Coroutine[Any, Any, None]], object],
        began: Callable[[str, int | None], None],
    ) -> None:
        self.scheduler, self.current, self._record = scheduler, current, record
        self._run, self._began = run, began
        self.queue = CallQueue()
        self._engines: dict[tuple[int, int], Engines] = {}
        self.known: dict[str, _Cell] = {}  # cells that wait, run or have just ended, by identity
        self._notebooks: dict[str, _Notebook] = {}
        self._cancelled = Cancelled(REMEMBER_S)
        self.handlers: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            protocol.BEGIN: self.begin,
            protocol.DELAY: self.delay,
            protocol.WAIT: self.wait,
            protocol.INTERRUPT: self.interrupt,
            protocol.REACH: self.reach,
            protocol.COMPLETE: self.complete,
        }
        scheduler.stream_handlers[protocol.ENDED] = self.ended
        scheduler.stream_handlers[protocol.ENGINE_ENDED] = self.engine_ended
        scheduler.stream_handlers[protocol.NAMED] = self.named

    # -- requests of clients -----------------------------------------------------------------------------------

    async def begin(self, **request: Unpack[protocol.Begin]) -> protocol.Granted:
        """Prepare all ranks of a cell when its turn comes; return how the client reaches the engines."""
        id = request["cell"]  # noqa: A001
        if id in self._cancelled:
            raise CollectiveFailed(_CANCELLED)
        self._began(id, request["origin"])
        self._joined(request["notebook"], request["client"])
        cell = self.known[id] = _Cell(self, request)
        cell.turn = self.queue.turn(
            request["client"],
            asyncio.get_running_loop().time() + _QUEUE,
            busy=f"the ranks are still busy with another cell after {_QUEUE:.0f} s. Run the cell later, or interrupt "
            "the other cell in its notebook.",
            gone=lambda: cell.stop("its notebook has disconnected"),
        )
        cell.task = asyncio.ensure_future(self._take_turn(cell))
        try:
            return await cell.granted
        except asyncio.CancelledError:  # the head's shutdown
            cell.stop("the cluster ends")
            raise CollectiveFailed(_CANCELLED) from None

    async def delay(self, cell: str) -> str:
        """Return what a cell waits for that has not begun; an empty string if the head does not know the cell."""
        waiting = self.known.get(cell)
        if waiting is None or waiting.granted.done():
            return ""
        if waiting.turn_at is not None:
            return waiting.step
        running = (each for each in self.known.values() if each.turn_at is not None and not each.task.done())
        return next((each.occupation(waiting) for each in running), "its turn")

    async def reach(self) -> protocol.Reach:
        """Start the engines if need be; return how clients connect to them."""
        ranks = _check_ranks(self.current.world, None)
        reach = await self.engines(self.current.world).ready(self.members("ipyparallel"))
        return {**reach, "idents": {rank: reach["idents"][rank] for rank in ranks}}

    def members(self, purpose: str) -> RankRPC:
        """Return the means to ask all registered ranks; errors contain the purpose."""
        return RankRPC(self.scheduler, self.current.members(), purpose)

    async def wait(self, cell: str) -> dict[str, Any]:
        """Return when a cell has ended on all its ranks, or the time of the ranks that do not end has passed."""
        operation = self.known.get(cell)
        if operation is None:
            return {"lost": {}, "disconnected": False}
        await asyncio.wait([operation.task])
        self.known.pop(cell, None)
        return {"lost": operation.lost, "disconnected": operation.disconnected}

    async def interrupt(self, cell: str, reason: str) -> None:
        """End a cell, in any state."""
        if operation := self.known.get(cell):
            operation.stop(reason)
        else:
            # This request may arrive before the request for the cell.
            self._cancelled.add(cell)

    async def complete(self, text: str, namespace: str) -> list[str]:
        """Return the names of a namespace on rank 0 that begin with `text`; an empty list while a cell runs."""
        ranks = self.members("a completion")
        if 0 not in ranks.ranks or self.queue.is_taken():
            return []
        return list(await ranks.ask(0, protocol.COMPLETE, ANSWER_S, text=text, namespace=namespace))

    async def close(self) -> None:
        """End the controllers."""
        await asyncio.gather(*(engines.close() for engines in self._engines.values()))

    # -- cells -------------------------------------------------------------------------------------------------

    async def _take_turn(self, cell: _Cell) -> None:
        """Keep the turn until the end of the cell; the client gets errors from before the start of the cell."""
        try:
            async with cell.turn.held():
                await cell.run()
        except Exception as error:  # noqa: BLE001  (the client gets the error)
            if not cell.granted.done():
                cell.granted.set_exception(error)
                del self.known[cell.id]
        finally:
            # A notebook that was interrupted does not wait for the end of the cell.
            asyncio.get_running_loop().call_later(REMEMBER_S, self.known.pop, cell.id, None)

    def engines(self, world: MPIWorld) -> Engines:
        """Return the engines of the present start of a world."""
        start = (world.index, world.starts)
        if start not in self._engines:
            name = f"{world.index}-{world.starts}"
            ended = functools.partial(self._controller_ended, start)
            self._engines[start] = Engines(self.scheduler.address, self._record, name, ended)
        return self._engines[start]

    def _controller_ended(self, start: tuple[int, int]) -> None:
        """End the cells of a start of a world: no code and no output passes any more."""
        for cell in self.known.values():
            if cell.start == start:
                cell.disconnected = True
                cell.stop("the controller of the cells has ended, and the next cell starts another one")

    def ended(self, *, worker: str, **report: Unpack[protocol.Ended]) -> None:
        """Note that a rank has ended a cell, or is about to fail."""
        if cell := self.known.get(report["cell"]):
            cell.ended(report["rank"], report["status"], report["summary"])

    def engine_ended(self, *, worker: str) -> None:
        """Start the engine of a rank again with the next cell: its kernel has ended, and the rank has not."""
        for engines in self._engines.values():
            engines.forget(worker)

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        """Note that a rank was lost."""
        for cell in list(self.known.values()):
            for rank in [rank for rank, address in cell.running.items() if address == worker]:
                cell.ended(rank, _LOST, getattr(scheduler, "causes", {}).get(worker, ""))
        for (index, starts), engines in list(self._engines.items()):
            world = self.current.world
            if (world.index, world.starts) != (index, starts) or not world.present:
                del self._engines[index, starts]
                self._run(engines.close())

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """End the cells of a client that has disconnected, and later delete the names of its notebook."""
        self.queue.remove_client(scheduler, client)
        for name, notebook in self._notebooks.items():
            notebook.clients.discard(client)
            self._delete_later(name)

    def named(self, *, worker: str, namespace: str) -> None:
        """Note that a rank has names of a notebook, which may have no client: views of ipyparallel have none."""
        self._notebooks.setdefault(namespace, _Notebook())
        self._delete_later(namespace)

    def _joined(self, name: str, client: str) -> None:
        """Note that a client belongs to a notebook."""
        notebook = self._notebooks.setdefault(name, _Notebook())
        notebook.clients.add(client)
        if notebook.deletion is not None:
            notebook.deletion.cancel()
            notebook.deletion = None

    def _delete_later(self, name: str) -> None:
        notebook = self._notebooks[name]
        if not notebook.clients and notebook.deletion is None:
            notebook.deletion = asyncio.ensure_future(self._delete_unused(name))

    async def _delete_unused(self, name: str) -> None:
        """Delete the names of a notebook on all ranks when no rank has received code of the notebook for some time."""
        keep = wait = _KEEP_NAMES
        while wait > 0:
            await asyncio.sleep(wait)
            wait = keep - await self._unused(name)
        del self._notebooks[name]
        self.members("the end of a notebook").tell(protocol.FORGET, namespace=name)

    async def _unused(self, name: str) -> float:
        """Return the seconds since the last code of a notebook; 0 if a rank does not answer."""
        ranks = self.members("the end of a notebook")
        try:
            asked = (ranks.ask(rank, protocol.UNUSED, ANSWER_S, namespace=name) for rank in ranks.ranks)
            return min(await gather_or_cancel(asked), default=math.inf)
        except WorkbenchError:
            return 0.0


@dataclass
class _Notebook:
    """A notebook with a namespace on the ranks."""

    clients: set[str] = field(default_factory=set)
    deletion: asyncio.Task[None] | None = None
    """Deletes the namespace some time after the last client has disconnected and the last code of a view has ended."""


class _Cell:
    """A cell on ranks. The outcome of a rank is its status."""

    turn: Turn
    task: asyncio.Task[None]  # keeps the turn
    world: MPIWorld  # of the turn
    turn_at: float | None = None  # the time of the loop at which the cell got its turn
    start: tuple[int, int] | None = None  # of the world, once the cell has its turn
    disconnected = False  # whether the controller has ended in the cell

    def __init__(self, cells: Cells, request: protocol.Begin) -> None:
        self._cells, self._request, self.id = cells, request, request["cell"]
        self._members = RankRPC(cells.scheduler, {}, "a cell")
        loop = asyncio.get_running_loop()
        self.granted: asyncio.Future[protocol.Granted] = loop.create_future()
        self._stop: asyncio.Future[None] = loop.create_future()
        self._reason = "the cell was canceled"
        self._ends: dict[int, asyncio.Future[str]] = {}
        self._causes: dict[int, str] = {}  # of the losses of ranks

    @property
    def running(self) -> dict[int, str]:
        """Addresses of the ranks that are prepared, or are preparing, and have not ended the cell."""
        return {rank: self._members.ranks[rank] for rank, end in self._ends.items() if not end.done()}

    @property
    def lost(self) -> dict[int, str]:
        """Causes of the losses of ranks that died in the cell, by rank."""
        return {rank: self._causes[rank] for rank, end in self._ends.items() if end.done() and end.result() == _LOST}

    @property
    def step(self) -> str:
        """The step before the begin that takes the time, once the cell has its turn."""
        return "the objects of its first line on the ranks" if self._ends else "the start of the engines on the ranks"

    def occupation(self, waiting: _Cell) -> str:
        """Return the event for which a cell waits that has no turn before the end of this one."""
        request, seconds = self._request, asyncio.get_running_loop().time() - (self.turn_at or 0.0)
        owner = "this" if request["notebook"] == waiting._request["notebook"] else "another"
        cell = "another cell" if request["origin"] is None else f"cell [{request['origin']}]"
        return f"the end of {cell} of {owner} notebook, which has had the ranks for {seconds:.0f} s"

    def stop(self, reason: str) -> None:
        """End the cell in any state; only the first reason counts."""
        if not self._stop.done():
            self._reason = reason
            self.turn.cancel(lambda: f"the cell was canceled before its start, because {reason}")

    async def run(self) -> None:
        """Prepare all ranks, and wait until the notebook, which sends the code to the engines, has run the cell."""
        self.turn_at, self.world = asyncio.get_running_loop().time(), self._cells.current.world
        try:
            await self._prepare()
        except BaseException:
            if self._ends:  # ranks were asked
                self._end("the head has canceled the cell", self._members.ranks)
                self._renew_communicators()
            raise
        await run_to_end(self._run_all(), self._stop)

    async def _prepare(self) -> None:
        world, names = self.world, self._request["names"]
        ranks = _check_ranks(world, self._request["ranks"])
        everyone = self._cells.members("a cell")
        self._members.ranks = {rank: everyone.ranks[rank] for rank in ranks}
        transfers = {rank: {name: self._transfer(name, rank) for name in names} for rank in ranks}
        self.start = (world.index, world.starts)
        engines = self._cells.engines(world)
        for transfer in names.values():
            if blocks := transfer.get("blocks"):
                engines.sent_blocks |= {blocks[address]: address for address in self._members.ranks.values()}
                mark_written(self._cells.scheduler, blocks.values())
        reach = await engines.ready(everyone)
        self._ends = {rank: asyncio.get_running_loop().create_future() for rank in ranks}
        admitted = send_limit(sum(len(transfer.get("parcel", b"")) for transfer in names.values()))
        serial = self._cells.queue.communicator(world, ranks)

        async def reserve(rank: int) -> None:
            message: protocol.Prepare = {
                "cell": self.id,
                "allowed": self._request["allowed"],
                "generation": engines.generation,
                "serial": serial,
                "ranks": ranks,
                "names": transfers[rank],
            }
            async with admitted:
                await self._members.ask(rank, protocol.PREPARE, ANSWER_S, **message)

        await gather_or_cancel(map(reserve, ranks))
        self.granted.set_result({**reach, "ranks": ranks, "size": world.ranks})

    async def _run_all(self) -> None:
        """Wait for the end of the cell on each rank, and end the cell if the notebook asks for the end."""
        outcomes, engines = Outcomes(self._ends), self._cells.engines(self.world)
        try:
            completed = await outcomes.wait(stop=self._stop)
            if not completed:
                # A rank in C code cannot be ended. It refuses the next cell until the code returns.
                await outcomes.break_off(
                    lambda reason: self._end(reason, self.running), self._reason, protocol.CELL_END_S
                )
            if not completed or {end.result() for end in self._ends.values()} != {"ok"}:
                self._renew_communicators()
        finally:
            given = {key: address for key, address in engines.sent_blocks.items() if key in self._cells.scheduler.tasks}
            drop_copies(self._cells.scheduler, given.items(), f"cell-{self.id}")
            engines.sent_blocks = given

    def _renew_communicators(self) -> None:
        """Have the next cell get new communicators: the ranks have ended these, and messages may be left on them."""
        self._cells.engines(self.world).generation += 1
        self._cells.queue.retire_communicator(self.world)

    def ended(self, rank: int, status: str, summary: str) -> None:
        """Note that a rank has ended the cell, or is about to fail: the others must not wait for this rank in MPI."""
        if status != "failing" and rank in self.running:  # the traceback takes time
            self._ends[rank].set_result(status)
            if status == _LOST:
                self._causes[rank] = summary
        reasons = {
            protocol.CANCELLED: summary,
            "ended": summary,
            "exit": f"rank {rank} left the cell by exit()",
            _LOST: f"rank {rank} was lost{summary}",
        }
        reasons |= dict.fromkeys(("ok", "interrupted"), "")
        if reason := reasons.get(status, f"rank {rank} raised {summary}"):
            self._end(reason, self.running, interrupt=False)

    def _end(self, reason: str, ranks: dict[int, str], *, interrupt: bool = True) -> None:
        message: protocol.End = {"cell": self.id, "reason": reason, "interrupt": interrupt}
        RankRPC(self._cells.scheduler, ranks, "a cell").tell(protocol.END, **message)

    # -- objects -----------------------------------------------------------------------------------------------

    def _transfer(self, name: str, rank: int) -> protocol.Transfer:
        """Return how an object reaches a rank."""
        transfer = self._request["names"][name]
        if "blocks" in transfer:
            if error := self._wrong_place(name, rank):
                raise PlacementError(error, ranks=(rank,))
            address = self._members.ranks[rank]
            return {"key": transfer["blocks"][address], "holders": [address]}
        if "key" in transfer:
            task = self._cells.scheduler.tasks.get(transfer["key"])
            return {"key": transfer["key"], "holders": [holder.address for holder in (task and task.who_has) or ()]}
        return transfer

    def _wrong_place(self, name: str, rank: int) -> str | None:
        """Return the message for a collection that has no block on a rank; else None."""
        blocks = self._request["names"][name]["blocks"]
        if self._members.ranks[rank] in blocks:
            return None
        own = sorted(rank for rank, address in self._cells.current.members().items() if address in blocks)
        if not own:
            return f"the ranks with the blocks of {name!r} were lost. Place {name!r} again."
        return f"rank {rank} has no block of {name!r}. Run the cell on the ranks with a block: --ranks {_option(own)}."


def _check_ranks(world: MPIWorld, asked: Sequence[int] | None) -> list[int]:
    """Return the ranks that run a cell; raise if a rank does not exist or cannot run the cell."""
    if doing := transition(world):
        raise CollectiveFailed(f"the world is being {doing}. Run the cell again when the world is ready.")
    ranks = sorted(set(range(world.ranks) if asked is None else asked))
    if unknown := [rank for rank in ranks if not 0 <= rank < world.ranks]:
        allowed = f"ranks {ranges(range(world.ranks))}: the cluster has no rank {unknown[0]}"
        raise InvalidRequest(option="ranks", given=_option(ranks), allowed=allowed)
    if missing := missing_ranks(world, ranks):
        left = sorted(world.present)
        others = f"Run the cell on the other ranks, --ranks {_option(left)}, or s" if left else "S"
        raise RankLost(
            f"{'rank' if len(missing) == 1 else 'ranks'} {ranges(missing)} "
            f"{'was' if len(missing) == 1 else 'were'} lost.",
            ranks=missing,
            hint=(f"{others}tart the ranks again: ", Command("restart")),
        )
    return ranks


def _option(ranks: Iterable[int]) -> str:
    """Return ranks as ``--ranks`` takes them."""
    return ranges(ranks).replace(" ", "")
