"""Pause of the periodic callbacks of a worker while the rank computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Worker

# Callbacks that run many times per second, and take the GIL from the code of the user. The heartbeat and the memory
# monitor continue.
_PAUSED = ("tick", "ticks", "monitor", "profile", "profile-cycle")


@contextmanager
def pause_periodic_callbacks(worker: Worker) -> Iterator[None]:
    """Pause these callbacks in the context. On the event loop of the worker."""
    from distributed.metrics import time

    callbacks = map(worker.periodic_callbacks.get, _PAUSED)
    paused = [callback for callback in callbacks if callback and callback.is_running()]
    for callback in paused:
        callback.stop()
    try:
        yield
    finally:
        # Otherwise distributed would log the pause as an unresponsive event loop.
        worker._last_tick = time()  # noqa: SLF001  (there is no public way)
        for callback in paused:
            callback.start()
