"""The head of a cluster: what holds scheduler, worlds, record and lease together."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from workbench import config
from workbench.cells.head import Cells
from workbench.collective.broadcast_head import Broadcasts
from workbench.collective.head import SpmdCalls
from workbench.collective.queue import CallQueue
from workbench.config import __version__
from workbench.deploy import certificates, ended, jobs, lease, registry
from workbench.deploy.registry import Record, World
from workbench.errors import LaunchError, StartError, WorkbenchError
from workbench.files import node_dirs
from workbench.head import request_log, start_times
from workbench.head.dask_dashboard import DaskDashboard
from workbench.head.scheduler import HeadScheduler, RankMembershipPlugin
from workbench.head.walltime import Walltime, job_end
from workbench.head.world_process import WorldProcess
from workbench.head.worlds import Worlds
from workbench.hints import Option
from workbench.metrics.head import Metrics
from workbench.placement.head import fail_unrunnable

logger = logging.getLogger("workbench.head")

# Seconds for the scheduler to say goodbye to its clients; one that goes on asking could hold it up for ever.
_CLOSE = 2.0
# Seconds for clients to fetch the results of what has just ended, before the ranks that hold them end.
_FETCH = 5.0


class Head:
    """Runs one cluster to its end.

    Parameters
    ----------
    record
        The cluster's record, from now on written by the head alone.
    world
        World 0, whose ``mpiexec`` is running already: ranks start while the scheduler does.
    address
        That the scheduler binds.
    end
        Tells when the scheduler will end the job, in seconds since the epoch, or None while it cannot; may block.
        Default: the scheduler is asked, if it ends jobs at all.
    times
        What this process has done since its beginning and when, in seconds since the epoch.

    Notes
    -----
    Everything happens on one event loop in the main thread.
    """

    def __init__(
        self,
        record: Record,
        world: WorldProcess,
        address: str,
        end: Callable[[], float | None] | None = None,
        *,
        times: dict[str, float] | None = None,
    ) -> None:
        self.record = record
        self._times = times or {}
        self.scheduler = HeadScheduler(
            http_socket=node_dirs.sockets(record.id) / "head.sock",
            local_directory=node_dirs.spill(record.id),
            host=address,
            security=certificates.security(record.folder),
        )
        self._changed = asyncio.Event()
        self._saving = threading.Lock()
        self._end: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_since = time.monotonic()
        self.worlds = Worlds(
            record,
            world,
            self.scheduler,
            say=self._say,
            changed=self._refresh,
            run=self._start,
            is_ending=self._end.done,
        )
        self.collectives = CallQueue()
        self.metrics = Metrics(self._state, lambda: {world.index for world in self.worlds})
        store = self.metrics.store
        began = store.calls.began
        self.cells = Cells(self.scheduler, self.worlds, record, self._start, began)
        self._spmd = SpmdCalls(self.scheduler, self.worlds, self.collectives, began, store.got_on)
        self.walltime = Walltime(
            end or job_end(record),
            grace=config.seconds("walltime-grace"),
            learned=lambda ends: self._update(ends=ends),
            say=functools.partial(self._say, kind="walltime"),
            drain=self.drain,
        )

    async def run(self) -> int:
        """Serve until somebody ends the cluster; return the exit code of the process."""
        loop = asyncio.get_running_loop()
        cancelled = ", as when its job is cancelled or deleted" if jobs.is_batch(self.record) else ""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self.end, f"{number.name} was received{cancelled}")
        # Ahead of the end, where the scheduler can be asked for it: Slurm's --signal.
        loop.add_signal_handler(signal.SIGUSR1, self._announced)
        await self._open_scheduler()
        for duty in (
            self._write_record(),
            self._watch_lease(),
            self._watch_idle(),
            self._watch_orphans(),
            self._watch_scheduler(),
            self.metrics.run(),
            self.walltime.watch(),
        ):
            self._start(duty)
        self._start(self.worlds.keep_first(self.record.deadline - time.time()))
        try:
            how, reason = await self._end
        except StartError as error:
            ended.note(self.record, ended.FAILED, str(error))
            self.record = self.record.replace(failure=error.fields())
            return await self._close("failed", str(error))
        ended.note(self.record, how, reason)
        return await self._close("closing", reason)

    def end(self, reason: str, how: str = ended.ENDED) -> None:
        """End the cluster in order; `how` as of `workbench.deploy.ended`."""
        if not self._end.done():
            self._end.set_result((how, reason))

    def _announced(self) -> None:
        # Preemption comes at any time; the end of the walltime is counted down to anyway, with more patience.
        if self.walltime.expects_end(time.time()):
            logger.info("SIGUSR1: the end of the walltime is near, as is known")
        else:
            self.drain("the scheduler asked it to end (SIGUSR1)")

    def drain(self, reason: str) -> None:
        """Take no more work, and end the cluster in order when what runs has ended, or has had its time."""
        if self.scheduler.refusal is not None:
            return
        self.scheduler.reject_new_work(
            WorkbenchError(
                f"cluster {self.record.name!r} takes no more work, for {reason}.",
                hint=("Fetch your results now, and start another one; ", Option("walltime"), " gives it more time."),
            )
        )
        self._say(f"{reason}: no more work is taken, and the cluster ends when what runs now has ended", kind="drain")
        self._start(self._drain(reason))

    # -- start -------------------------------------------------------------------------------------------------

    async def _open_scheduler(self) -> None:
        self.scheduler.restart_worlds = self.worlds.restart
        self.scheduler.stream_handlers |= {**self._spmd.stream_handlers, **self.metrics.stream_handlers}
        self.scheduler.handlers |= {
            **self._spmd.handlers,
            **Broadcasts(self.scheduler, self.worlds, self.collectives).handlers,
            **self.cells.handlers,
            **self.metrics.handlers,
            "workbench_dask_pages": DaskDashboard(self.scheduler).tunnel,
            "workbench_status": self._rpc_status,
            "workbench_pulse": self._rpc_pulse,
            "workbench_scale": self.worlds.scale,
            "workbench_restart": self.worlds.restart,
            "workbench_close": self._rpc_close,
        }
        self.scheduler.handlers |= request_log.logged(self.scheduler.handlers)
        self.scheduler.add_plugin(RankMembershipPlugin(self._joined, self._left))
        self.scheduler.add_plugin(self.metrics)
        self.scheduler.add_plugin(self.collectives)
        self.scheduler.add_plugin(self.cells)
        await self.scheduler
        self._times["the scheduler listens"] = time.time()
        self._update(address=self.scheduler.address, http=str(self.scheduler.http_socket))

    # -- what clients ask for ----------------------------------------------------------------------------------

    async def _rpc_status(self) -> dict[str, Any]:
        if self.record.state == "ready" and self._changed.is_set():
            # Who is told so may look at the record next.
            await self._save_change()
        return dataclasses.asdict(self.record)

    async def _rpc_pulse(self) -> dict[str, float | None]:
        """Return `Store.pulse`, ``clients`` of Dask, and ``idle``: seconds without them and tasks, or None."""
        idle = None if self._busy() else time.monotonic() - self._idle_since
        return {**self.metrics.store.pulse(), "clients": len(self._clients()), "idle": idle}

    async def _rpc_close(self, reason: str) -> None:
        self.end(reason, ended.STOPPED)

    # -- duties ------------------------------------------------------------------------------------------------

    def _start(self, duty: Coroutine[Any, Any, None]) -> None:
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
            self._end.set_exception(error if known else StartError(f"the head failed: {error!r}.", hint="See its log."))

    async def _watch_scheduler(self) -> None:
        # client.shutdown() closes the scheduler, and with it the cluster.
        await self.scheduler.finished()
        self.end("the scheduler was shut down by a client", ended.STOPPED)

    async def _drain(self, reason: str) -> None:
        since = time.time()
        resting = asyncio.ensure_future(self._rest())
        try:
            while not self.walltime.countdown.is_final(time.time(), since):
                if (await asyncio.wait({resting}, timeout=1))[0]:
                    await resting
                    break
        finally:
            resting.cancel()
        self.end(reason)

    async def _rest(self) -> None:
        await self.scheduler.drain_workers()
        await asyncio.gather(self.collectives.rest(), self.cells.queue.rest())
        await asyncio.sleep(_FETCH)

    async def _watch_lease(self) -> None:
        await lease.wait_until_lost(self.record)
        self.end("its record was removed or belongs to another cluster", ended.STOPPED)

    async def _watch_orphans(self) -> None:
        while True:
            await asyncio.sleep(1)
            if self.scheduler.unrunnable:
                fail_unrunnable(self.scheduler)

    async def _watch_idle(self) -> None:
        timeout = self.record.idle_timeout
        while True:
            await asyncio.sleep(min(5.0, timeout / 10))
            if self._busy():
                self._idle_since = time.monotonic()
            elif time.monotonic() - self._idle_since >= timeout:
                self.end(f"no client and no task for {timeout:.0f} s (idle-timeout)")

    def _clients(self) -> set[str]:
        return set(self.scheduler.clients) - {"fire-and-forget"}

    def _busy(self) -> bool:
        scheduler = self.scheduler
        tasks = (
            any(state.processing for state in scheduler.workers.values()) or scheduler.queued or scheduler.unrunnable
        )
        return bool(self._clients() or tasks or not all(world.ready for world in self.worlds))

    async def _write_record(self) -> None:
        # Written at most five times a second, however fast ranks come.
        while True:
            await self._changed.wait()
            await self._save_change()
            await asyncio.sleep(0.2)

    async def _save_change(self) -> None:
        self._changed.clear()
        try:
            await asyncio.to_thread(self._save)
        except OSError:
            self._changed.set()  # again: the disk may be full now; the lease watch tells whether it is gone

    def _save(self) -> None:
        # One at a time, and always the newest: a thread that is late must not bring back what was before.
        with self._saving:
            registry.update(self.record)

    def _joined(self, world: int, rank: int, told: dict[str, Any]) -> None:
        self.worlds.joined(world, rank, told)
        self.metrics.store.joined(world, rank, told)
        first = self.worlds.get(0)
        if self._times and first is not None and first.ready:
            times = [its["times"] for its in first.present.values()]
            logger.info("the start:\n  %s", "\n  ".join(start_times.lines(self._times, times, time.time())))
            self._times = {}

    def _left(self, world: int, rank: int) -> None:
        self.worlds.left(world, rank)
        self.metrics.store.left(world, rank)

    def _state(self) -> dict[str, Any]:
        """Return what who looks at metrics is told of the cluster."""
        record = self.record
        return {
            "name": record.name,
            "state": record.state,
            "message": record.message,
            "ranks": record.total,
            "present": record.up,
            "ends": record.ends,
            "version": __version__,
        }

    def _refresh(self) -> None:
        """Bring the record's worlds and state up to date."""
        worlds = tuple(World(w.index, w.ranks, w.state, len(w.present), w.starts, w.job) for w in self.worlds)
        states = {world.state for world in worlds}
        order = ("restarting", "starting", "degraded", "ready")
        state = next(state for state in order if state in states or state == "ready")
        self._update(worlds=worlds, state=state)

    def _update(self, **changes: Any) -> None:
        self.record = self.record.replace(**changes)
        self._changed.set()

    def _say(self, message: str, *, kind: str = "") -> None:
        logger.info(message)
        self._notify(message, kind)
        self._update(message=message)
        self._refresh()

    def _notify(self, message: str, kind: str) -> None:
        # One that has a kind is meant for people at once, wherever they are.
        self.scheduler.log_event("workbench", {"cluster": self.record.name, "message": message, "kind": kind})

    # -- end ---------------------------------------------------------------------------------------------------

    async def _close(self, state: str, reason: str) -> int:
        logger.info("ending the cluster: %s", reason)
        self._notify(f"it ends: {reason}", "end")
        for task in self._tasks:
            task.cancel()
        self.record = self.record.replace(state=state, message=reason)
        with contextlib.suppress(OSError):
            self._save()
        await asyncio.gather(self.worlds.stop(), self.cells.close())
        try:
            async with asyncio.timeout(_CLOSE):
                await self.scheduler.close(reason=reason)
        except TimeoutError:
            pass
        except Exception:
            # Dask's own stumbles over connections to hosts that are gone: files and record must go all the same.
            logger.exception("the scheduler did not close in order")
        node_dirs.remove(self.record.id)
        if not await asyncio.to_thread(self._ends_other_jobs):
            return 1
        with contextlib.suppress(OSError):
            if state == "failed":
                # The record stays for whoever waits for the start; the key does not.
                certificates.remove(self.record.folder)
            else:
                registry.remove(self.record)
        return 1 if state == "failed" else 0

    def _ends_other_jobs(self) -> bool:
        """Cancel what jobs of later worlds there may be; False if the scheduler does not take it."""
        try:
            if jobs.is_batch(self.record):
                jobs.cancel(self.record, later=True)
        except LaunchError:
            # The record stays: whoever looks at it next ends them.
            logger.exception("jobs of this cluster may be left in their queue")
            return False
        return True
