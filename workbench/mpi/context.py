"""The place of this process in its MPI world, the threads of a rank that run calls and cells, and the abort.

The *SPMD thread* runs SPMD calls. It initializes MPI, so it may call MPI at any thread level;
with MPI_THREAD_FUNNELED or SERIALIZED no other thread may. Because it is a separate thread, an SPMD call does
not wait for a free task slot of the Dask worker, and cannot deadlock with tasks. The *main thread*
waits for the end of the worker, and becomes the IPython engine for the first cell.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class RankContext:
    """One rank's place in its MPI world and its communicators.

    Notes
    -----
    The communicators are duplicates of ``MPI_COMM_WORLD`` for separate uses, so that their messages cannot be confused;
    ``MPI_COMM_WORLD`` itself is not used. If `threads` is not ``multiple``, only the SPMD thread may use them.
    """

    rank: int
    """Rank in the world, and name of the worker in world 0."""
    size: int
    """Number of ranks of the world."""
    world: int
    """Index of the world in its cluster."""
    nodes: tuple[int, ...]
    """For each rank the first rank on its node."""
    threads: str
    """Thread level of MPI: ``single``, ``funneled``, ``serialized`` or ``multiple``."""
    library: str
    """Version string of the MPI library."""
    transport: MPI.Intracomm
    """Communicator for frames of the Dask transport."""
    spmd: MPI.Intracomm
    """Communicator for SPMD calls."""
    cells: MPI.Intracomm
    """Communicator for ``%%mpi`` cells."""
    spmd_thread: SpmdThread
    """The thread that makes the rank's MPI calls."""

    @property
    def node_ranks(self) -> int:
        """Ranks of the world on this node."""
        return self.nodes.count(self.nodes[self.rank])


# The context of this process, if the process is a rank.
_contexts: list[RankContext] = []


def is_rank() -> bool:
    """Return whether this process is a rank.

    Returns
    -------
    bool
        False in the notebook and in the head.
    """
    return bool(_contexts)


def is_in_cell() -> bool:
    """Return whether a ``%%mpi`` cell calls this, because no other code runs on the main thread of a rank."""
    return is_rank() and threading.current_thread() is threading.main_thread()


def current() -> RankContext:
    """Return the context of the rank that this code runs on.

    Returns
    -------
    RankContext
        The context.

    Raises
    ------
    RuntimeError
        If this process is not a rank, for example in the notebook.
    """
    if not _contexts:
        raise RuntimeError("this process is not a rank of a cluster. Call it on a rank, for example with client.run.")
    return _contexts[0]


def everyone() -> MPI.Intracomm:
    """Return the communicator of all ranks, for which ``MPI.COMM_WORLD`` is a name only outside calls and cells."""
    from mpi4py import MPI

    return cast("MPI.Intracomm", vars(MPI)["COMM_WORLD"])


def enter(context: RankContext) -> None:
    """Make this process the rank of `context`; called one time, at the start of a rank."""
    _contexts[:] = [context]


# Seconds for MPI to end the world, and seconds more until this process ends in any case.
_ABORT_TIMEOUT_S, _EXIT_DELAY_S = 5.0, 1.0


def abort_world(launcher: int | None) -> NoReturn:
    """End the world, and this process.

    Parameters
    ----------
    launcher
        Pid of the launcher's process that started this rank. The process gets SIGTERM if MPI does not end the world
        in 5 s: MPI does not notice the loss of a process that is not a rank yet, and ``MPI_Abort`` of two ranks at
        the same time can hang. None: no process gets a signal.

    Notes
    -----
    mpi4py holds the lock of the interpreter during ``MPI_Abort``, so no Python code runs if that hangs. The watchdog of
    `faulthandler`, which needs no lock, then ends this process, and the launcher reacts to the end of a rank.
    """
    from mpi4py import rc

    rc.initialize = False
    from mpi4py import MPI

    if MPI.Is_initialized() and not MPI.Is_finalized():
        faulthandler.dump_traceback_later(_ABORT_TIMEOUT_S + _EXIT_DELAY_S, exit=True, file=2)
        aborting = threading.Thread(target=MPI.COMM_WORLD.Abort, args=(1,), daemon=True)
        aborting.start()
        aborting.join(_ABORT_TIMEOUT_S)
    if launcher is not None:
        with contextlib.suppress(OSError):  # the launcher has ended meanwhile, or belongs to root
            os.kill(launcher, signal.SIGTERM)
    os._exit(1)


# Name of the SPMD thread.
_SPMD = "spmd"


class MainThread:
    """Runs functions on the main thread, one after another, until the rank ends.

    Attributes
    ----------
    ended : concurrent.futures.Future
        Done when the worker has ended.
    """

    def __init__(self, ended: Future[Any]) -> None:
        self.ended = ended
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()

    def submit(self, function: Callable[[], object]) -> None:
        """Call `function`, which handles its own errors, on the main thread. Thread-safe."""
        self._queue.put(function)

    def run(self) -> None:
        """Call submitted functions, on the main thread, until the worker has ended."""
        self.ended.add_done_callback(lambda _: self._queue.put(None))
        while (function := self._queue.get()) is not None:
            function()


def is_in_call() -> bool:
    """Return whether an SPMD call calls this, because no other code of a user runs on the SPMD thread of a rank."""
    return threading.current_thread().name == _SPMD


def end_copy(rank: int, error: BaseException | None = None) -> None:
    """End this process if code of the user has forked it from the process of the rank, and has not ended it.

    A copy of a rank would otherwise stay until the end of the cluster, and read the sockets of the rank.

    Parameters
    ----------
    rank
        Pid before the code.
    error
        The error with which the code has ended. Its exit code and its text are those of a Python program.
    """
    if os.getpid() == rank:
        return
    code = _exit_code(error)
    if not isinstance(code, int):
        with suppress(Exception):  # a stream of the user
            print(code, file=sys.stderr)  # noqa: T201  (as Python does)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a stream of the user
            stream.flush()
    os._exit(code & 0xFF)


@contextmanager
def without_copies() -> Iterator[Callable[[BaseException | None], None]]:
    """End the copies that code of the user leaves at the end of this context, or earlier with the function given."""
    end = partial(end_copy, os.getpid())
    try:
        yield end
    except BaseException as error:
        end(error)
        raise
    end(None)


def _exit_code(error: BaseException | None) -> object:
    """Return the exit code of a program that ends with an error, or what the program prints before exit code 1."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        return "".join(traceback.format_exception(error)).rstrip()
    # Not `code`, which an error that was unpickled by tblib does not have.
    code = next(iter(error.args), None)
    return 0 if code is None else code


P = ParamSpec("P")
T = TypeVar("T")


class SpmdThread:
    """Runs functions one after another, in the order of their submission."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        # A daemon thread, because a collective with dead ranks never returns, and must not keep the process.
        self._thread = threading.Thread(target=self._run, name=_SPMD, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call and return its future. Thread-safe; all ranks must queue collective calls in the same order."""
        future: Future[T] = Future()
        self._queue.put((future, lambda: function(*args, **kwargs)))
        return future

    def _run(self) -> None:
        while True:
            future, call = self._queue.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  (the caller gets all errors, also SystemExit)
                future.set_exception(error)
            # Otherwise these names would keep arguments and result alive until the next call.
            del future, call
