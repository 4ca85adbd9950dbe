"""Starts, watches, restarts and moves the MPI world of a cluster, one change at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from workbench import config
from workbench.collective.operation import CallQueue
from workbench.deploy.job_spec import survives_a_lost_rank
from workbench.deploy.record import Record
from workbench.deploy.world import MPIWorld
from workbench.errors import InvalidRequest, StartError, StartTimeout, WorkbenchError
from workbench.head.job_world import JobWorld
from workbench.head.move import heir, moved
from workbench.head.scheduler import HeadScheduler
from workbench.head.world_process import WorldProcess
from workbench.host import debug_log, processes
from workbench.launch.launchers import launcher
from workbench.text import count, rank_and_process

T = TypeVar("T")
# Seconds between two checks of the client's connection.
_CHECK_INTERVAL = 0.5


class Connection(Protocol):
    """The connection of a client, as of Dask."""

    def closed(self) -> bool:
        """Return whether one of the two ends is closed."""


class Change:
    """One change, which `what` names in messages."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.waits = False
        """Whether the change only waits for a world, so that nothing is left half done when it is withdrawn."""
        self.withdrawn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The reason why the change is not wanted any more."""
        self.ended = asyncio.Event()

    def withdraw(self, reason: str) -> None:
        """Request the end of the change."""
        if not self.withdrawn.done():
            self.withdrawn.set_result(reason)


class Changes:
    """The change that is in progress, if any; `state` returns what it waits for."""

    def __init__(self, state: Callable[[], str]) -> None:
        self._state = state
        self.current: Change | None = None

    @contextlib.asynccontextmanager
    async def alone(self, what: str, client: Connection | None) -> AsyncIterator[Change]:
        """Make a change, unless another is in progress; the loss of its client withdraws the change.

        Raises
        ------
        InvalidRequest
            If another change is in progress. A request that waited could be carried out long after its client had
            given up, and a restart would then destroy data.
        """
        if self.current is not None:
            state = self._state()
            raise InvalidRequest(
                f"{what} is not possible while {self.current.what} is in progress{f' ({state})' if state else ''}.",
                hint="Wait for its end, or end it with Ctrl-C where it was requested. While new ranks are not ready, "
                "scale to another number withdraws them.",
            )
        self.current = change = Change(what)
        watch = asyncio.ensure_future(_withdraw_if_lost(change, client)) if client is not None else None
        try:
            yield change
        finally:
            self.current = None
            change.ended.set()
            if watch is not None:
                watch.cancel()

    async def replace(self, what: str) -> None:
        """Withdraw the change that is waiting for a world, if one is, and return when it has ended."""
        if self.current is not None and self.current.waits:
            self.current.withdraw(f"{what} was requested")
            await self.current.ended.wait()


async def _withdraw_if_lost(change: Change, client: Connection) -> None:
    while not client.closed():  # noqa: ASYNC110  (Dask has no event for it)
        await asyncio.sleep(_CHECK_INTERVAL)
    change.withdraw("its client has disconnected")


# Seconds after the deadline of a world's start, because the world's own error has more details. That error is raised
# when the processes or the job of the world have ended.
_EXTRA_TIMEOUT = 30.0
# Seconds before the next start after one start, two or more that have failed in a row: what prevents a start, as a
# scheduler that is being updated, needs time to pass.
_PAUSES = (5.0, 15.0, 30.0)
# Seconds for a launcher to end the world of a lost rank; then the head does.
_LAUNCHER_TIMEOUT = 10.0
# Log line for an event of a rank.
_RANK = "%s: rank %d of world %d, process %s on %s"


class ClusterWorld:
    """The world of a cluster, and during a move the next one, which replaces it.

    Parameters
    ----------
    record
        The cluster's record, of which only constant fields are used.
    first
        The first world, whose ``mpiexec`` already runs.
    scheduler
        The scheduler of the ranks.
    queues
        Returns the queues of calls and cells, which a move holds.
    report
        Called with the message of each event, for logs, clients and record; with a ``kind``, ``lost`` or ``moved``, if
        users must see the message.
    changed
        Called when ranks were added or removed.
    replaced
        Called when the next world has become the cluster's.
    run
        Runs a coroutine in the background, and returns the task. An error of the coroutine ends the cluster.
    is_ending
        Returns whether the cluster is ending, so that the end of a world is expected.
    """

    def __init__(
        self,
        record: Record,
        first: WorldProcess,
        scheduler: HeadScheduler,
        *,
        queues: Callable[[], Sequence[CallQueue]],
        report: Callable[..., None],
        changed: Callable[[], None],
        replaced: Callable[[], None],
        run: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        is_ending: Callable[[], bool],
    ) -> None:
        self._record, self._scheduler, self._queues = record, scheduler, queues
        self._report, self._changed, self._replaced = report, changed, replaced
        self._run, self._is_ending = run, is_ending
        self._first = first
        self.world: MPIWorld = first
        """The world, which a move replaces by another one."""
        self.next: MPIWorld | None = None
        """The world that a move starts."""
        self._former: MPIWorld | None = None  # that a move ends
        self._keeper: asyncio.Task[None] | None = None
        self._index = first.index
        self._changes = Changes(lambda: (self.next or self.world).waiting)

    def __iter__(self) -> Iterator[MPIWorld]:
        """Iterate over the world and, during a move, the next or the former one."""
        return iter([world for world in (self.world, self.next, self._former) if world is not None])

    def keep_first(self, timeout: float) -> None:
        """Keep the world running in the background; `timeout` seconds are left for its first start.

        The cluster ends if the first start fails, or if the world is lost, or does not start again, more often than
        ``workbench.world.restarts``.
        """
        self._keeper = self._run(self._keep(self._first, timeout, spawned=True))

    async def _keep(
        self, world: MPIWorld, timeout: float, *, spawned: bool = False, ready: asyncio.Future[None] | None = None
    ) -> None:
        restarts, pauses = config.whole("world.restarts"), iter(_PAUSES)
        while True:
            failure = await self._start(world, timeout, spawned=spawned)
            # `timeout` is shorter for a start that is already in progress.
            spawned, timeout, pause = False, self._record.ready_within, 0.0
            if failure:
                lost, pause = f"the world did not start again: {failure}", next(pauses, _PAUSES[-1])
            else:
                pauses = iter(_PAUSES)
                if ready is not None and not ready.done():
                    ready.set_result(None)
                if world is self.world:
                    self._report(f"the world is ready: {count(world.ranks, 'rank')}, {world.mpi}{_fallback(world)}")
                    if waiting := self._scheduler.pin_again(self.members(world)):
                        self._report(f"results of lost ranks are made again: {waiting}", kind="lost")
                lost = f"the world was lost: {await world.exited()}"
            if self._is_ending() or (world.stopping and not (world.restart_requested or world.given_up or failure)):
                return
            world.ready = False
            await self._forget_workers(world)
            if world is not self.world:
                raise StartError(f"{lost}.", hint=f"See {world.log}")
            if not world.restart_requested:
                if restarts <= 0:
                    raise StartError(f"{lost}, and no more restarts are left (the setting workbench.world.restarts).")
                restarts -= 1
                again = f"its {count(world.ranks, 'rank')} are started again{f' in {pause:g} s' if pause else ''}"
                self._report(f"{lost}; {again}, {count(restarts, 'more restart')} left", kind="lost")
                await asyncio.sleep(pause)
            else:
                self._scheduler.awaited.clear()
            world.restart_requested = False

    async def _start(self, world: MPIWorld, timeout: float, *, spawned: bool) -> str:
        """Start a world, and return when it is ready, or why it could not start again; raise if it never ran."""
        try:
            if spawned:
                self._first.send_address(self._scheduler.address)
            else:
                await world.start(timeout, self._scheduler.address)
            self._changed()
            await self._await_ready(world, timeout)
        except (WorkbenchError, OSError) as error:
            await world.stop(self._end_request(world))
            if world.starts <= 1:
                raise
            return (error.message if isinstance(error, WorkbenchError) else str(error)).rstrip(".")
        return ""

    async def _await_ready(self, world: MPIWorld, timeout: float) -> None:
        exited, complete = asyncio.ensure_future(world.exited()), asyncio.ensure_future(world.complete())
        try:
            await asyncio.wait({exited, complete}, timeout=max(0.0, timeout), return_when=asyncio.FIRST_COMPLETED)
            if complete.done():
                return
            registered = f"{len(world.present)} of {world.ranks} ranks had registered"
            network = ""
            if self._record.spread and self._record.resources.nodes != 1 and not world.present:
                network = (
                    ". If no cause is there, check the network: a firewall must leave the ports between nodes open."
                )
            if exited.done():
                raise StartError(
                    f"the world ended while starting ({exited.result()}); {registered}.",
                    hint=f"See {world.log}{network}",
                )
            missing = ", ".join(map(str, world.missing()[:16]))
            raise StartTimeout(
                f"the world was not ready after {self._record.ready_within:g} s; {registered}, missing: {missing}.",
                hint=f"See {world.log}, or increase the setting workbench.start-timeout{network or '.'}",
            )
        finally:
            exited.cancel()
            complete.cancel()

    def _get(self, index: int) -> MPIWorld | None:
        return next((world for world in self if world.index == index), None)

    # -- ranks -------------------------------------------------------------------------------------------------

    def joined(self, world: int, rank: int, facts: dict[str, Any]) -> None:
        """Record that a rank has registered, and its facts."""
        if (joined := self._get(world)) is not None:
            debug_log.write("process", _RANK, "registered", rank, world, facts.get("pid"), facts.get("host"))
            joined.joined(rank, facts)
            self._changed()

    def ends(self, facts: dict[str, Any]) -> bool:
        """Return whether the world of a rank, by the facts of the rank, is ending, and its ranks with it."""
        world = self._get(facts["world"])
        if world is None or world.stopping or self._is_ending():
            return True
        return (bool(world.lost) or self._scheduler.loses(world.index)) and not self._survives(world)

    def returns(self, facts: dict[str, Any]) -> bool:
        """Return whether a rank that leaves, by its facts, is started again without a request."""
        world = self.world
        if facts["world"] != world.index or world.restart_requested or self._is_ending():
            return False
        if world.stopping:
            return world.given_up
        return not (world.ready and self._survives(world) and world.present.keys() - {facts["rank"]})

    def _survives(self, world: MPIWorld) -> bool:
        survives = survives_a_lost_rank(self._record, world.mpi, world.ranks, own_job=world.job is not None)
        return survives and not world.killed

    def left(self, index: int, rank: int, cause: str = "") -> None:
        """Record that a rank has left, with the cause of a loss as the end of a sentence."""
        world = self._get(index)
        if world is None:
            return
        facts = world.left(rank)
        debug_log.write("process", _RANK, "gone", rank, index, facts.get("pid"), facts.get("host"))
        if world.ready and not world.stopping and not self._is_ending():
            lost = f"{rank_and_process({**facts, 'rank': rank, 'world': index})} was lost{cause}"
            remaining = len(world.present)
            effect = (
                f"{remaining} of {world.ranks} continue" if self._survives(world) and remaining else "its world ends"
            )
            self._report(f"{lost}; {effect}", kind="lost")
            if not self._survives(world) and len(world.lost) == 1:
                self._run(self._end_lost(world))
        self._changed()

    async def _end_lost(self, world: MPIWorld) -> None:
        """End a world that has lost a rank if its launcher does not, for example srun without --kill-on-bad-exit."""
        start = world.starts
        await asyncio.sleep(_LAUNCHER_TIMEOUT)
        if world.starts == start and world.ready and not world.stopping and not self._is_ending():
            self._report(
                f"the launcher of the world has not ended it within {_LAUNCHER_TIMEOUT:g} s after the loss "
                "of a rank, so the head ends it"
            )
            world.given_up = True
            await world.stop(self._end_request(world))

    async def _forget_workers(self, world: MPIWorld) -> None:
        """Remove the workers of a world from the scheduler, so that its next start can use their names."""
        for address in self.members(world).values():
            await self._scheduler.remove_worker(address, stimulus_id="world-lost", expected=True)

    def members(self, world: MPIWorld | None = None) -> dict[int, str]:
        """Return the addresses of the registered ranks of a world (None: the cluster's), by rank."""
        world = world or self.world
        workers = ((state.extra.get("workbench", {}), address) for address, state in self._scheduler.workers.items())
        ranks = {facts["rank"]: address for facts, address in workers if facts.get("world") == world.index}
        return dict(sorted(ranks.items()))

    # -- changes -----------------------------------------------------------------------------------------------

    async def move(self, n: int, client: Connection | None = None) -> None:
        """Replace the world by one of `n` ranks, which get the results of the former ranks.

        Parameters
        ----------
        n
            Number of ranks; the present number replaces lost ranks. The request withdraws an earlier one that waits for
            its ranks.
        client
            The connection whose end withdraws a new world that has not replaced the former one, and its job.

        Raises
        ------
        InvalidRequest
            If the head cannot have connections to `n` ranks, the host has no GPUs for them, or another change is in
            progress.
        StartError
            If the new world did not start, was lost, or was withdrawn; the former world continues.
        """
        what = f"scale({n})"
        # Two notebooks may request the same size: the second one waits for the first, and has nothing to do then.
        while (current := self._changes.current) is not None and current.what == what:
            await current.ended.wait()
        await self._changes.replace(what)
        if n == self.world.ranks and not self.world.lost:
            return
        async with self._changes.alone(what, client) as change:
            await self._move(n, change)

    async def _move(self, n: int, change: Change) -> None:
        former, world = self.world, self._next_world(n)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.next = world
        keeper = self._run(self._keep_next(world, ready, change))
        change.waits = True
        try:
            await _unless_withdrawn(ready, change)
            self._report(f"{count(n, 'new rank')} wait for the end of running calls, cells and tasks")
            async with contextlib.AsyncExitStack() as held:
                for queue in self._queues():
                    await _unless_withdrawn(held.enter_async_context(queue.paused()), change)
                ranks = self.members(world)
                lost = await self._send_results(former, world, change)
                former.stopping = True  # an operation that has waited does not begin there
                self.world, self.next, self._former, ended = world, None, former, self._keeper
                self._keeper = keeper
                self._scheduler.take_over(world.index, self.members(former), ranks)
                heirs = {rank: ranks.get(heir(rank, former.ranks, n)) for rank in range(former.ranks)}
                self._scheduler.pin_again({rank: address for rank, address in heirs.items() if address})
                self._replaced()
        except Exception as error:
            await self._end_world(world, keeper)
            self._report(f"scale({n}) has failed, and the ranks are as before: {error}")
            raise
        self._changed()
        await self._end_world(former, ended)
        self._report(f"the cluster has {count(n, 'rank')} now{lost}", kind="moved")

    async def _send_results(self, former: MPIWorld, world: MPIWorld, change: Change) -> str:
        """Move the results to the next world when running tasks have ended; return words on what is lost."""
        try:
            await _unless_withdrawn(self._scheduler.drain_workers(self.members(former).values()), change)
            if lost := world.missing():
                raise StartError(  # noqa: TRY301  (with the end of the other errors)
                    f"rank {lost[0]} of the new ranks was lost.", ranks=lost, hint=f"See {world.log}"
                )
            return await _unless_withdrawn(
                moved(self._scheduler, former.ranks, self.members(former), self.members(world)), change
            )
        except Exception:
            self._run(self._scheduler.resume_workers(self.members(former).values()))  # a stuck rank answers late
            raise

    def _next_world(self, ranks: int) -> MPIWorld:
        processes.check_open_files(ranks + self.world.ranks)
        batch, fits = launcher(self._record.scheduler).batch, ranks <= self._record.ranks
        if self._record.resources.gpus_per_rank and not (batch or fits):
            raise InvalidRequest(
                "more ranks than at the start are not possible with --gpus-per-rank on this host, whose GPUs the ranks "
                "share already.",
                option="gpus_per_rank",
                given=self._record.resources.gpus_per_rank,
                hint="Start another cluster with more ranks, if the host has GPUs for all its ranks.",
            )
        if self._is_ending():
            raise StartError(f"cluster {self._record.name!r} is ending, and starts no more ranks.")
        # An index is not used again, because the job of an abandoned world may still exist.
        self._index += 1
        if batch and not fits:  # the first job has no room
            return JobWorld(self._record, self._first.mpi, self._index, ranks, report=self._report)
        return WorldProcess(self._record, self._first.mpi, self._index, ranks)

    async def _keep_next(self, world: MPIWorld, ready: asyncio.Future[None], change: Change) -> None:
        try:
            await self._keep(world, self._record.ready_within, ready=ready)
        except Exception as error:
            if world is self.world:
                raise
            if ready.done():
                change.withdraw(str(error))
            else:
                ready.set_exception(error)

    async def _end_world(self, world: MPIWorld, keeper: asyncio.Task[None] | None) -> None:
        # The world may have been lost meanwhile, and must not start again.
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        await world.stop(self._end_request(world))
        await self._forget_workers(world)
        self.next = self._former = None
        self._changed()
        if isinstance(world, JobWorld):
            self._run(world.settle())

    async def restart(self, client: Connection | None = None) -> None:
        """Restart the world in the same job, or wait for its start; results on ranks are lost.

        Parameters
        ----------
        client
            The connection whose end ends the wait; the world starts all the same, because its ranks have ended.

        Raises
        ------
        InvalidRequest
            If another change is in progress.
        StartError
            If the world does not start again, or loses ranks before all ranks have started.
        """
        async with self._changes.alone("restart", client) as change:
            await self._restart(self.world, change)

    async def _restart(self, world: MPIWorld, change: Change) -> None:
        # A world that is being started, as after the loss of its ranks, gets new ranks without an end.
        starts = world.starts if world.ready else None
        if world.ready:
            world.restart_requested = True
            await world.stop(self._end_request(world))
        change.waits = True
        queued = config.seconds("queue-timeout") if world.job else 0.0  # the next job may have to wait
        deadline = time.monotonic() + queued + self._record.ready_within + _EXTRA_TIMEOUT
        while world.starts == starts or not world.ready:
            if self._is_ending():
                raise StartError(f"cluster {self._record.name!r} ended during the restart. See its logs.")
            if change.withdrawn.done():
                raise StartError(
                    "the world is not ready again, and the restart does not wait for it any more, because "
                    f"{change.withdrawn.result()}."
                )
            if time.monotonic() > deadline:
                raise StartTimeout(
                    "the world was not ready again at the deadline of the restart.", hint=f"See {world.log}"
                )
            await asyncio.sleep(0.05)
        if world.lost:
            ranks = ", ".join(map(str, sorted(world.lost)[:16]))
            raise StartError(
                f"the world has started again, and then lost ranks ({ranks}).",
                ranks=sorted(world.lost),
                hint=f"See {world.log}, and restart again.",
            )

    def _end_request(self, world: MPIWorld) -> Callable[[], Awaitable[None]]:
        async def send() -> None:
            addresses = list(self.members(world).values())
            # MPI_Finalize is collective, so it would wait for a dead rank.
            message = {"op": "workbench_end", "finalize": not world.lost}
            if addresses:
                await self._scheduler.broadcast(msg=message, workers=addresses, on_error="return")

        return send

    async def stop(self) -> None:
        """End all ranks, also those that a move starts or ends."""
        await asyncio.gather(*(world.stop(self._end_request(world)) for world in self))


def _fallback(world: MPIWorld) -> str:
    """Return a note for the user if the protocol mpi was requested and cannot be used."""
    levels = {facts["threads"] for facts in world.present.values()}
    if world.record.protocol != "mpi" or levels <= {"multiple"}:  # none: lost again
        return ""
    return (
        f"; this MPI supports only MPI_THREAD_{min(levels - {'multiple'}).upper()}, so blocks are sent over sockets, "
        "not over MPI"
    )


async def _unless_withdrawn(work: Awaitable[T], change: Change) -> T:
    """Return the result of `work`; raise StartError if the change is withdrawn before."""
    awaited = asyncio.ensure_future(work)
    either: set[asyncio.Future[Any]] = {awaited, change.withdrawn}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if awaited.done():
        return await awaited
    awaited.cancel()
    raise StartError(f"{change.what} was withdrawn, because {change.withdrawn.result().rstrip('.')}.")
