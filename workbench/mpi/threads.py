"""The two threads of a rank that run what concerns MPI and cells.

The *SPMD thread* makes the MPI calls of calls on all ranks. It initialises MPI, so it may call MPI at any thread level;
with MPI_THREAD_FUNNELED or SERIALIZED it is the only one that may. Being a thread of its own, a collective call does
not wait for a free task slot of the Dask worker, and cannot deadlock with the tasks that hold them. The *main thread*
waits for the end of the worker, and becomes the IPython engine when it is asked to.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar


class MainThread:
    """Runs functions on the main thread, one after another, until the rank ends.

    Attributes
    ----------
    ended : concurrent.futures.Future
        Done when the worker has ended: what the rank lives for.
    """

    def __init__(self, ended: Future[Any]) -> None:
        self.ended = ended
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def submit(self, function: Callable[[], None]) -> None:
        """Have the main thread call `function`, which handles its errors itself. Thread-safe."""
        self._queue.put(function)

    def run(self) -> None:
        """Call what is submitted until the worker has ended. On the main thread."""
        self.ended.add_done_callback(lambda _: self._queue.put(None))
        while (function := self._queue.get()) is not None:
            function()


P = ParamSpec("P")
T = TypeVar("T")


class SpmdThread:
    """Runs functions one after another, in the order they came."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        # A daemon: a collective whose peers died never returns, and must not keep the process.
        self._thread = threading.Thread(target=self._run, name="spmd", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call and return its future.

        Notes
        -----
        Thread-safe. All ranks of a world have to queue their collective calls in the same order.
        """
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
            except BaseException as error:  # noqa: BLE001  (whoever waits gets it, SystemExit too)
                future.set_exception(error)
            # Until the next call they would hold what this one was given, and has returned.
            del future, call
