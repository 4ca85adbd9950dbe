"""The two threads of a rank that run MPI calls and cells.

The *SPMD thread* runs SPMD calls. It initializes MPI, so it may call MPI at any thread level;
with MPI_THREAD_FUNNELED or SERIALIZED no other thread may. Because it is a separate thread, an SPMD call does
not wait for a free task slot of the Dask worker, and cannot deadlock with tasks. The *main thread*
waits for the end of the worker, and becomes the IPython engine for the first cell.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

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
