"""The life of a rank in its world: initialize MPI, get the address of the scheduler, run the worker.

These functions import ``mpi4py.MPI``; no module that the kernel loads does.
"""

from __future__ import annotations

import asyncio
import builtins
import functools
import gc
import getpass
import importlib
import os
import pickle
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import cloudpickle

from workbench import comm
from workbench.collective import process_state
from workbench.deploy import logs, registry
from workbench.deploy.folder import RECORD, ClusterFolder
from workbench.deploy.record import Record
from workbench.errors import ClusterNotFound, InvalidRequest, LaunchError
from workbench.gpu import visible
from workbench.hints import Command
from workbench.host import output
from workbench.mpi.context import MainThread, RankContext, SpmdThread, enter

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")


def live(record: Record, index: int, ranks: int, timeout: float, times: dict[str, float]) -> bool | None:
    """Join the world of so many ranks within `timeout` seconds, and run the worker of this rank to its end.

    Returns `RankWorker.finalize`. The times of the steps, in seconds since the epoch, are added to `times`.
    """
    deadline = time.monotonic() + timeout
    if record.resources.gpus_per_rank:
        # Before MPI, which may open the GPUs that it sees.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order of the schedulers and of NVML
        os.environ.update(visible.of_rank(os.environ, record.resources.gpus_per_rank, visible.installed()))
    thread = SpmdThread()
    # MPI waits for its peers while this thread imports Dask.
    opening = thread.submit(init_mpi, ranks, index, thread)
    from workbench.rank import worker

    gc.freeze()
    gc.enable()
    times["imported"] = time.time()

    context = _result(opening, deadline, "MPI_Init")
    times["in MPI"] = time.time()
    if record.resources.gpus_per_rank:
        visible.check(os.environ, context.node_ranks)
    # A template, if there is one, has imported these modules. Some modules use MPI when they are imported.
    names = ["workbench.mpi.comm_world", *record.preload]
    for name in names:
        names += getattr(importlib.import_module(name), "PRELOAD", ())
    enter(context)
    _ignore_finalize()
    _send_by_value()
    _refuse_input()
    _log_to(logs.of_rank(ClusterFolder.of(record).logs, context.rank))
    description = f"rank {context.rank} of {context.size}, {context.library}, MPI_THREAD_{context.threads.upper()}"
    print(description, flush=True)  # noqa: T201  (this is the rank's log)
    read = functools.partial(address_and_name, record, deadline)
    sent = thread.submit(broadcast_line, context, read, deadline)
    line = _result(sent, deadline, "the address of the scheduler")
    times["addressed"] = time.time()
    _close_input()
    address, name = line.split()
    if record.protocol == "mpi" and can_transport(context):
        comm.join(context.transport, name)

    registered, ended = threading.Event(), Future[bool | None]()
    main_thread = MainThread(ended)
    # Queued before the head knows this rank, and so before any request of the head to a rank.
    barrier = thread.submit(_join_barrier, context, registered, ended, deadline)

    def run() -> None:
        serving = worker.serve(
            context, record, address, _left(deadline), registered, start=name, main_thread=main_thread, times=times
        )
        try:
            ended.set_result(asyncio.run(serving))
        except BaseException as error:  # noqa: BLE001  (the main thread decides)
            ended.set_exception(error)
            registered.set()

    threading.Thread(target=run, name="dask-worker", daemon=True).start()
    registered.wait(_left(deadline) + 1)
    if not ended.done():
        _result(barrier, deadline, "the other ranks")
        # From here on a failure of this rank must not end the other ranks.
        finalize = _wait(ended, main_thread)
        worker.has_closed()
        return finalize
    return ended.result()


def _join_barrier(
    context: RankContext, registered: threading.Event, ended: Future[bool | None], deadline: float
) -> None:
    """Wait on the SPMD thread until this rank is registered, then for the other ranks."""
    registered.wait(_left(deadline) + 1)
    if not ended.done():
        barrier(context, deadline)


def _wait(ended: Future[bool | None], main_thread: MainThread) -> bool | None:
    try:
        main_thread.run()
        return ended.result()
    except BaseException:  # noqa: BLE001  (printed, then the process ends)
        traceback.print_exc()
        return None


def address_and_name(record: Record, deadline: float) -> str:
    """Return the scheduler's address, and a unique name for this start of the world."""
    address = sys.stdin.readline().strip() or None
    while address is None:
        # The head has ended, or the launcher does not forward its standard input; the record has the address, too.
        try:
            current = registry.read(record.name)
        except ClusterNotFound:
            current = None
        if current is None or current.id != record.id or current.process.alive() is False:
            raise ConnectionError("the head ended before it sent the address of its scheduler. See head.log.")
        address = current.address
        if address is None and time.monotonic() > deadline:
            raise TimeoutError(
                "the launcher of the ranks does not forward its standard input to rank 0, and "
                f"{ClusterFolder.of(record).path / RECORD} has no address of the scheduler yet. See head.log."
            )
        time.sleep(0 if address else 0.05)
    return f"{address} {secrets.token_hex(16)}"


def _close_input() -> None:
    """Give user code that reads standard input an end of file: launchers leave the input open."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, sys.stdin.fileno())
    os.close(null)


def _result(future: Future[T], deadline: float, event: str) -> T:
    """Return the result of a call on the SPMD thread; raise TimeoutError after the deadline."""
    # The call has the same deadline, and its error has more details.
    if not wait_for([future], _left(deadline) + 1).done:
        raise _timed_out(event)
    return future.result()


def _timed_out(event: str) -> TimeoutError:
    return TimeoutError(f"the wait for {event} has timed out. See the logs of the other ranks.")


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())


def _log_to(path: Path) -> None:
    with logs.append(path) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    output.flush_c()
    process_state.keep_output()


def _ignore_finalize() -> None:
    """Let `MPI.Finalize()` do nothing: MPI ends with the cluster, not with a program in a call, a cell or a task."""
    from mpi4py import MPI

    @functools.wraps(MPI.Finalize)
    def finalize() -> None: ...

    MPI.Finalize = finalize


def _refuse_input() -> None:
    """Let `input` and `getpass`, and so debuggers, raise an error with a remedy, not one of the end of a file."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise InvalidRequest(
            "a rank has no keyboard, so input(), getpass() and breakpoint() cannot be used on ranks. Ask for the value "
            "in the notebook, and pass it as an argument of the call or in the first line of the cell. Debug a "
            "function in the notebook, with MPI.COMM_SELF as its communicator."
        )

    builtins.input = getpass.getpass = refuse


def _send_by_value() -> None:
    """Let mpi4py's object methods and `multiprocessing` send objects of classes of the notebook with their classes.

    `pickle` sends the names of classes, which other ranks do not find.
    """
    from mpi4py import MPI

    MPI.pickle.__init__(_or_by_value(pickle.dumps), None, pickle.HIGHEST_PROTOCOL)  # type: ignore[misc]
    ForkingPickler.dumps = _or_by_value(ForkingPickler.dumps)  # type: ignore[method-assign]


def _or_by_value(dumps: Callable[..., Any]) -> Callable[..., Any]:
    # Not ``**options``, with which a small object takes twice as long.
    def dumps_or_by_value(obj: Any, protocol: int | None = None, *, buffer_callback: Any = None) -> Any:
        try:
            if buffer_callback is None:
                return dumps(obj, protocol)
            return dumps(obj, protocol, buffer_callback=buffer_callback)
        except (pickle.PicklingError, AttributeError):
            # Without the callback, which may have buffers of the failed attempt: `loads` would read those as the
            # buffers of this one.
            return cloudpickle.dumps(obj, protocol)

    return dumps_or_by_value


def init_mpi(ranks: int, world: int, thread: SpmdThread) -> RankContext:
    """Initialize MPI and return this rank's context. Runs on the SPMD thread; collective.

    Raises
    ------
    LaunchError
        If the size of the MPI world is not the number of started ranks; most often each rank is a separate world.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    # At exit an MPI_Finalize of one rank would wait for dead ranks, or end the other ranks.
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    # The numbers of the levels differ between ABIs of MPI.
    levels = {
        getattr(MPI, name): name.removeprefix("THREAD_").lower() for name in dir(MPI) if name.startswith("THREAD_")
    }
    required = mpi4py.rc.thread_level or "multiple"
    level = MPI.Init_thread(getattr(MPI, f"THREAD_{required.upper()}"))
    everyone = MPI.COMM_WORLD
    library = MPI.Get_library_version().split(",")[0].strip("\0 \n")
    if everyone.size != ranks:
        raise LaunchError(
            f"the MPI world has {everyone.size} ranks, but {ranks} ranks were started: mpiexec and the library of "
            f"mpi4py ({library}) are of different MPIs, or the launcher of the ranks does not support the interface of "
            "the library (PMI).",
            hint=("Run ", Command("doctor"), ". In a Slurm job, set workbench.mpi.launcher to mpiexec."),
        )
    node = everyone.Split_type(MPI.COMM_TYPE_SHARED)
    nodes = tuple(everyone.allgather(node.bcast(everyone.rank)))
    node.Free()
    return RankContext(
        rank=everyone.rank,
        size=everyone.size,
        world=world,
        nodes=nodes,
        threads=levels[level],
        library=library,
        transport=everyone.Dup(),
        spmd=everyone.Dup(),
        cells=everyone.Dup(),
        spmd_thread=thread,
    )


def can_transport(context: RankContext) -> bool:
    """Return whether MPI can transport Dask's messages from the event loop's thread, at the same time as SPMD calls."""
    return context.threads == "multiple"


def broadcast_line(context: RankContext, read: Callable[[], str], deadline: float) -> str:
    """Return on every rank the line that `read` returns on rank 0. Runs on the SPMD thread; collective.

    Parameters
    ----------
    deadline
        Time (``time.monotonic``) by which each rank needs the line.
    """
    import numpy as np

    # Any address fits into 4 kB; a fixed size saves a second message with the length.
    buffer = np.zeros(4096, dtype=np.uint8)
    if context.rank == 0:
        line = read().encode()
        buffer[: len(line)] = bytearray(line)
    wait(context.spmd.Ibcast(buffer, root=0), deadline, "the scheduler's address from rank 0")
    return buffer.tobytes().rstrip(b"\0").decode()


def barrier(context: RankContext, deadline: float) -> None:
    """Return when all ranks have called it. Runs on the SPMD thread; collective."""
    wait(context.spmd.Ibarrier(), deadline, f"all {context.size} ranks of the world")


def wait(request: MPI.Request, deadline: float, event: str) -> None:
    """Wait for a request without occupying the core, which a blocking MPI call would do.

    Raises
    ------
    TimeoutError
        If the request is not complete at `deadline`.
    """
    pause = 0.0005
    while not request.Test():
        if time.monotonic() > deadline:
            raise _timed_out(event)
        time.sleep(pause)
        pause = min(2 * pause, 0.01)
