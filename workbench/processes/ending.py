"""The end of a child process: request, wait, then kill."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import Process
from collections.abc import Callable

from workbench.log import debug_log

# Seconds for a killed process to end.
_KILLED = 1.0


async def end(process: Process, timeout: float, name: str, request: Callable[[], object] | None = None) -> None:
    """Return when a process has ended: on `request` (default: SIGTERM), or killed after `timeout` seconds.

    `name` describes the process in the log.

    Notes
    -----
    Before CPython 3.12 `asyncio.subprocess.Process.wait` also waits until nobody has the pipes of the process, which a
    process that was started by the process may keep, as ``ssh`` does with ``ControlPersist``. So no wait is without a
    deadline, and the pipes are closed here.
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
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KILLED):
                    await process.wait()
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001  (asyncio has no public way)
    debug_log.ended(process.pid, process.returncode, "%s", name)
