"""Starts, watches, restarts, adds and removes the MPI worlds of a cluster, one change at a time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Protocol

from workbench import config
from workbench.deploy.job_spec import survives_a_lost_rank
from workbench.deploy.record import Record
from workbench.deploy.world import MPIWorld
from workbench.errors import InvalidRequest, StartError, StartTimeout, WorkbenchError
from workbench.head.job_world import JobWorld
from workbench.head.scheduler import HeadScheduler
from workbench.head.world_process import WorldProcess
from workbench.hints import Command
from workbench.host import debug_log, processes
from workbench.launch.launchers import launcher
from workbench.text import count, rank_and_process

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
                hint="Wait for its end, or end it with Ctrl-C where it was requested. While a new world is not ready, "
                "scale to fewer ranks withdraws that world.",
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


class Worlds:
    """All worlds of a cluster, world 0 first.

    Parameters
    ----------
    record
        The cluster's record, of which only constant fields are used.
    first
        World 0, whose ``mpiexec`` already runs.
    scheduler
        The scheduler of the ranks.
    report
        Called with the message of each event, for logs, clients and record; with a ``kind``, ``lost`` or ``given-up``,
        if users must see the message.
    changed
        Called when ranks or worlds were added or removed.
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
        report: Callable[..., None],
        changed: Callable[[], None],
        run: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        is_ending: Callable[[], bool],
    ) -> None:
        self._record, self._scheduler = record, scheduler
        self._report, self._changed, self._run, self._is_ending = report, changed, run, is_ending
        self._first = first
        self._worlds: dict[int, MPIWorld] = {first.index: first}
        # The tasks that keep later worlds running, by index.
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._indices = itertools.count(first.index + 1)
        self._changes = Changes(lambda: next((world.waiting for world in self if world.waiting), ""))

    def __iter__(self) -> Iterator[MPIWorld]:
        """Iterate over the worlds in the order of their indices."""
        return iter([world for _, world in sorted(self._worlds.items())])

    def get(self, index: int) -> MPIWorld | None:
        """Return the world with an index, or None."""
        return self._worlds.get(index)

    async def keep_first(self, timeout: float) -> None:
        """Keep world 0 running until it is stopped; `timeout` seconds are left for its first start.

        Raises
        ------
        StartError
            If its first start fails, or if it is lost, or does not start again, more often than
            ``workbench.world.restarts``.
        """
        await self._keep(self._first, timeout, spawned=True)

    async def _keep(
        self, world: MPIWorld, timeout: float, *, spawned: bool = False, ready: asyncio.Future[None] | None = None
    ) -> None:
        restarts, pauses = config.whole("world.restarts"), iter(_PAUSES)
        while True:
            failure = await self._start(world, timeout, spawned=spawned)
            # `timeout` is shorter for a start that is already in progress.
            spawned, timeout, pause = False, self._record.ready_within, 0.0
            if failure:
                lost, pause = f"world {world.index} did not start again: {failure}", next(pauses, _PAUSES[-1])
            else:
                pauses = iter(_PAUSES)
                if ready is not None and not ready.done():
                    ready.set_result(None)
                self._report(
                    f"world {world.index} is ready: {count(world.ranks, 'rank')}, {world.mpi}{_fallback(world)}"
                )
                lost = f"world {world.index} was lost: {await world.exited()}"
            if self._is_ending() or (world.stopping and not (world.restart_requested or world.given_up or failure)):
                return
            world.ready = False
            await self._forget_workers(world)
            if not world.restart_requested:
                if restarts <= 0:
                    raise StartError(f"{lost}, and no more restarts are left (the setting workbench.world.restarts).")
                restarts -= 1
                again = f"its {count(world.ranks, 'rank')} are started again{f' in {pause:g} s' if pause else ''}"
                self._report(f"{lost}; {again}, {count(restarts, 'more restart')} left", kind="lost")
                await asyncio.sleep(pause)
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
                    f"world {world.index} ended while starting ({exited.result()}); {registered}.",
                    hint=f"See {world.log}{network}",
                )
            missing = ", ".join(map(str, world.missing()[:16]))
            raise StartTimeout(
                f"world {world.index} was not ready after {self._record.ready_within:g} s; {registered}, missing: "
                f"{missing}.",
                hint=f"See {world.log}, or increase the setting workbench.start-timeout{network or '.'}",
            )
        finally:
            exited.cancel()
            complete.cancel()

    # -- ranks -------------------------------------------------------------------------------------------------

    def joined(self, world: int, rank: int, facts: dict[str, Any]) -> None:
        """Record that a rank has registered, and its facts."""
        if world in self._worlds:
            debug_log.write("process", _RANK, "registered", rank, world, facts.get("pid"), facts.get("host"))
            self._worlds[world].joined(rank, facts)
            self._changed()

    def ends(self, facts: dict[str, Any]) -> bool:
        """Return whether the world of a rank, by the facts of the rank, is ending, and its ranks with it."""
        world = self._worlds.get(facts["world"])
        if world is None or world.stopping or self._is_ending():
            return True
        return (bool(world.lost) or self._scheduler.loses(world.index)) and not self._survives(world)

    def _survives(self, world: MPIWorld) -> bool:
        return survives_a_lost_rank(self._record, world.mpi, world.ranks, own_job=world.job is not None)

    def left(self, index: int, rank: int, cause: str = "") -> None:
        """Record that a rank has left, with the cause of a loss as the end of a sentence."""
        world = self._worlds.get(index)
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
                f"the launcher of world {world.index} has not ended it within {_LAUNCHER_TIMEOUT:g} s after the loss "
                "of a rank, so the head ends it"
            )
            world.given_up = True
            await world.stop(self._end_request(world))

    async def _forget_workers(self, world: MPIWorld) -> None:
        """Remove the workers of a world from the scheduler, so that its next start can use their names."""
        for address in self.addresses(world):
            await self._scheduler.remove_worker(address, stimulus_id="world-lost", expected=True)

    def addresses(self, world: MPIWorld) -> list[str]:
        """Return the addresses of the workers of a world, in rank order."""
        return list(self.members(world).values())

    def members(self, world: MPIWorld) -> dict[int, str]:
        """Return the address of each registered rank of a world, in rank order."""
        workers = ((state.extra.get("workbench", {}), address) for address, state in self._scheduler.workers.items())
        ranks = {facts["rank"]: address for facts, address in workers if facts.get("world") == world.index}
        return dict(sorted(ranks.items()))

    async def scale(self, n: int, client: Connection | None = None) -> None:
        """Change the number of ranks to `n`, by adding or removing whole worlds.

        Parameters
        ----------
        n
            Ranks of all worlds together. Fewer ranks withdraw a change that waits for a world which they omit.
        client
            The connection whose end withdraws a new world that is not ready, and its job.

        Raises
        ------
        InvalidRequest
            If no number of whole worlds has `n` ranks, the head cannot have connections to `n` ranks, or another change
            is in progress.
        StartError
            If a new world did not start, or was withdrawn. The others are not changed.
        """
        what = f"scale({n})"
        # Two notebooks may request the same size: the second one waits for the first, and has nothing to do then.
        while (current := self._changes.current) is not None and current.what == what:
            await current.ended.wait()
        totals = list(itertools.accumulate(world.ranks for world in self))
        if n in totals[:-1] and all(world.ready for world in list(self)[: totals.index(n) + 1]):
            await self._changes.replace(what)
        async with self._changes.alone(what, client) as change:
            await self._scale(n, change)

    async def _scale(self, n: int, change: Change) -> None:
        sizes = [world.ranks for world in self]
        totals = list(itertools.accumulate(sizes))
        if n > totals[-1]:
            processes.check_open_files(n)
            await self._add_world(n - totals[-1], change)
        elif n in totals:
            for world in list(self)[totals.index(n) + 1 :]:
                await self._remove_world(world)
        else:
            worlds, valid = " + ".join(map(str, sizes)), ", ".join(map(str, totals))
            raise InvalidRequest(
                f"scale({n}) is not possible: only whole worlds are added or removed, and this cluster has worlds of "
                f"{worlds} ranks.",
                option="ranks",
                given=n,
                allowed=f"{valid} or more",
                hint=(f"Valid numbers: {valid} or more. To end world 0 too: ", Command("stop"), "."),
            )

    async def _add_world(self, ranks: int, change: Change) -> None:
        if self._record.resources.gpus_per_rank and not launcher(self._record.scheduler).batch:
            raise InvalidRequest(
                "scale is not possible with --gpus-per-rank on this host: the ranks of world 0 use the GPUs.",
                option="gpus_per_rank",
                given=self._record.resources.gpus_per_rank,
                hint="Start another cluster with more ranks, if the host has GPUs for all its ranks.",
            )
        if self._is_ending():
            raise StartError(f"cluster {self._record.name!r} is ending, and starts no more worlds.")
        # An index is not used again, because the job of an abandoned world may still exist.
        index, mpi = next(self._indices), self._first.mpi
        world: MPIWorld = WorldProcess(self._record, mpi, index, ranks, sum(world.ranks for world in self))
        if launcher(self._record.scheduler).batch:
            # World 0 uses the nodes of the first job, so more ranks need another job.
            world = JobWorld(self._record, mpi, index, ranks, report=self._report)
        self._worlds[world.index] = world
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def keep() -> None:
            try:
                await self._keep(world, self._record.ready_within, ready=ready)
            except Exception as error:  # noqa: BLE001  (after any error the other worlds continue)
                self._report(f"world {world.index} was abandoned: {error}", kind="given-up")
                if not ready.done():
                    ready.set_exception(error)
            if not self._is_ending():  # otherwise `stop` ends all worlds
                self._drop(world)

        self._keepers[world.index] = self._run(keep())
        change.waits = True
        awaited: set[asyncio.Future[Any]] = {ready, change.withdrawn}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            return ready.result()
        await self._end_world(world)
        withdrawn = f"world {world.index} was withdrawn before it was ready, because {change.withdrawn.result()}"
        self._report(withdrawn)
        raise StartError(f"{withdrawn}.")

    async def _remove_world(self, world: MPIWorld) -> None:
        moved = self._scheduler.retire_workers(workers=self.addresses(world), close_workers=False, remove=False)
        results = "and its results were moved to the other worlds"
        try:
            async with asyncio.timeout(config.seconds("start-timeout")):
                await moved
        except TimeoutError:  # a rank that hangs does not send its results
            results = "but its results were not moved in time: needed results are computed again"
        await self._end_world(world)
        self._report(f"world {world.index} was removed, {results}")

    async def _end_world(self, world: MPIWorld) -> None:
        # The world may have been lost meanwhile, and must not start again.
        if keeper := self._keepers.pop(world.index, None):
            keeper.cancel()
            await asyncio.wait([keeper])
        await world.stop(self._end_request(world))
        await self._forget_workers(world)
        self._drop(world)

    def _drop(self, world: MPIWorld) -> None:
        if self._worlds.get(world.index) is world:
            del self._worlds[world.index]
        self._keepers.pop(world.index, None)
        self._changed()
        if isinstance(world, JobWorld):
            self._run(world.settle())

    async def restart(self, client: Connection | None = None) -> None:
        """Restart all worlds in the same job, and wait for those that are being started; results on ranks are lost.

        Parameters
        ----------
        client
            The connection whose end ends the wait; the worlds start all the same, because their ranks have ended.

        Raises
        ------
        InvalidRequest
            If another change is in progress.
        StartError
            If a world does not start again, or loses ranks before all worlds have started.
        """
        async with self._changes.alone("restart", client) as change:
            await self._restart(change)

    async def _restart(self, change: Change) -> None:
        worlds = list(self)
        # A world that is being started, as after the loss of its ranks, gets new ranks without an end.
        ready = [world for world in worlds if world.ready]
        for world in ready:
            world.restart_requested = True
        starts = {world.index: world.starts for world in ready}
        await asyncio.gather(*(world.stop(self._end_request(world)) for world in ready))
        change.waits = True
        # Later worlds may wait for a job.
        queued = config.seconds("queue-timeout") if any(world.job for world in worlds) else 0.0
        deadline = time.monotonic() + queued + self._record.ready_within + _EXTRA_TIMEOUT
        while waiting := [
            w for w in worlds if w.index in self._worlds and (w.starts == starts.get(w.index) or not w.ready)
        ]:
            if self._is_ending():
                raise StartError(f"cluster {self._record.name!r} ended during the restart. See its logs.")
            if change.withdrawn.done():
                raise StartError(
                    f"world {waiting[0].index} is not ready again, and the restart does not wait for it any more, "
                    f"because {change.withdrawn.result()}."
                )
            if time.monotonic() > deadline:
                raise StartTimeout(
                    f"world {waiting[0].index} was not ready again at the deadline of the restart.",
                    hint=f"See {waiting[0].log}",
                )
            await asyncio.sleep(0.05)
        if lost := [w for w in worlds if w.index not in self._worlds]:
            raise StartError(f"world {lost[0].index} did not start again, and was abandoned. See {lost[0].log}.")
        if degraded := [w for w in worlds if w.lost]:
            ranks = ", ".join(map(str, sorted(degraded[0].lost)[:16]))
            raise StartError(
                f"world {degraded[0].index} has started again, and then lost ranks ({ranks}).",
                ranks=sorted(degraded[0].lost),
                hint=f"See {degraded[0].log}, and restart again.",
            )

    def _end_request(self, world: MPIWorld) -> Callable[[], Awaitable[None]]:
        async def send() -> None:
            addresses = self.addresses(world)
            # MPI_Finalize is collective, so it would wait for a dead rank.
            message = {"op": "workbench_end", "finalize": not world.lost}
            if addresses:
                await self._scheduler.broadcast(msg=message, workers=addresses, on_error="return")

        return send

    async def stop(self) -> None:
        """End all worlds."""
        await asyncio.gather(*(world.stop(self._end_request(world)) for world in self))


def _fallback(world: MPIWorld) -> str:
    """Return a note for the user if the protocol mpi was requested and cannot be used."""
    levels = {facts["threads"] for facts in world.present.values()}
    if world.record.protocol != "mpi" or levels == {"multiple"}:
        return ""
    return (
        f"; this MPI supports only MPI_THREAD_{min(levels - {'multiple'}).upper()}, so blocks are sent over sockets, "
        "not over MPI"
    )
