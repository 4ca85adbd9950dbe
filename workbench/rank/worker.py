"""The Dask worker of a rank, with its own thread and event loop."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import psutil
from dask.system import cpu_count
from dask.utils import format_bytes
from distributed import Worker
from distributed.worker import _worker_cvar

from workbench import comm, config
from workbench.call_stack import of_tasks
from workbench.cells.rank import Cells
from workbench.checkpoint.protocol import STOP_SOON
from workbench.collective import process_state, protocol
from workbench.collective.operation import answering
from workbench.collective.rank import SpmdCalls
from workbench.collective.serialize import dask_raises_exceptions_only
from workbench.comm import certificates
from workbench.comm.unix_http import UnixHTTP
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record
from workbench.errors import LaunchError
from workbench.gpu.devices import is_gpu_aware, visible_gpus
from workbench.hints import Option
from workbench.host import network, node_dirs
from workbench.launch import allocation
from workbench.metrics.activity import Activity, BusyTime
from workbench.metrics.sampler import sample_rank
from workbench.metrics.schema import BY_NODE
from workbench.mpi.context import MainThread, RankContext, without_copies
from workbench.mpi.counters import SYNCHRONIZATIONS_KEPT, Meter
from workbench.rank.memory_limit import MemoryLimit
from workbench.session import current

if TYPE_CHECKING:
    from dask.typing import Key

# Seconds after which the process of a closing worker is ended: a task may be stuck in C code.
_CLOSE_TIMEOUT_S = 3.0
# Free bytes of a disk below which it counts as full.
_LITTLE = 1 << 20
_timers: list[threading.Timer] = []


class RankWorker(UnixHTTP, Worker):
    """A worker that ends together with its rank."""

    finalize: bool | None = None
    """Whether all ranks end together and can finalize MPI; None until the head requests the end."""
    activity: Activity
    """The calls and cells that the rank runs."""
    record: Record
    """The record of the cluster at the start of the rank."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.handlers |= {"workbench_end": self.end, "workbench_room": self.room}
        self.stream_handlers[STOP_SOON] = self.stop_soon

    async def end(self, finalize: bool) -> str:
        """Confirm the head's request that this world ends, and close the worker."""
        self.finalize = finalize
        self.loop.call_later(0, self.close, executor_wait=False, reason="the head ends the world")
        return "OK"

    def stop_soon(self) -> None:
        """Ask running calls to return, as the job ends soon."""
        from workbench.checkpoint import kept  # most ranks keep nothing

        kept.request_stop()

    async def room(self) -> dict[str, Any]:
        """Return the folder to which values are spilled, its free bytes, and the bytes of the largest value in memory.

        The folder of the head's node may be on another disk.
        """
        in_memory = getattr(self.data, "fast", None)
        largest = max(getattr(in_memory, "weights", {}).values(), default=0)
        free = (await asyncio.to_thread(shutil.disk_usage, self.local_directory)).free
        # Without the folders of the cluster and the worker, which say nothing to users.
        folder = str(Path(self.local_directory).parents[2])
        return {"folder": folder, "free": free, "largest": max(largest, _LITTLE)}

    async def run(self, comm: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function of `Client.run`, on the thread of the event loop, which no copy may continue."""
        with without_copies() as end:
            answer = await super().run(comm, *args, **kwargs)
            end(SystemExit(int(answer["status"] == "error")))
        return answer

    async def gather(self, who_has: dict[Key, list[str]]) -> dict[Key, object]:
        """Get copies of values from other ranks, and report the copies to the head.

        The head may have released a value during the transfer, or may no longer wait for the answer, and has the rank
        drop the copy then.
        """
        try:
            return await super().gather(who_has)
        finally:
            self.batched_send(
                {
                    "op": "add-keys",
                    "keys": [key for key in who_has if key in self.data],
                    "stimulus_id": f"gather-{time.time()}",
                }
            )

    async def close(self, *args: Any, **kwargs: Any) -> Any:
        """Close the worker; if that hangs, the process ends after a timeout."""
        timer = threading.Timer(_CLOSE_TIMEOUT_S, os._exit, [1])
        timer.daemon = True
        timer.start()
        _timers.append(timer)
        return await super().close(*args, **kwargs)


def _run_task(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of Dask that runs a task, and end the copies of this process that the task has left."""
    with without_copies() as end:
        outcome = function(*args, **kwargs)
        end(outcome.get("actual_exception") if isinstance(outcome, dict) else None)
    return outcome


def has_closed() -> None:
    """Cancel the timeouts: the process ends by itself, and needs time to finalize MPI."""
    for timer in _timers:
        timer.cancel()


async def serve(
    context: RankContext,
    record: Record,
    scheduler: str,
    timeout: float,
    ready: threading.Event,
    *,
    start: str,
    main_thread: MainThread,
    times: dict[str, float],
) -> bool | None:
    """Run the rank's worker until it is closed.

    Parameters
    ----------
    scheduler
        Address of the scheduler.
    timeout
        Seconds to register with the scheduler.
    ready
        Set once the worker is registered.
    start
        Unique name of this start of the world.
    main_thread
        Runs the cells of notebooks.
    times
        Times of the steps of this start, in seconds since the epoch.

    Returns
    -------
    finalize : bool or None
        See `RankWorker.finalize`.
    """
    from distributed.system import MEMORY_LIMIT

    # This module needs an initialized MPI.
    from workbench.mpi.communicator_cache import CommunicatorCache

    node_memory = min(MEMORY_LIMIT, allocation.memory_of_node() or MEMORY_LIMIT)
    memory = record.memory or allocation.memory_of_rank(record.threads) or node_memory // context.node_ranks
    check_memory(record.memory)
    comm.configure_memory(memory)
    security = certificates.security(ClusterFolder.of(record).path)
    dask.config.set(config.quiet_dask())
    comm.guard()
    dask_raises_exceptions_only()
    worker = RankWorker(
        scheduler,
        name=context.rank,
        nthreads=record.threads,
        memory_limit=memory,
        host=network.address(record.interface, peers=[_host(scheduler)] if record.spread else None),
        protocol="mpi" if comm.membership() else "tls",
        security=security,
        dashboard=False,
        http_socket=node_dirs.sockets(record.id) / f"rank-{context.world}.{context.rank}.sock",
        local_directory=str(node_dirs.spill(record.id)),
        death_timeout=timeout,
        startup_information={"workbench": lambda _: rank_info(context) | {"start": start, "times": times}},
        metrics={"transport": lambda _: comm.summary()},
        plugins=(busy := BusyTime(),),
    )
    for executor in (worker.executors["default"], worker.executors["actor"]):
        executor.submit = functools.partial(executor.submit, _run_task)  # type: ignore[method-assign,call-arg]
    worker.record = record
    current.set_current_worker(worker)
    process_state.tasks = busy.tasks
    # Functions of Dask such as get_client() then work in calls and cells as in tasks.
    for thread in (context.spmd_thread, main_thread):
        thread.submit(functools.partial(_worker_cvar.set, worker))
    MemoryLimit(worker, f"rank {context.rank}").start()
    communicators = CommunicatorCache(context.spmd)
    worker.activity = activity = Activity(
        # Each rank of a large world reports less.
        busy,
        Meter(SYNCHRONIZATIONS_KEPT if context.size <= BY_NODE else SYNCHRONIZATIONS_KEPT // 4),
        enabled=config.switch("metrics.enabled"),
    )
    calls = SpmdCalls(worker, context, communicators, activity)
    cells = Cells(worker, context, main_thread, record.id, activity)

    async def where(tasks: bool) -> dict[str, Any] | None:
        return calls.where() or cells.where() or (of_tasks(worker, busy.tasks) if tasks else None)

    worker.handlers |= answering({protocol.WHERE: where})
    times["serving"] = time.time()
    async with worker:
        ready.set()
        with sample_rank(worker, context, record.id, start, activity, head_is_here=record.process.is_local):
            await worker.finished()
    return worker.finalize


def check_memory(limit: int | None) -> None:
    """Raise LaunchError if a limit of the user is so small that the rank would never start a task."""
    pause = dask.config.get("distributed.worker.memory.pause")
    used = psutil.Process().memory_info().rss
    if limit and pause and used > pause * limit:
        raise LaunchError(
            f"--memory {format_bytes(limit)} is too small: a rank of this cluster uses {format_bytes(used)} when it "
            f"starts, and Dask starts no tasks on a rank that uses more than {100 * pause:.0f} % of its memory.",
            option="memory",
            hint=("Use at least ", Option("memory"), f" {int(2 * used / pause) >> 20}MiB."),
        )


def _host(address: str) -> str:
    """Return the host in an address such as ``tls://10.0.0.1:40001``."""
    return address.partition("://")[2].rpartition(":")[0]


def rank_info(context: RankContext) -> dict[str, Any]:
    """Return what a rank registers with the head: its place, process and MPI library."""
    import mpi4py
    from mpi4py import MPI

    return {
        "rank": context.rank,
        "size": context.size,
        "world": context.world,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "cores": psutil.cpu_count() or 1,
        # A control group may limit the CPU time to fewer cores.
        "cpus": sorted(os.sched_getaffinity(0))[: cpu_count()],
        "threads": context.threads,
        "library": context.library,
        "mpi4py": mpi4py.__version__,
        "gpus": [asdict(gpu) for gpu in visible_gpus()],
        "gpu_aware": is_gpu_aware(MPI),
    }
