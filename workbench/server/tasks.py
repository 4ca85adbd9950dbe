"""What the server sees to beside its requests, each a task that is kept until it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class BackgroundTasks:
    """Base of what follows processes that act, and go on by themselves when the server stops.

    Parameters
    ----------
    changed
        Called when one has begun or ended.

    Notes
    -----
    For one event loop.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether any goes on."""
        return bool(self._tasks)

    def close(self) -> None:
        """Follow none of them any more."""
        for task in self._tasks:
            task.cancel()

    def _spawn(self, duty: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(duty)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
