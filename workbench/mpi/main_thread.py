"""The main thread of a rank: it waits for the end of the worker, and becomes the IPython engine when it is asked to."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


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
