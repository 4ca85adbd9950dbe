"""The MPI worlds of a cluster: started, watched, started again, added and removed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from workbench import config
from workbench.deploy.job_spec import goes_on_without_a_rank
from workbench.deploy.registry import Record
from workbench.deploy.world import MPIWorld
from workbench.errors import InvalidRequest, StartError, StartTimeout
from workbench.head.job_world import JobWorld
from workbench.head.scheduler import HeadScheduler
from workbench.head.world_process import WorldProcess
from workbench.hints import Option
from workbench.launch.launchers import launcher
from workbench.log import debug_log
from workbench.processes import open_files
from workbench.text import count

# Seconds past the deadline of a world's start, which tells more itself.
_GRACE = 2.0
# What becomes of a rank.
_RANK = "%s: rank %d of world %d, process %s on %s"


class Worlds:
    """All worlds of a cluster, world 0 first.

    Parameters
    ----------
    record
        The cluster's record; of it only what never changes is used.
    first
        World 0, whose ``mpiexec`` is running already.
    scheduler
        The scheduler that the ranks register with.
    say
        Takes an event in words, for logs, clients and record; with a ``kind`` one that users have to see: ``lost`` or
        ``given-up``.
    changed
        Called whenever ranks or worlds have come or gone.
    run
        Runs a coroutine beside the others; what it raises ends the cluster.
    is_ending
        Tells whether the cluster ends, so that a lost world is none.
    """

    def __init__(
        self,
        record: Record,
        first: WorldProcess,
        scheduler: HeadScheduler,
        *,
        say: Callable[..., None],
        changed: Callable[[], None],
        run: Callable[[Coroutine[Any, Any, None]], None],
        is_ending: Callable[[], bool],
    ) -> None:
        self._record, self._scheduler = record, scheduler
        self._say, self._changed, self._run, self._is_ending = say, changed, run, is_ending
        self._first = first
        self._worlds: dict[int, MPIWorld] = {first.index: first}
        self._indices = itertools.count(first.index + 1)
        # Several clients may ask at once: one change of the worlds after the other.
        self._resizing = asyncio.Lock()

    def __iter__(self) -> Iterator[MPIWorld]:
        """Iterate over the worlds in their order."""
        return iter([world for _, world in sorted(self._worlds.items())])

    def get(self, index: int) -> MPIWorld | None:
        """Return the world of an index, None if there is none."""
        return self._worlds.get(index)

    async def keep_first(self, timeout: float) -> None:
        """Take world 0 through its starts until it is stopped.

        Parameters
        ----------
        timeout
            Seconds that are left for its first start.

        Raises
        ------
        StartError
            If it does not start, or is lost more often than ``workbench.world.restarts``.
        """
        await self._keep(self._first, timeout, spawned=True)

    async def _keep(
        self, world: MPIWorld, timeout: float, *, spawned: bool = False, ready: asyncio.Future[None] | None = None
    ) -> None:
        # Ends when the world is stopped; StartError if it did not start, or was lost too often.
        restarts = int(config.get("world.restarts"))
        # Of the first start's time some has passed already.
        allowed = self._record.ready_within
        while True:
            if spawned:
                self._first.tell(self._scheduler.address)
            else:
                await world.start(timeout, self._scheduler.address)
            spawned = False
            self._changed()
            await self._await_ready(world, timeout, allowed)
            if ready is not None and not ready.done():
                ready.set_result(None)
            self._say(f"world {world.index} is ready: {count(world.ranks, 'rank')}, {world.mpi}{_fallback(world)}")
            end = await world.exited()
            if self._is_ending() or (world.stopping and not world.restart_asked):
                return
            world.ready = False
            await self._forget_workers(world)
            if not world.restart_asked:
                lost = f"world {world.index} was lost: {end}"
                if restarts <= 0:
                    raise StartError(f"{lost}, for the last time that it is started again (workbench.world.restarts)")
                restarts -= 1
                again = f"starting its {count(world.ranks, 'rank')} again, {count(restarts, 'more restart')} left"
                self._say(f"{lost}; {again}", kind="lost")
            world.restart_asked = False
            timeout = allowed

    async def _await_ready(self, world: MPIWorld, timeout: float, allowed: float) -> None:
        exited, complete = asyncio.ensure_future(world.exited()), asyncio.ensure_future(world.complete())
        try:
            await asyncio.wait({exited, complete}, timeout=max(0.0, timeout), return_when=asyncio.FIRST_COMPLETED)
            if complete.done():
                return
            came = f"{len(world.present)} of {world.ranks} ranks had come"
            if exited.done():
                raise StartError(
                    f"world {world.index} ended while starting ({exited.result()}); {came}.",
                    hint=f"See {world.log}",
                )
            missing = ", ".join(map(str, world.missing()[:16]))
            raise StartTimeout(
                f"world {world.index} was not ready after {allowed:g} s; {came}, missing: {missing}.",
                hint=(f"See {world.log}; allow more time with ", Option("timeout"), "."),
            )
        finally:
            exited.cancel()
            complete.cancel()
            if not complete.done():
                await world.stop(self._asker(world))

    # -- who is there ------------------------------------------------------------------------------------------

    def joined(self, world: int, rank: int, told: dict[str, Any]) -> None:
        """Note that a rank has come, and what it told of itself."""
        if world in self._worlds:
            debug_log.write("process", _RANK, "registered", rank, world, told.get("pid"), told.get("host"))
            self._worlds[world].joined(rank, told)
            self._changed()

    def left(self, index: int, rank: int) -> None:
        """Note that a rank is gone."""
        world = self._worlds.get(index)
        if world is None:
            return
        told = world.left(rank)
        debug_log.write("process", _RANK, "gone", rank, index, told.get("pid"), told.get("host"))
        if world.ready and not world.stopping and not self._is_ending():
            where = f"rank {rank} of world {index} (pid {told.get('pid')} on {told.get('host')}) is gone"
            goes_on = goes_on_without_a_rank(self._record, world.mpi, world.ranks, own_job=world.job is not None)
            left = len(world.present)
            after = f"{left} of {world.ranks} go on" if goes_on and left else "its world ends with it"
            self._say(f"{where}; {after}", kind="lost")
        self._changed()

    async def _forget_workers(self, world: MPIWorld) -> None:
        """Take the workers of a world off the scheduler, so that those of its next start can have their names."""
        for address in self.addresses(world):
            await self._scheduler.remove_worker(address, stimulus_id="world-lost", expected=False)

    def addresses(self, world: MPIWorld) -> list[str]:
        """Return the addresses of the workers of a world, in rank order."""
        return list(self.members(world).values())

    def members(self, world: MPIWorld) -> dict[int, str]:
        """Return the address of each rank of a world that is there, in rank order."""
        told = ((state.extra.get("workbench", {}), address) for address, state in self._scheduler.workers.items())
        ranks = {facts["rank"]: address for facts, address in told if facts.get("world") == world.index}
        return dict(sorted(ranks.items()))

    async def scale(self, n: int) -> None:
        """Have `n` ranks in total, by whole worlds.

        Raises
        ------
        InvalidRequest
            If no number of whole worlds has `n` ranks, or the head cannot have connections to so many.
        StartError
            If a new world did not start; the others are as they were.
        """
        async with self._resizing:
            await self._scale(n)

    async def _scale(self, n: int) -> None:
        sizes = [world.ranks for world in self]
        totals = list(itertools.accumulate(sizes))
        if n > totals[-1]:
            open_files.check_ranks(n)
            await self._add_world(n - totals[-1])
        elif n in totals:
            for index in sorted(self._worlds)[totals.index(n) + 1 :]:
                await self._remove_world(self._worlds[index])
        else:
            have, possible = " + ".join(map(str, sizes)), ", ".join(map(str, totals))
            raise InvalidRequest(
                f"scale({n}): ranks come and go by whole worlds, and this cluster's have {have} ranks.",
                option="ranks",
                given=n,
                allowed=f"{possible} or more",
                hint=f"Possible are {possible} or more; world 0 holds the head and goes with close().",
            )

    async def _add_world(self, ranks: int) -> None:
        # Never used again: the job of a world that was given up may be there yet.
        index, found = next(self._indices), self._first.mpi
        world: MPIWorld = WorldProcess(self._record, found, index, ranks)
        if launcher(self._record.scheduler).batch:
            # World 0 has the nodes of the first job: more ranks are another job's.
            world = JobWorld(self._record, found, index, ranks, say=self._say)
        self._worlds[world.index] = world
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def keep() -> None:
            try:
                await self._keep(world, self._record.ready_within, ready=ready)
            except Exception as error:  # noqa: BLE001  (whatever it is, the other worlds go on)
                self._say(f"world {world.index} is given up: {error}", kind="given-up")
                if not ready.done():
                    ready.set_exception(error)
            finally:
                if not self._is_ending():  # else `stop` ends it with the others
                    self._drop(world)

        self._run(keep())
        await ready

    async def _remove_world(self, world: MPIWorld) -> None:
        moved = self._scheduler.retire_workers(workers=self.addresses(world), close_workers=False, remove=False)
        results = "its results moved to the others"
        try:
            async with asyncio.timeout(config.seconds("start-timeout")):
                await moved
        except TimeoutError:  # a rank that is stuck hands over nothing
            results = "but did not hand over its results in time: what is needed of them is computed again"
        await world.stop(self._asker(world))
        await self._forget_workers(world)
        self._drop(world)
        self._say(f"world {world.index} was removed, {results}")

    def _drop(self, world: MPIWorld) -> None:
        if self._worlds.get(world.index) is world:
            del self._worlds[world.index]
        self._changed()

    async def restart(self) -> None:
        """End all worlds and start them again in the same job; results that lie on ranks are lost.

        Raises
        ------
        InvalidRequest
            If a world is just being started.
        StartError
            If a world does not start again.
        """
        async with self._resizing:
            await self._restart()

    async def _restart(self) -> None:
        worlds = list(self)
        if unready := [world.index for world in worlds if not world.ready]:
            raise InvalidRequest(f"world {unready[0]} is being started just now: restart when it is ready.")
        for world in worlds:
            world.restart_asked = True
        starts = {world.index: world.starts for world in worlds}
        await asyncio.gather(*(world.stop(self._asker(world)) for world in worlds))
        # Past the deadline of the worlds themselves, which tells more; later worlds may wait for a new job.
        queued = config.seconds("queue-timeout") if any(world.job for world in worlds) else 0.0
        async with asyncio.timeout(queued + self._record.ready_within + _GRACE):
            while any(w.index in self._worlds and (w.starts == starts[w.index] or not w.ready) for w in worlds):
                if self._is_ending():
                    raise StartError(f"cluster {self._record.name!r} ended while it was restarted; see its logs")
                await asyncio.sleep(0.05)
        if lost := [w for w in worlds if w.index not in self._worlds]:
            raise StartError(f"world {lost[0].index} did not start again and is given up; see {lost[0].log}")

    def _asker(self, world: MPIWorld) -> Callable[[], Awaitable[None]]:
        async def ask() -> None:
            addresses = self.addresses(world)
            # MPI_Finalize is collective: with a dead rank it would wait for it.
            message = {"op": "workbench_end", "finalize": not world.lost}
            if addresses:
                await self._scheduler.broadcast(msg=message, workers=addresses, on_error="return")

        return ask

    async def stop(self) -> None:
        """End all worlds."""
        await asyncio.gather(*(world.stop(self._asker(world)) for world in self))


def _fallback(world: MPIWorld) -> str:
    """Return what a user should know who asked for protocol mpi and does not get it."""
    levels = {told["threads"] for told in world.present.values()}
    if world.record.protocol != "mpi" or levels == {"multiple"}:
        return ""
    return (
        f"; it gives MPI_THREAD_{min(levels - {'multiple'}).upper()} only, so blocks go through sockets and not by MPI"
    )
