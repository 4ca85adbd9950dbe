"""Wait for the end of a process that serves another process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading


async def wait_for_shutdown() -> None:
    """Wait for SIGTERM or Ctrl-C, or until the parent closes the standard input of this process or ends."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)

    def read() -> None:
        while os.read(0, 1 << 16):
            pass
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=read, name="owner", daemon=True).start()
    await over.wait()
