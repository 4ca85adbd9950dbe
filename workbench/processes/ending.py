"""The end of a process that this one has started: asked, waited for, then killed."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import Process
from collections.abc import Callable

from workbench.log import debug_log


async def end(process: Process, timeout: float, what: str, ask: Callable[[], object] | None = None) -> None:
    """End a process, and return when it has ended.

    Parameters
    ----------
    process
        The process.
    timeout
        Seconds after which it is killed.
    what
        What the process is, for the log.
    ask
        Asks it to end. Default: SIGTERM.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            (ask or process.terminate)()
        try:
            async with asyncio.timeout(timeout):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    debug_log.ended(process.pid, process.returncode, "%s", what)
