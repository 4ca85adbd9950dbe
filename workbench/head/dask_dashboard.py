"""Dask's own dashboard, on the scheduler's HTTP socket, loaded at its first use."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

from distributed.core import Status

from workbench.comm.stream_bridge import bridge_streams

if TYPE_CHECKING:
    from distributed.comm.core import Comm

    from workbench.head.scheduler import HeadScheduler

_PAGES = "distributed.dashboard.scheduler"


class DaskDashboard:
    """Dask's dashboard, on the HTTP server of a scheduler."""

    def __init__(self, scheduler: HeadScheduler) -> None:
        self._scheduler = scheduler
        self._lock, self._opened = asyncio.Lock(), False

    async def tunnel(self, comm: Comm) -> Status:
        """Connect a client to the HTTP server of the pages: the connection carries the bytes from now on."""
        await self._open()
        reader, writer = await asyncio.open_unix_connection(self._scheduler.http_socket)
        await bridge_streams(comm, reader, writer)
        return Status.dont_reply

    async def _open(self) -> None:
        """Add the pages to the HTTP server, one time."""
        async with self._lock:
            if not self._opened:
                # The imports take half a second, so a thread does them.
                pages = await asyncio.to_thread(importlib.import_module, _PAGES)
                server = self._scheduler.http_server
                # Dask needs a port for the origin of its pages, and a Unix socket has none.
                server.port = 0
                pages.connect(self._scheduler.http_application, server, self._scheduler)
                self._opened = True
