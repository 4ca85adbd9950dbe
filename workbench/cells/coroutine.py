"""Coroutines in cells: the event loop of the engine runs the cell, so that code of the cell cannot use this loop."""

from __future__ import annotations

import asyncio
import time
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

# Time in which a cell that was canceled ends itself.
_PATIENCE = 2.0
# Time of tasks that a cell leaves to end after their cancellation.
_LEAVE = 5.0

# The task of a cell with ``await`` at the top level, while the cell runs.
_task: asyncio.Task[Any] | None = None
_interrupted_at: float | None = None


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
    """Run a cell with ``await`` at the top level in a loop of the cell; tasks that the cell leaves are canceled.

    Threads that the cell leaves are not awaited, unlike in `asyncio.Runner`, which waits as long as they run.
    """
    global _task, _interrupted_at  # noqa: PLW0603  (the handler of a signal has no other way to the task)
    engine = _get_running_loop()  # none in a cell, but that of the engine in code of a view
    _set_running_loop(None)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        _interrupted_at, _task = None, loop.create_task(coroutine)
        try:
            return loop.run_until_complete(_task)
        except KeyboardInterrupt:
            _cancel(loop)
            if not _task.done():
                raise
            return _task.result()
        finally:
            with suppress(KeyboardInterrupt):
                _cancel(loop)
                loop.run_until_complete(asyncio.wait_for(loop.shutdown_asyncgens(), _LEAVE))
    finally:
        _task = None
        loop.close()
        asyncio.set_event_loop(engine)
        _set_running_loop(engine)


def _cancel(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks of a loop, and give them some time to end."""
    if tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=_LEAVE))


def interrupt_coroutine(frame: FrameType | None) -> None:
    """Cancel the cell if its coroutine waits, or raise in code of another task and if the cell does not end.

    In the handler of a signal, which has interrupted the frame.
    """
    global _interrupted_at  # noqa: PLW0603
    if _task is None:
        return
    if _interrupted_at is None:
        _interrupted_at = time.monotonic()
    if _is_in_other_task(frame) or time.monotonic() - _interrupted_at > _PATIENCE:
        raise KeyboardInterrupt
    _task.get_loop().call_soon_threadsafe(_task.cancel)


def _is_in_other_task(frame: FrameType | None) -> bool:
    """Return whether the loop of the cell runs, in this frame, other code than IPython's, which runs the cell."""
    called = ""
    while frame is not None and frame.f_code is not run_coroutine.__code__:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in ("asyncio", "selectors", __name__.partition(".")[0]):
            called = package
        frame = frame.f_back
    return called not in ("", "IPython")


def is_interrupted() -> bool:
    """Return whether the cell that runs was canceled by `interrupt_coroutine`."""
    return _task is not None and _task.cancelling() > 0
