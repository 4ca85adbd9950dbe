"""The head of a cluster, which runs the scheduler and the world, and keeps the record and the lease."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.cells.head import Cells
from workbench.checkpoint.head import KEEPER, Checkpoints
from workbench.collective.head import SpmdCalls, Uploads
from workbench.collective.operation import CallQueue
from workbench.comm import certificates
from workbench.config import __version__
from workbench.deploy import ended
from workbench.deploy.job import ClusterJob
from workbench.deploy.record import Record, World
from workbench.deploy.world import MPIWorld
from workbench.errors import LaunchError, StartError, WorkbenchError
from workbench.gpu import devices
from workbench.head.cluster_world import ClusterWorld
from workbench.head.pauses import Pauses
from workbench.head.scheduler import HeadScheduler, RankMembershipPlugin, logged
from workbench.head.walltime import Walltime, job_end
from workbench.head.world_process import WorldProcess, step_times
from workbench.hints import Hint, Option
from workbench.host import node_dirs, output
from workbench.metrics.head import Metrics
from workbench.placement.head import fail_unrunnable

if TYPE_CHECKING:
    from distributed.comm.core import Comm

logger = logging.getLogger("workbench.head")

# Seconds for the scheduler to disconnect its clients. A client that keeps sending requests could delay it without end.
_CLOSE_TIMEOUT = 2.0
# Seconds by which an answer waits for the record on disk.
_SAVE_TIMEOUT = 1.0
# Seconds for each change of files at the end; a slower one ends before this process does.
_DISK_TIMEOUT = 5.0
# Seconds for the scheduler to report why it ends the job. Some leave a job only a few seconds for its end.
_REASON_TIMEOUT = 3.0
# Seconds between two looks for the note of a `stop` that was killed, and the age from which the note is of one.
_NOTE_INTERVAL, _NOTE_AGE = 60.0, 300.0
# Seconds for the last save of what is kept after a signal or a `stop`. A PBS may kill the job after 10 s, and a `stop`
# waits for 15 s.
_LAST_SAVE_S = 8.0
# Seconds for clients to fetch the last results before the ranks end.
_FETCH_TIME = 5.0


class Head:
    """Runs one cluster until its end, on one event loop in the main thread.

    Parameters
    ----------
    record
        The cluster's record, which only the head writes from now on.
    world
        The world, whose ``mpiexec`` already runs, so that ranks and scheduler start in parallel.
    address
        Address of the scheduler.
    end
        Returns the end of the job in seconds since the epoch, or None while it is unknown; may block.
        Default: queries the batch scheduler.
    times
        Times of the steps of this process so far, in seconds since the epoch.
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
        self.record, self.folder = record, world.folder
        self._times = times or {}
        self.scheduler = HeadScheduler(
            http_socket=node_dirs.sockets(record.id) / "head.sock",
            local_directory=node_dirs.spill(record.id),
            host=address,
            security=certificates.security(world.folder.path),
            logs=world.folder.logs,
        )
        self._changed = asyncio.Event()
        self._saving, self._has_room = threading.Lock(), True  # room on the disk of the record
        self._signaled = self._time_is_up = False
        self._following = ""  # the id of the job that continues the cluster
        self._end: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_since = time.monotonic()
        self.collectives = CallQueue()
        self.current = ClusterWorld(
            record,
            world,
            self.scheduler,
            queues=lambda: (self.collectives, self.cells.queue),
            report=self._report,
            changed=self._refresh,
            replaced=self._replaced,
            run=self._start,
            is_ending=self._end.done,
        )
        self.metrics = Metrics(self._state)
        store = self.metrics.store

        def began(call: str, origin: int | None) -> None:
            self.checkpoints.changed = True
            store.calls.began(call, origin)

        self.cells = Cells(self.scheduler, self.current, record, self._start, began)
        self.spmd = SpmdCalls(self.scheduler, self.current, self.collectives, began, store.got_on)
        report = functools.partial(self._report, kind="checkpoint")
        self.checkpoints = Checkpoints(self.scheduler, self.current, self.spmd, record, report)
        self.walltime = Walltime(
            end or job_end(record),
            grace=config.seconds("walltime-grace"),
            saving=lambda: self.checkpoints.seconds,
            learned=lambda ends: self._update(ends=ends),
            report=functools.partial(self._report, kind="walltime"),
            drain=self.drain,
        )

    async def run(self) -> int:
        """Serve until the cluster ends; return the exit code of the process."""
        loop = asyncio.get_running_loop()
        cause = ", as when its job is canceled or deleted" if self._job().batch else ""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, f"{number.name} was received{cause}")
        # Slurm's --signal announces the end.
        loop.add_signal_handler(signal.SIGUSR1, lambda: self._start(self._on_sigusr1()))
        await self._open_scheduler()
        for coroutine in (
            self._write_record(),
            self._watch_lease(),
            self._watch_note(),
            self._watch_idle(),
            self._watch_orphans(),
            Pauses(self.scheduler, self._report).watch(),
            self._watch_scheduler(),
            self.metrics.run(),
            self.walltime.watch(),
            self.checkpoints.watch(),
            self._queue_following(),
        ):
            self._start(coroutine)
        self.current.keep_first(self.record.deadline - time.time())
        try:
            kind, reason = await self._end
        except StartError as error:
            self.record = self.record.replace(failure=error.fields())
            return await self._close(ended.FAILED, error.message, error.hint)
        if self._signaled:
            reason = await self._scheduler_reason(reason)
        if await self._moves(kind):
            return await self._move(reason)
        return await self._close(kind, reason)

    async def _moves(self, kind: str) -> bool:
        """Return whether the next job continues the cluster: its user has not ended it, nor canceled its job."""
        if not self._following or kind != ended.ENDED:
            return False
        return self._time_is_up or (self._signaled and bool(await asyncio.to_thread(self._job().cause_of_end)))

    def end(self, reason: str, kind: str = ended.ENDED) -> None:
        """End the cluster in order; `kind` is one of `workbench.deploy.ended`."""
        if not self._end.done():
            self._end.set_result((kind, reason))

    def _on_signal(self, reason: str) -> None:
        if not self._end.done():
            self._signaled = self._job().batch
            self.end(reason)

    async def _scheduler_reason(self, reason: str) -> str:
        """Return the scheduler's reason for the end of the job after a signal; `reason` if it reports none soon."""
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(_REASON_TIMEOUT):
                if known := await asyncio.to_thread(self._job().end_reason):
                    return f"its scheduler has ended job {self.record.job}: {known}"
        return reason

    async def _on_sigusr1(self) -> None:
        # A preemption is possible at any time, and the walltime may have been cut since the last query. For the end of
        # the walltime the countdown leaves more time.
        if not self.walltime.expects_end(time.time()):
            await self.walltime.ask()
        now = time.time()
        if self.walltime.expects_end(now) and not self.walltime.countdown.should_drain(now):
            logger.info("SIGUSR1: the end of the walltime is near, as expected")
        else:
            self.drain("the scheduler has requested the end of the job (SIGUSR1)")

    def drain(self, reason: str) -> None:
        """Reject new work, and end the cluster in order when running tasks and calls have ended or are out of time."""
        if self.scheduler.refusal is not None:
            return
        hint = "Fetch your results now, and start another cluster, with more time if needed (", Option("walltime"), ")."
        message = f"cluster {self.record.name!r} accepts no more work: {reason}."
        self.scheduler.reject_new_work(
            self.folder.moves(reason) if self._following else WorkbenchError(message, hint=hint)
        )
        self.checkpoints.stop_calls_soon()
        after = f"job {self._following} continues the cluster" if self._following else "the cluster ends"
        self._report(f"{reason}: new work is rejected, and {after} after the running work", kind="drain")
        self._time_is_up = True
        self._start(self._drain(reason))

    # -- start -------------------------------------------------------------------------------------------------

    async def _open_scheduler(self) -> None:
        self.scheduler.restart_world, self.scheduler.is_expected = self.current.restart, self.current.ends
        self.scheduler.returns = self.current.returns
        for part in (self.spmd, self.metrics, self.checkpoints):
            self.scheduler.stream_handlers |= part.stream_handlers
        needs_ranks: dict[str, Callable[..., Any]] = {
            **self.spmd.handlers,
            **Uploads(self.scheduler, self.current).handlers,
            **self.cells.handlers,
            **self.checkpoints.handlers,
            "workbench_scale": self._rpc_scale,
            "workbench_restart": self._rpc_restart,
        }
        self.scheduler.handlers |= {
            **{name: self._explained(handler) for name, handler in needs_ranks.items()},
            **self.metrics.handlers,
            "workbench_dask_pages": self.scheduler.tunnel_dashboard,
            "workbench_status": self._rpc_status,
            "workbench_pulse": self._rpc_pulse,
            "workbench_close": self._rpc_close,
        }
        self.scheduler.handlers |= logged(self.scheduler.handlers)
        self.scheduler.add_plugin(RankMembershipPlugin(self._joined, self._left))
        self.scheduler.add_plugin(self.metrics)
        self.scheduler.add_plugin(self.collectives)
        self.scheduler.add_plugin(self.cells)
        await self.scheduler
        self._times["the scheduler listens"] = time.time()
        self._update(address=self.scheduler.address, http=str(self.scheduler.http_socket))

    def _explained(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return a handler whose error is the reason of the end while the cluster ends, not the loss of the ranks."""

        @functools.wraps(handler)
        async def handle(*arguments: Any, **fields: Any) -> Any:
            try:
                result = handler(*arguments, **fields)
                if inspect.isawaitable(result):
                    result = await result
            except WorkbenchError as error:
                if ending := self._ending():
                    raise ending from error
                raise
            # A cell reports ranks that it has lost.
            if isinstance(result, dict) and result.get("lost") and (ending := self._ending()):
                raise ending
            return result

        return handle

    def _ending(self) -> WorkbenchError | None:
        """Return the error for requests while the cluster ends; None before."""
        if not self._end.done():
            return None
        error = self._end.exception()
        reason = error.message if isinstance(error, WorkbenchError) else self._end.result()[1]
        return self.folder.moves(reason) if self._time_is_up and self._following else self.folder.lost(reason)

    # -- requests of clients -----------------------------------------------------------------------------------

    async def _rpc_status(self) -> dict[str, Any]:
        if self.record.state == "ready" and self._changed.is_set():
            # The client may read the record next.
            await asyncio.wait({self._start(self._save_change())}, timeout=_SAVE_TIMEOUT)
        return dataclasses.asdict(self.record)

    async def _rpc_pulse(self) -> dict[str, float | None]:
        """Return `Store.pulse`, ``clients`` of Dask, and ``idle``: seconds without clients and tasks, or None."""
        idle = None if self._busy() else time.monotonic() - self._idle_since
        return {**self.metrics.store.pulse(), "clients": len(self._clients()), "idle": idle}

    async def _rpc_scale(self, comm: Comm, n: int) -> None:
        await self.checkpoints.save_changes()
        await self.current.move(n, comm)

    async def _rpc_restart(self, comm: Comm) -> None:
        await self.checkpoints.save_changes()
        await self.current.restart(comm)

    async def _rpc_close(self, reason: str) -> None:
        self.end(reason, ended.STOPPED)

    # -- background tasks --------------------------------------------------------------------------------------

    def _job(self) -> ClusterJob:
        return ClusterJob(self.record, self.folder)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._end.done():
            return
        if error := task.exception():
            # The head must not continue without one of its tasks.
            logger.error("a background task of the head failed", exc_info=error)
            if not isinstance(error, StartError):
                error = StartError(f"the head failed: {error!r}.", hint="See the log of the head.")
            self._end.set_exception(error)

    async def _watch_scheduler(self) -> None:
        # client.shutdown() closes the scheduler, and with it the cluster.
        await self.scheduler.finished()
        self.end("the scheduler was shut down by a client", ended.STOPPED)

    async def _drain(self, reason: str) -> None:
        since = time.time()
        finishing = asyncio.ensure_future(self._finish_work())
        try:
            while not self.walltime.countdown.is_final(time.time(), since):
                if (await asyncio.wait({finishing}, timeout=1))[0]:
                    await finishing
                    break
        finally:
            finishing.cancel()
        self.end(reason)

    async def _finish_work(self) -> None:
        await self.scheduler.drain_workers(self.scheduler.workers)
        await asyncio.gather(self.collectives.wait_idle(), self.cells.queue.wait_idle())
        await asyncio.sleep(_FETCH_TIME)

    async def _queue_following(self) -> None:
        """Submit the next job when this one is ready: the job may begin when this one has ended, however it ends."""
        if not self.record.resubmit:
            return
        await self.current.world.complete()
        try:
            self._following = await asyncio.to_thread(self._job().submit_following)
        except (LaunchError, OSError) as error:
            self._report(f"no job will continue the cluster: {error}", kind="walltime")
        else:
            self._report(f"job {self._following} continues the cluster after this one")

    async def _watch_lease(self) -> None:
        await self.folder.wait_until_lost()
        self.end("its record was removed or belongs to another cluster", ended.STOPPED)

    async def _watch_note(self) -> None:
        # A `stop` notes the end before the end, and may be killed between: the note would be the reason of a later end.
        while True:
            await self._on_disk(functools.partial(self.folder.withdraw_note, age=_NOTE_AGE))
            await asyncio.sleep(_NOTE_INTERVAL)

    async def _watch_orphans(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.scheduler.memory_kills.sample()
            if self.scheduler.unrunnable and not self.scheduler.awaited:
                fail_unrunnable(self.scheduler)

    async def _watch_idle(self) -> None:
        timeout = self.record.idle_timeout
        while True:
            await asyncio.sleep(min(5.0, timeout / 10))
            if self._busy():
                self._idle_since = time.monotonic()
            elif time.monotonic() - self._idle_since >= timeout:
                self.end(f"the cluster had no client and no task for {timeout:.0f} s (idle-timeout)")

    def _clients(self) -> set[str]:
        return set(self.scheduler.clients) - {"fire-and-forget", KEEPER}

    def _busy(self) -> bool:
        scheduler = self.scheduler
        tasks = (
            any(state.processing for state in scheduler.workers.values()) or scheduler.queued or scheduler.unrunnable
        )
        return bool(self._clients() or tasks or not all(world.ready for world in self.current))

    async def _write_record(self) -> None:
        # The record is written at most five times per second, however fast ranks register.
        while True:
            await self._changed.wait()
            await self._save_change()
            await asyncio.sleep(0.2)

    async def _save_change(self) -> None:
        self._changed.clear()
        try:
            await asyncio.to_thread(self._save)
            if not self._has_room:
                self._has_room = True
                self._report(f"{self.folder.path} has room again", kind="disk")
        except OSError as error:
            self._changed.set()  # try again; the lease shows whether the folder was removed
            if error.errno in output.FULL and self._has_room:
                self._has_room = False
                self._report(
                    f"{self.folder.path} has no room ({error.strerror}): the cluster continues, but its record and "
                    "its logs are not up to date until you free some space",
                    kind="disk",
                )

    def _save(self) -> None:
        # One thread writes at a time, and always the newest record, so that a late thread restores no older one.
        with self._saving:
            self.folder.update(self.record)

    def _joined(self, world: int, rank: int, facts: dict[str, Any]) -> None:
        current = self.current.world
        self.current.joined(world, rank, facts)
        if world == current.index:
            self.metrics.store.joined(world, rank, facts)
        if self._times and current.ready:
            times = [present["times"] for present in current.present.values()]
            logger.info("the start:\n  %s", "\n  ".join(step_times(self._times, times, time.time())))
            self._times = {}

    def _replaced(self) -> None:
        world = self.current.world
        for rank, facts in world.present.items():
            self.metrics.store.joined(world.index, rank, facts)

    def _left(self, world: int, rank: int, cause: str) -> None:
        self.current.left(world, rank, cause)
        self.metrics.store.left(world, rank)

    def _state(self) -> dict[str, Any]:
        """Return the facts about the cluster for viewers of metrics."""
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
        """Update the world and the state of the record."""
        world, following = self.current.world, self.current.next
        state = "restarting" if world.state == "queued" else world.state
        self._update(world=_described(world), next=following and _described(following), state=state)

    def _update(self, **changes: Any) -> None:
        self.record = self.record.replace(**changes)
        self._changed.set()

    def _report(self, message: str, *, kind: str = "") -> None:
        logger.info(message)
        self._notify(message, kind)
        self._update(message=message)
        self._refresh()

    def _notify(self, message: str, kind: str) -> None:
        # A notebook shows a message with a kind (lost, moved, walltime, drain, end) immediately. Code reads the kind
        # only, never the message.
        self.scheduler.log_event("workbench", {"cluster": self.record.name, "message": message, "kind": kind})

    # -- end ---------------------------------------------------------------------------------------------------

    async def _move(self, reason: str) -> int:
        """End this job, and leave the cluster to the next one."""
        logger.info("job %s continues the cluster: %s", self._following, reason)
        self._notify(f"{reason}: job {self._following} continues the cluster", "move")
        await self._stop_all(self.folder.moves(reason), _LAST_SAVE_S if self._signaled else math.inf, reason)
        if (record := self.record.in_job(self.record.turn + 1)) is not None:
            waits = config.seconds("queue-timeout") + record.ready_within
            message = f"job {self._following} continues the cluster: {reason}"
            self.record = record.replace(message=message, deadline=time.time() + waits)
            await self._on_disk(self._save)
        return 0

    async def _close(self, kind: str, reason: str, hint: Hint = ()) -> int:
        note = functools.partial(self.folder.note, self.record, kind, reason, hint=hint)
        await self._on_disk(note)
        logger.info("ending the cluster: %s", reason)
        self._notify(f"the cluster ends: {reason}", "end")
        failed = kind == ended.FAILED
        at_most = _LAST_SAVE_S if self._signaled or kind == ended.STOPPED else math.inf
        await self._stop_all(self.folder.lost(reason), at_most, reason, state="failed" if failed else "closing")
        if not await asyncio.to_thread(self._ends_other_jobs):
            return 1
        if failed:
            # The record stays for clients that wait for the start; the key does not.
            await self._on_disk(certificates.remove, self.folder.path)
            await self._on_disk(self._save)  # a full disk has room now
        else:
            await self._on_disk(self.folder.remove)
        await self._on_disk(note)
        return 1 if failed else 0

    async def _stop_all(self, ending: WorkbenchError, at_most: float, reason: str, state: str = "closing") -> None:
        """Save what is kept in `at_most` seconds, and end the world and the scheduler; requests get the error."""
        self.scheduler.reject_new_work(ending)
        await self.checkpoints.save_last(min(at_most, self.checkpoints.seconds))
        self.scheduler.fail_unfinished(ending)
        for task in self._tasks:
            task.cancel()
        self.record = self.record.replace(state=state, message=reason)
        await self._on_disk(self._save)
        await asyncio.gather(self.current.stop(), self.cells.close())
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self.scheduler.close(reason=reason)
        except TimeoutError:
            pass
        except Exception:
            # Dask raises for connections to lost hosts. Files and record must still be removed.
            logger.exception("the scheduler did not close in order")
        node_dirs.remove(self.record.id)

    @staticmethod
    async def _on_disk(function: Callable[..., None], *arguments: Any) -> None:
        """Call a function that changes files, and continue if it fails, or if the file server does not answer."""
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(_DISK_TIMEOUT):
                await asyncio.to_thread(function, *arguments)

    def _ends_other_jobs(self) -> bool:
        """Cancel the other jobs of the cluster, if any; return False if the scheduler does not accept that."""
        try:
            if (job := self._job()).batch:
                job.cancel(later=True)
        except LaunchError:
            # The record stays, so that the next process that reads it cancels the jobs.
            logger.exception("jobs of this cluster may remain in their queue")
            return False
        return True


def _described(world: MPIWorld) -> World:
    gpus = devices.describe_gpus(world.present.values())
    return World(world.index, world.ranks, world.state, len(world.present), world.starts, world.job, gpus)
