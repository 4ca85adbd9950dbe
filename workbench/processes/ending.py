"""The end of a child process: request, wait, then kill."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import Process
from collections.abc import Callable

from workbench.log import debug_log


async def end(process: Process, timeout: float, name: str, request: Callable[[], object] | None = None) -> None:
    """Return when a process has ended: on `request` (default: SIGTERM), or killed after `timeout` seconds.

    `name` describes the process in the log.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            (request or process.terminate)()
        try:
            async with asyncio.timeout(timeout):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    debug_log.ended(process.pid, process.returncode, "%s", name)
