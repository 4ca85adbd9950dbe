"""Coroutines in cells: the event loop of the engine runs the cell, so that code of the cell cannot use this loop."""

from __future__ import annotations

import asyncio
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

# The task of a cell with ``await`` at the top level, while the cell runs.
_task: asyncio.Task[Any] | None = None


@contextmanager
def no_event_loop() -> Iterator[None]:
    """Let `asyncio.run` and similar functions start a loop, as in a thread without one."""
    loop = _get_running_loop()
    _set_running_loop(None)
    try:
        yield
    finally:
        _set_running_loop(loop)
        asyncio.set_event_loop(loop)


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a cell with ``await`` at the top level in a loop of the cell; tasks that the cell leaves are cancelled."""
    global _task  # noqa: PLW0603  (the handler of a signal has no other way to the task)
    with asyncio.Runner() as runner:
        _task = runner.get_loop().create_task(coroutine)
        try:
            return runner.get_loop().run_until_complete(_task)
        finally:
            _task = None


def interrupt_coroutine() -> None:
    """Cancel the cell if its coroutine waits. In the handler of a signal."""
    if _task is not None:
        _task.get_loop().call_soon_threadsafe(_task.cancel)


def is_interrupted() -> bool:
    """Return whether the cell that runs was cancelled by `interrupt_coroutine`."""
    return _task is not None and _task.cancelling() > 0
