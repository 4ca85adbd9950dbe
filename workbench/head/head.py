"""The head of a cluster: what holds scheduler, worlds, record and lease together."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

from workbench import certificates, config, registry, scratch
from workbench.errors import InvalidRequest, StartError, StartTimeout
from workbench.head.scheduler import Attendance, HeadScheduler
from workbench.head.world import WorldProcess
from workbench.launch.mpiexec import survives_lost_rank
from workbench.registry import Record, World
from workbench.words import count

logger = logging.getLogger("workbench.head")

# Seconds for the scheduler to say goodbye to its clients; one that goes on asking could hold it up for ever.
_CLOSE = 2.0


class Head:
    """Runs one cluster to its end.

    Parameters
    ----------
    record
        The cluster's record, from now on written by the head alone.
    world
        World 0, whose ``mpiexec`` is running already: ranks start while the scheduler does.

    Notes
    -----
    Everything happens on one event loop in the main thread.
    """

    def __init__(self, record: Record, world: WorldProcess) -> None:
        self.record = record
        self.worlds: dict[int, WorldProcess] = {0: world}
        self.scheduler: HeadScheduler
        self._changed = asyncio.Event()
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        # Several clients may ask at once: one change of the worlds after the other.
        self._resizing = asyncio.Lock()

    async def run(self) -> int:
        """Serve until somebody ends the cluster; return the exit code of the process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self.end, f"{number.name} was received")
        await self._open_scheduler()
        for duty in (self._write_record(), self._watch_lease(), self._watch_idle(), self._watch_scheduler()):
            self._start(duty)
        self._start(self._keep(self.worlds[0], self.record.deadline - time.time(), spawned=True))
        try:
            reason = await self._end
        except StartError as error:
            return await self._close("failed", str(error))
        return await self._close("closing", reason)

    def end(self, reason: str) -> None:
        """End the cluster in order."""
        if not self._end.done():
            self._end.set_result(reason)

    # -- start -------------------------------------------------------------------------------------------------

    async def _open_scheduler(self) -> None:
        record = self.record
        self.scheduler = HeadScheduler(
            http_socket=scratch.sockets(record.id) / "head.sock",
            local_directory=scratch.spill(record.id),
            host=config.address(),
            security=certificates.security(record.folder),
            restart_worlds=self._rpc_restart,
        )
        self.scheduler.handlers |= {
            "workbench_status": self._rpc_status,
            "workbench_scale": self._rpc_scale,
            "workbench_restart": self._rpc_restart,
            "workbench_close": self._rpc_close,
        }
        self.scheduler.add_plugin(Attendance(self._joined, self._left))
        await self.scheduler
        self._update(address=self.scheduler.address, http=str(self.scheduler.http_socket))

    async def _keep(
        self, world: WorldProcess, timeout: float, *, spawned: bool = False, ready: asyncio.Future[None] | None = None
    ) -> None:
        """Take a world through its starts until it is stopped.

        Raises
        ------
        StartError
            If it did not start, or was lost more often than ``workbench.world.restarts``.
        """
        restarts = int(config.get("world.restarts"))
        # Of the first start's time some has passed before the head ran.
        allowed = self.record.deadline - self.record.created if spawned else timeout
        while True:
            if not spawned:
                world.spawn(timeout)
            spawned = False
            world.tell(self.scheduler.address)
            self._refresh()
            await self._await_ready(world, timeout, allowed)
            if ready is not None and not ready.done():
                ready.set_result(None)
            self._say(f"world {world.index} is ready: {count(world.ranks, 'rank')}, {world.mpi}")
            code = await world.exited()
            if self._end.done() or (world.stopping and not world.restart_asked):
                return
            world.ready = False
            await self._forget_workers(world)
            if not world.restart_asked:
                lost = f"world {world.index} was lost: mpiexec ended with {_exit_words(code)}"
                if restarts <= 0:
                    raise StartError(f"{lost}, for the last time that it is started again (workbench.world.restarts)")
                restarts -= 1
                self._say(
                    f"{lost}; starting its {count(world.ranks, 'rank')} again, {count(restarts, 'more restart')} left"
                )
            world.restart_asked = False
            timeout = allowed = config.seconds("start-timeout")

    async def _await_ready(self, world: WorldProcess, timeout: float, allowed: float) -> None:
        exited, complete = asyncio.ensure_future(world.exited()), asyncio.ensure_future(world.complete())
        try:
            await asyncio.wait({exited, complete}, timeout=max(0.0, timeout), return_when=asyncio.FIRST_COMPLETED)
            if complete.done():
                return
            came = f"{len(world.present)} of {world.ranks} ranks had come"
            if exited.done():
                raise StartError(
                    f"world {world.index} ended while starting ({_exit_words(exited.result())} of mpiexec); {came}. "
                    f"See {world.log}"
                )
            missing = ", ".join(map(str, world.missing()[:16]))
            raise StartTimeout(
                f"world {world.index} was not ready after {allowed:g} s; {came}, missing: {missing}. "
                f"See {world.log}; allow more time with --timeout."
            )
        finally:
            exited.cancel()
            complete.cancel()
            if not complete.done():
                await world.stop(self._asker(world))

    # -- who is there ------------------------------------------------------------------------------------------

    def _joined(self, world: int, rank: int, told: dict[str, Any]) -> None:
        if world in self.worlds:
            self.worlds[world].joined(rank, told)
            self._refresh()

    def _left(self, index: int, rank: int) -> None:
        world = self.worlds.get(index)
        if world is None:
            return
        told = world.left(rank)
        if world.ready and not world.stopping and not self._end.done():
            where = f"rank {rank} of world {index} (pid {told.get('pid')} on {told.get('host')}) is gone"
            go_on = f"{len(world.present)} of {world.ranks} go on" if survives_lost_rank(world.mpi) else ""
            self._say(f"{where}; {go_on or 'this MPI ends its world with it'}")
        self._refresh()

    async def _forget_workers(self, world: WorldProcess) -> None:
        """Take the workers of a world off the scheduler, so that those of its next start can have their names."""
        for address in self._addresses(world):
            await self.scheduler.remove_worker(address, stimulus_id="world-lost", expected=False)

    def _addresses(self, world: WorldProcess) -> list[str]:
        told = ((address, state.extra.get("workbench", {})) for address, state in self.scheduler.workers.items())
        return [address for address, facts in told if facts.get("world") == world.index]

    # -- what clients ask for ----------------------------------------------------------------------------------

    async def _rpc_status(self) -> dict[str, Any]:
        return dataclasses.asdict(self.record)

    async def _rpc_scale(self, n: int) -> None:
        async with self._resizing:
            await self.scale(n)

    async def _rpc_restart(self) -> None:
        async with self._resizing:
            await self.restart()

    async def _rpc_close(self, reason: str) -> None:
        self.end(reason)

    async def scale(self, n: int) -> None:
        """Have `n` ranks in total, by whole worlds.

        Raises
        ------
        InvalidRequest
            If no number of whole worlds has `n` ranks.
        StartError
            If a new world did not start; the others are as they were.
        """
        sizes = [world.ranks for _, world in sorted(self.worlds.items())]
        totals = list(itertools.accumulate(sizes))
        if n > totals[-1]:
            await self._add_world(n - totals[-1])
        elif n in totals:
            for index in sorted(self.worlds)[totals.index(n) + 1 :]:
                await self._remove_world(self.worlds[index])
        else:
            have, possible = " + ".join(map(str, sizes)), ", ".join(map(str, totals))
            raise InvalidRequest(
                f"scale({n}): ranks come and go by whole worlds, and this cluster's have {have} ranks. "
                f"Possible are {possible} or more; world 0 holds the head and goes with close()."
            )

    async def _add_world(self, ranks: int) -> None:
        world = WorldProcess(self.record, self.worlds[0].mpi, max(self.worlds) + 1, ranks)
        self.worlds[world.index] = world
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def keep() -> None:
            try:
                await self._keep(world, config.seconds("start-timeout"), ready=ready)
            except Exception as error:  # noqa: BLE001  (whatever it is, the other worlds go on)
                self._say(f"world {world.index} is given up: {error}")
                if not ready.done():
                    ready.set_exception(error)
            finally:
                self._drop(world)

        self._start(keep())
        await ready

    async def _remove_world(self, world: WorldProcess) -> None:
        moved = self.scheduler.retire_workers(workers=self._addresses(world), close_workers=False, remove=False)
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

    def _drop(self, world: WorldProcess) -> None:
        if self.worlds.get(world.index) is world:
            del self.worlds[world.index]
        self._refresh()

    async def restart(self) -> None:
        """End all worlds and start them again in the same job; results that lie on ranks are lost.

        Raises
        ------
        InvalidRequest
            If a world is just being started.
        StartError
            If a world does not start again.
        """
        worlds = list(self.worlds.values())
        if unready := [world.index for world in worlds if not world.ready]:
            raise InvalidRequest(f"world {unready[0]} is being started just now: restart when it is ready.")
        for world in worlds:
            world.restart_asked = True
        starts = {world.index: world.starts for world in worlds}
        await asyncio.gather(*(world.stop(self._asker(world)) for world in worlds))
        # Past the deadline of the worlds themselves, which tells more.
        async with asyncio.timeout(config.seconds("start-timeout") + _CLOSE):
            while any(w.index in self.worlds and (w.starts == starts[w.index] or not w.ready) for w in worlds):
                if self._end.done():
                    raise StartError(f"cluster {self.record.name!r} ended while it was restarted; see its logs")
                await asyncio.sleep(0.05)
        if lost := [w for w in worlds if w.index not in self.worlds]:
            raise StartError(f"world {lost[0].index} did not start again and is given up; see {lost[0].log}")

    def _asker(self, world: WorldProcess) -> Callable[[], Awaitable[None]]:
        async def ask() -> None:
            addresses = self._addresses(world)
            # MPI_Finalize is collective: with a dead rank it would wait for it.
            message = {"op": "workbench_end", "finalize": not world.lost}
            if addresses:
                await self.scheduler.broadcast(msg=message, workers=addresses, on_error="return")

        return ask

    # -- duties ------------------------------------------------------------------------------------------------

    def _start(self, duty: Any) -> None:
        task = asyncio.ensure_future(duty)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._end.done():
            return
        if error := task.exception():
            # Whatever a duty stumbles on, a head without it must not go on.
            logger.error("a duty of the head failed", exc_info=error)
            known = isinstance(error, StartError)
            self._end.set_exception(error if known else StartError(f"the head failed: {error!r}. See its log"))

    async def _watch_scheduler(self) -> None:
        # client.shutdown() closes the scheduler, and with it the cluster.
        await self.scheduler.finished()
        self.end("the scheduler was shut down by a client")

    async def _watch_lease(self) -> None:
        missed = 0
        while True:
            await asyncio.sleep(config.seconds("lease-interval") / (1 if not missed else 4))
            try:
                owned = await asyncio.to_thread(registry.owns_lease, self.record)
            except OSError:
                continue  # the file server does not answer: that says nothing
            missed = 0 if owned else missed + 1
            if missed == 2:  # a second look: network file systems replace files less atomically than they say
                self.end("its record was removed or belongs to another cluster")

    async def _watch_idle(self) -> None:
        timeout = self.record.idle_timeout
        since = time.monotonic()
        while True:
            await asyncio.sleep(min(5.0, timeout / 10))
            if self._busy() or not all(world.ready for world in self.worlds.values()):
                since = time.monotonic()
            elif time.monotonic() - since >= timeout:
                self.end(f"no client and no task for {timeout:.0f} s (idle-timeout)")

    def _busy(self) -> bool:
        scheduler = self.scheduler
        clients = set(scheduler.clients) - {"fire-and-forget"}
        tasks = (
            any(state.processing for state in scheduler.workers.values()) or scheduler.queued or scheduler.unrunnable
        )
        return bool(clients or tasks)

    async def _write_record(self) -> None:
        # Written at most five times a second, however fast ranks come.
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await asyncio.to_thread(registry.update, self.record)
            except OSError:
                self._changed.set()  # again: the disk may be full now; the lease watch tells whether it is gone
            await asyncio.sleep(0.2)

    def _refresh(self) -> None:
        """Bring the record's worlds and state up to date."""
        worlds = tuple(
            World(w.index, w.ranks, _state(w), len(w.present), w.starts) for _, w in sorted(self.worlds.items())
        )
        states = {world.state for world in worlds}
        order = ("restarting", "starting", "degraded", "ready")
        state = next(state for state in order if state in states or state == "ready")
        self._update(worlds=worlds, state=state)

    def _update(self, **changes: Any) -> None:
        self.record = self.record.replace(**changes)
        self._changed.set()

    def _say(self, message: str) -> None:
        logger.info(message)
        self.scheduler.log_event("workbench", {"cluster": self.record.name, "message": message})
        self._update(message=message)
        self._refresh()

    # -- end ---------------------------------------------------------------------------------------------------

    async def _close(self, state: str, reason: str) -> int:
        logger.info("ending the cluster: %s", reason)
        for task in self._tasks:
            task.cancel()
        self.record = self.record.replace(state=state, message=reason)
        with contextlib.suppress(OSError):
            registry.update(self.record)
        await asyncio.gather(*(world.stop(self._asker(world)) for world in self.worlds.values()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE):
                await self.scheduler.close(reason=reason)
        scratch.remove(self.record.id)
        with contextlib.suppress(OSError):
            if state == "failed":
                # The record stays for whoever waits for the start; the key does not.
                certificates.remove(self.record.folder)
            else:
                registry.remove(self.record)
        return 1 if state == "failed" else 0


def _state(world: WorldProcess) -> str:
    if not world.ready:
        return "starting" if world.starts <= 1 else "restarting"
    return "degraded" if world.lost else "ready"


def _exit_words(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}"
