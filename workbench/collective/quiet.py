"""A worker that keeps still while its rank computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Worker

# What a worker does many times a second for its own sake: each takes the GIL from the code of the user. The heartbeat
# and the watch over memory go on.
_NOISE = ("tick", "ticks", "monitor", "profile", "profile-cycle")


@contextmanager
def pause_periodic_callbacks(worker: Worker) -> Iterator[None]:
    """Have a worker make no noise for a while. For its event loop."""
    from distributed.metrics import time

    noise = [callback for name in _NOISE if (callback := worker.periodic_callbacks.get(name)) and callback.is_running()]
    for callback in noise:
        callback.stop()
    try:
        yield
    finally:
        # Else it would take the pause for a loop that stood still, and say so in the log.
        worker._last_tick = time()  # noqa: SLF001  (there is no public way)
        for callback in noise:
            callback.start()
