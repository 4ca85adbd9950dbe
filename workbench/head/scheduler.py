"""The Dask scheduler of the head, and the log of requests that change the cluster."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import dask
from dask.utils import format_bytes
from distributed import Scheduler
from distributed.comm.core import CommClosedError
from distributed.core import Status, error_message
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.protocol import pickle
from distributed.spans import SpansSchedulerExtension
from tornado.iostream import IOStream

from workbench import comm
from workbench.cells import protocol as cells
from workbench.collective import protocol as collective
from workbench.collective.operation import poll_until
from workbench.comm.unix_http import UnixHTTP, bridge_streams
from workbench.deploy.logs import of_rank
from workbench.errors import InvalidRequest, RankLost, WorkbenchError
from workbench.head import lost_ranks
from workbench.head.lost_ranks import MemoryKills
from workbench.hints import Command, Option
from workbench.host.debug_log import is_written, write
from workbench.host.processes import exit_code
from workbench.placement.head import disown, fail_lost, fail_processing, pin_again, protect_pinned
from workbench.text import exit_description, rank_and_process

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Worker
    from distributed.comm.core import Comm
    from distributed.scheduler import WorkerState
    from distributed.security import Security
    from distributed.spans import Span


# Requests that clients repeat to read the state are not logged.
_CHANGES = frozenset(
    {
        "broadcast",
        "rebalance",
        "replicate",
        "restart",
        "restart_workers",
        "retire_workers",
        "run_function",
        "scatter",
        "terminate",
        collective.BROADCAST_BEGIN,
        cells.BEGIN,
        cells.INTERRUPT,
        "workbench_close",
        "workbench_restart",
        "workbench_scale",
        collective.CALL,
    }
)


def logged(handlers: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return handlers by name, in which those of changes log their requests."""
    if not is_written("request"):
        return dict(handlers)
    return {name: _logging(name, handler) if name in _CHANGES else handler for name, handler in handlers.items()}


def graph(client: str, tasks: int) -> None:
    """Log that a client submits a graph; blocks are placed with graphs too."""
    write("request", "update-graph: from %s: %d tasks", client, tasks)


def _logging(name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    takes_comm = next(iter(inspect.signature(handler).parameters), "") == "comm"

    async def handle(comm: Any, **fields: Any) -> Any:
        began, sender = time.monotonic(), comm.peer_address
        write("request", "%s: from %s: %s", name, sender, _plain_values(fields))
        try:
            result = handler(comm, **fields) if takes_comm else handler(**fields)
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            write("request", "%s: failed for %s after %.3f s: %r", name, sender, time.monotonic() - began, error)
            raise
        write("request", "%s: done for %s after %.3f s", name, sender, time.monotonic() - began)
        return result

    return handle


def _plain_values(fields: Mapping[str, Any]) -> str:
    """Return the plain values of a request, without data and code of the user."""
    return ", ".join(f"{key}={value!r}" for key, value in fields.items() if isinstance(value, str | int | float))


SETTINGS = {
    # A task that has killed its rank would kill the next rank, too, with all its blocks.
    "distributed.scheduler.allowed-failures": 0,
    # A rank in a long C call is alive without heartbeats, and the socket of a dead rank is closed.
    "distributed.scheduler.worker-ttl": None,
    # A task that is pinned to a lost rank would wait without end.
    "distributed.scheduler.no-workers-timeout": "60s",
    # All routes of Dask except the proxy to HTTP ports of workers: ranks have none, and it imports a Jupyter server.
    "distributed.scheduler.http.routes": [
        "distributed.http.scheduler.prometheus",
        "distributed.http.scheduler.info",
        "distributed.http.scheduler.json",
        "distributed.http.health",
        "distributed.http.statics",
    ],
    # Dask's own policy may drop the replica of a block on the rank to which it is pinned.
    "distributed.scheduler.active-memory-manager.policies": [{"class": "workbench.placement.head.KeepPinned"}],
}

# Requests besides graphs that a draining cluster rejects.
_NEW_WORK = (
    "scatter",
    collective.CALL,
    collective.BROADCAST_BEGIN,
    cells.BEGIN,
    "workbench_scale",
    "workbench_restart",
)
_NOT_SENT = "a rank was lost, or the ranks were restarted, while data were sent to the ranks. Send the data again."
# Seconds for the end of a killed launcher to be seen after the ends of its ranks.
_LAUNCHER_S = 0.5
# Part of the limit above which the use of memory may be the cause of a loss.
_MUCH = 0.8
# States of tasks that have started or finished.
_STARTED_STATES = ("memory", "erred", "processing")


class HeadScheduler(UnixHTTP, Scheduler):
    """A scheduler, always with TLS, whose workers are added and removed with MPI worlds."""

    restart_world: Callable[[], Awaitable[None]]
    """Restarts the world, also for ``client.restart()``, because a rank cannot be restarted alone."""
    is_expected: Callable[[dict[str, Any]], bool]
    """Returns whether a rank, by its facts, leaves because its world ends, so that its tasks may run again."""
    returns: Callable[[dict[str, Any]], bool]
    """Returns whether a rank that leaves, by its facts, is started again without a request."""
    world = 0
    """Index of the world whose ranks are the workers 0, 1, ..., n - 1."""
    refusal: WorkbenchError | None = None
    """The error for new work; None while new work is accepted."""

    def __init__(
        self,
        *,
        http_socket: Path,
        local_directory: Path,
        host: str,
        security: Security,
        logs: Path,
    ) -> None:
        comm.guard()
        super().__init__(
            http_socket=http_socket,
            host=host,
            port=0,
            protocol="tls",
            security=security,
            dashboard=False,
            local_directory=str(local_directory),
        )
        self.extensions["spans"] = RecentSpans(self)
        protect_pinned(self)
        self._loading_pages, self._has_pages = asyncio.Lock(), False
        self.memory_kills = MemoryKills()
        self.causes: dict[str, str] = {}
        """Known causes of the losses of ranks, as ends of sentences, by address."""
        self.awaited: dict[str, int] = {}
        """Lost ranks whose world is about to start again, by address. Tasks that are pinned to them wait."""
        self._logs = logs
        # Ranks whose cause is being found, by address: the index of the world, and the end of the removal.
        self._losing: dict[str, tuple[int, asyncio.Event]] = {}

    async def restart_workers(
        self, workers: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Literal["OK", "removed", "timed out"]]:
        """Restart the world, whatever `workers` are."""
        before: list[str] = list(self.workers)
        await self.restart_world()
        return dict.fromkeys(before, "OK")

    async def add_worker(self, comm: Comm, *, name: Any, extra: dict[str, Any], **options: Any) -> None:
        """Add a worker; the ranks of the next world have other names until `take_over`."""
        facts = extra.get("workbench")
        if facts is not None and facts["world"] != self.world:
            name = _other_name(facts["world"], facts["rank"])
        await super().add_worker(comm, name=name, extra=extra, **options)

    def take_over(self, world: int, former: Mapping[int, str], ranks: Mapping[int, str]) -> None:
        """Make the ranks of a world the workers 0, 1, ..., n - 1; `former` and `ranks` have their addresses."""
        before, self.world = self.world, world
        renamed = {address: _other_name(before, rank) for rank, address in former.items()}
        for address, name in [*renamed.items(), *((address, rank) for rank, address in ranks.items())]:
            if (worker := self.workers.get(address)) is not None:
                del self.aliases[worker.name]
                worker.name, self.aliases[name] = name, address

    def pin_again(self, ranks: Mapping[int, str]) -> int:
        """Pin the tasks of the awaited ranks to those with the addresses `ranks`; return the number of tasks to run."""
        awaited, self.awaited = self.awaited, {}
        return pin_again(self, {address: ranks[rank] for address, rank in awaited.items() if rank in ranks})

    def _check_no_workers(self) -> None:
        """Let tasks fail that wait for a worker for too long, unless ranks are about to start again."""
        if not self.awaited:
            super()._check_no_workers()

    async def remove_worker(
        self, address: str, *, stimulus_id: str, expected: bool = False, close: bool = True
    ) -> Literal["OK", "already-removed"]:
        """Remove a worker. If its rank was lost, its tasks fail, and run on no other rank."""
        address = self.coerce_address(address)
        while address in self._losing:  # for another reason: the end of the world may be seen as well
            await self._losing[address][1].wait()
        worker = self.workers.get(address)
        facts = worker.extra.get("workbench") if worker is not None else None
        remove = functools.partial(super().remove_worker, address, stimulus_id=stimulus_id, close=close)
        if worker is None or facts is None:
            return await remove(expected=expected)
        self.causes.pop(address, None)  # of an earlier rank with this address
        if expected or self.is_expected(facts):
            if self.returns(facts):
                self.awaited[address] = facts["rank"]
            self._forget_results(worker, facts)
            return await remove(expected=True)
        removed = asyncio.Event()
        self._losing[address] = facts["world"], removed
        # A rank that is about to be removed as well must not get the tasks of this one.
        self.handle_worker_status_change(Status.closing, worker, stimulus_id)
        try:
            self.causes[address] = cause = await self._cause(worker, facts)
            if await poll_until(lambda: self.returns(facts), _LAUNCHER_S):
                self.awaited[address] = facts["rank"]
            fail_processing(
                self,
                worker,
                f"{rank_and_process(facts)} was lost{cause} while the task ran or waited there. The task is not "
                "run again, because a task that ends its rank would end the next one, too.",
                hint=("Read the log of the rank (", Command("logs"), "), then submit the task again."),
            )
            self._forget_results(worker, facts, cause)
            return await remove(expected=False)
        finally:
            del self._losing[address]
            removed.set()

    def loses(self, world: int) -> bool:
        """Return whether a rank of a world was lost, and is not removed yet."""
        return any(index == world for index, _ in self._losing.values())

    def _forget_results(self, worker: WorkerState, facts: dict[str, Any], cause: str = "") -> None:
        """Make the results fail that are lost with a rank for ever, unless the cluster ends."""
        if self.refusal is None:
            fail_lost(self, worker, f"{rank_and_process(facts)} has ended{cause}")
        if facts["host"] == socket.gethostname():
            self.memory_kills.forget(facts["pid"])

    async def _cause(self, worker: WorkerState, facts: dict[str, Any]) -> str:
        """Return what is known about the cause of a loss."""
        memory, limit = worker.metrics.get("memory", 0), worker.memory_limit
        amount = f"{format_bytes(memory)} of its limit of {format_bytes(limit)}"
        how, code = "", None
        if facts["host"] == socket.gethostname():
            code = exit_code(facts["pid"])
            how = "" if code is None else f" with {exit_description(code)}"
            if place := self.memory_kills.recent(facts["pid"]):
                killed = f"as the system has killed a process of {place} for lack of memory"
                return f"{how}, {killed} (last measured: {amount})"
        if code is None or -code in lost_ranks.SIGNALS.values():
            how = await lost_ranks.read(of_rank(self._logs, facts["rank"])) or how
        return f"{how}, with {amount} in use" if limit and memory > _MUCH * limit else how

    async def scatter(
        self,
        data: dict[Key, Any],
        workers: Iterable[str] | None,
        client: str,
        broadcast: bool = False,
        timeout: float = 2,
    ) -> list[Key]:
        """Send data of a client to ranks; raise `RankLost` if a rank is lost before it has its data."""
        try:
            return await super().scatter(data, workers, client, broadcast=broadcast, timeout=timeout)
        except (KeyError, CommClosedError) as error:  # KeyError: the address of a rank that has left
            # Dask closes the connection of the client after the second, as if the head were lost.
            raise RankLost(_NOT_SENT) from error

    def update_data(self, *, who_has: dict[Key, list[str]], nbytes: dict[Key, int], client: str | None = None) -> None:
        """Register data that ranks have received; raise `RankLost` and register nothing if one of them has left."""
        if not {self.coerce_address(rank) for ranks in who_has.values() for rank in ranks} <= self.workers.keys():
            raise RankLost(_NOT_SENT)
        super().update_data(who_has=who_has, nbytes=nbytes, client=client)

    def reject_new_work(self, refusal: WorkbenchError) -> None:
        """Reject new work with `refusal`; running tasks and calls continue."""
        self.refusal = refusal
        # Dask's message for tasks without a worker would be wrong.
        self.no_workers_timeout = None

        async def refuse(**_: Any) -> NoReturn:
            raise refusal

        self.handlers |= logged(dict.fromkeys(_NEW_WORK, refuse))
        for worker in list(self.running):
            self.handle_worker_status_change(Status.paused, worker, "drain")

    async def drain_workers(self, addresses: Iterable[str]) -> None:
        """Let ranks start no more tasks, and return when their running tasks have ended."""
        await asyncio.gather(*(self._run_on(address, _finish_tasks) for address in list(addresses)))

    async def resume_workers(self, addresses: Iterable[str]) -> None:
        """Let ranks start tasks again after `drain_workers`."""
        await asyncio.gather(*(self._run_on(address, _resume_tasks) for address in list(addresses)))

    async def _run_on(self, address: str, function: Callable[[Worker], Awaitable[None]]) -> None:
        while address in self.workers:
            with suppress(OSError):  # the rank is lost and will be removed, or is in a long C call
                await self.rpc(address).run(function=pickle.dumps(function))
                return
            await asyncio.sleep(1)

    def handle_worker_status_change(self, status: str | Status, worker: str | WorkerState, stimulus_id: str) -> None:
        """Update the status of a worker. If new work is rejected, also new workers are paused."""
        if self.refusal is not None and status in (Status.running, Status.running.name):
            status = Status.paused
        super().handle_worker_status_change(status, worker, stimulus_id)

    async def update_graph(self, client: str, expr_ser: Any, keys: set[Key], *args: Any, **options: Any) -> None:
        """Accept tasks from a client, or let its futures fail immediately."""
        graph(client, len(keys))
        if self.refusal is None:
            await super().update_graph(client, expr_ser, keys, *args, **options)
        if self.refusal is not None:  # set before this call, or while the graph was read
            self._refuse_tasks(client, keys, self.refusal)

    def _refuse_tasks(self, client: str, keys: Iterable[Key], refusal: WorkbenchError) -> None:
        started = {key for key in keys if key in self.tasks and self.tasks[key].state in _STARTED_STATES}
        self.client_desires_keys(started, client)
        error = error_message(refusal)
        for key in set(keys) - started:
            self.report(_erred(key, error), client=client)

    def fail_unfinished(self, ending: WorkbenchError) -> None:
        """Let the futures of clients that are not finished fail: Dask would only say that the connection was lost."""
        error = error_message(ending)
        for key, task in self.tasks.items():
            if task.who_wants and task.state not in ("memory", "erred"):
                self.report(_erred(key, error))

    # Dask looks for `comm` and `serializers` in the signatures of both.
    async def register_nanny_plugin(self, comm: None, plugin: bytes, name: str, idempotent: bool) -> Any:
        """Refuse a plugin that no nanny would run, also those that Dask's own plugins register."""
        self._require_nannies()
        return await super().register_nanny_plugin(comm, plugin, name, idempotent)

    async def broadcast(
        self, *, workers: Collection[str] | None = None, nanny: bool = False, serializers: Any = None, **kwargs: Any
    ) -> Any:
        """Send a message to workers (None: all); refuse one to nannies if no worker has one."""
        if nanny:
            self._require_nannies()
        if workers is None:  # without the ranks that a move starts or ends
            facts = {address: worker.extra.get("workbench", {}) for address, worker in self.workers.items()}
            workers = [address for address, known in facts.items() if known.get("world", self.world) == self.world]
        return await super().broadcast(workers=workers, nanny=nanny, serializers=serializers, **kwargs)

    def _require_nannies(self) -> None:
        if not any(worker.nanny for worker in self.workers.values()):
            raise InvalidRequest(
                "ranks have no nannies, which would run this: plugins such as UploadDirectory, Environ, PipInstall and "
                "CondaInstall, and client.run(..., nanny=True).",
                hint=(
                    "Send modules with client.upload_file(), import them on all ranks with ",
                    Option("preload"),
                    ", and set variables and install packages before the start of the cluster.",
                ),
            )

    async def tunnel_dashboard(self, comm: Comm) -> Status:
        """Connect a client to Dask's own dashboard: the connection carries the bytes from now on."""
        async with self._loading_pages:
            if not self._has_pages:
                # The imports take half a second, so a thread does them.
                pages = await asyncio.to_thread(importlib.import_module, "distributed.dashboard.scheduler")
                # Dask needs a port for the origin of its pages, and a Unix socket has none.
                self.http_server.port = 0
                pages.connect(self.http_application, self.http_server, self)
                self._has_pages = True
        # Not through the file of the socket: the system removes its folder when the user logs out.
        ours, theirs = socket.socketpair()
        self.http_server.handle_stream(IOStream(theirs), "")
        reader, writer = await asyncio.open_connection(sock=ours)
        await bridge_streams(comm, reader, writer)
        return Status.dont_reply


def _erred(key: Key, error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message to a client about a task with an error."""
    return {"op": "task-erred", "key": key, "exception": error["exception"], "traceback": error["traceback"]}


async def _finish_tasks(dask_worker: Worker) -> None:
    """Pause a worker, and return when its running tasks have ended."""
    # Otherwise the memory monitor would set the worker to running again.
    dask_worker.memory_manager.memory_pause_fraction = False
    dask_worker.status = Status.paused
    while dask_worker.state.executing or dask_worker.state.long_running:  # noqa: ASYNC110  (Dask has no event for it)
        await asyncio.sleep(0.1)


async def _resume_tasks(dask_worker: Worker) -> None:
    dask_worker.memory_manager.memory_pause_fraction = dask.config.get("distributed.worker.memory.pause")
    dask_worker.status = Status.running


def _other_name(world: int, rank: int) -> str:
    """Return the name of the worker of a rank whose world is not the cluster's yet, or not any more."""
    return f"{rank} of world {world}"


class RankMembershipPlugin(SchedulerPlugin):
    """Reports to the head which ranks register and leave.

    `joined` and `left` are called with the index of the world and the rank, and `joined` with the rank's facts, `left`
    with the cause of a loss.
    """

    name = "workbench-attendance"

    def __init__(
        self,
        joined: Callable[[int, int, dict[str, Any]], None],
        left: Callable[[int, int, str], None],
    ) -> None:
        self._joined, self._left = joined, left
        self._places: dict[str, tuple[int, int]] = {}
        self._addresses: set[str] = set()

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Handle a rank that has registered its worker."""
        if worker in self._addresses:  # an earlier rank had the same address: the kernel reuses ports
            disown(scheduler, worker)
        self._addresses.add(worker)
        facts = scheduler.workers[worker].extra.get("workbench")
        if facts is None:
            return  # a worker that the user has added by other means
        self._places[worker] = place = (facts["world"], facts["rank"])
        if facts["host"] == socket.gethostname() and isinstance(scheduler, HeadScheduler):
            scheduler.memory_kills.watch(facts["pid"])
        self._joined(*place, facts)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """Handle a rank that has left."""
        place = self._places.pop(worker, None)
        if place is not None:
            causes = scheduler.causes if isinstance(scheduler, HeadScheduler) else {}
            self._left(*place, causes.get(worker, ""))


class RecentSpans(SpansSchedulerExtension):
    """Spans of tasks, which Dask's own dashboard shows; of the unnamed ones whose tasks are forgotten only the latest.

    Parameters
    ----------
    scheduler
        The scheduler.
    keep
        Number of unnamed spans that are kept in any case.

    Notes
    -----
    Dask keeps 6 kB for each graph that was submitted when no other task ran, as long as the scheduler runs.
    """

    def __init__(self, scheduler: Scheduler, keep: int = 200) -> None:
        super().__init__(scheduler)
        self._keep = self._many = keep

    def observe_tasks(self, *args: Any, **options: Any) -> Any:
        """Assign new tasks to spans."""
        annotations = super().observe_tasks(*args, **options)
        if len(self.spans_search_by_name["default",]) > self._many:
            self._forget()
        return annotations

    def heartbeat(self, ws: WorkerState, data: dict[tuple[Hashable, ...], float]) -> None:
        """Add the measurements of a rank; those of forgotten spans may be late."""
        super().heartbeat(ws, {key: value for key, value in data.items() if key[1] in self.spans})

    def _forget(self) -> None:
        defaults = self.spans_search_by_name["default",]
        forgotten = {span.id for span in defaults[: -self._keep] if not span.children and not self._has_tasks(span)}
        for spans in (defaults, self.spans_search_by_tag["default"], self.root_spans):
            spans[:] = [span for span in spans if span.id not in forgotten]
        for key in forgotten:
            del self.spans[key]
        # Each span is looked at a few times only, also if most of them stay.
        self._many = 2 * len(defaults)

    def _has_tasks(self, span: Span) -> bool:
        return any(self.scheduler.task_groups.get(group.name) is group for group in span.groups)
