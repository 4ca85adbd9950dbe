"""Work that must end also if its task is canceled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def run_to_end(work: Awaitable[T], stop: asyncio.Future[None] | None = None) -> T:
    """Return the result of `work`, which a cancellation does not interrupt: `stop` asks `work` to end.

    A task may be canceled several times, and each cancellation would end what a ``finally`` awaits, for example the
    end of a process. So each ``await`` in a ``finally`` awaits this function, and `work` has a deadline.
    """
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if stop is not None and not stop.done():
            stop.set_result(None)
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        if not working.cancelled():
            working.exception()  # without this asyncio logs a traceback
        raise
