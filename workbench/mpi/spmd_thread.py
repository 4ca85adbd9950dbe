"""The thread of a rank that makes its MPI calls.

It initialises MPI, so it may call MPI at any thread level; with MPI_THREAD_FUNNELED or SERIALIZED it is the
only one that may. Being a thread of its own, a collective call does not wait for a free task slot of the
Dask worker, and cannot deadlock with the tasks that hold them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

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
