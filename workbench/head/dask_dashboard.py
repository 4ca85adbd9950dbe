"""Dask's own dashboard, on the scheduler's HTTP socket: loaded when somebody wants to look at it, and not before."""

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
    """Dask's dashboard.

    Parameters
    ----------
    scheduler
        Of which it is; its HTTP server gets the pages.
    """

    def __init__(self, scheduler: HeadScheduler) -> None:
        self._scheduler = scheduler
        self._lock, self._opened = asyncio.Lock(), False

    async def tunnel(self, comm: Comm) -> Status:
        """Lead a client to the pages: from now on the connection carries the bytes of one to their HTTP server.

        Parameters
        ----------
        comm
            The connection, of a client that has the cluster's certificate.
        """
        await self._open()
        reader, writer = await asyncio.open_unix_connection(self._scheduler.http_socket)
        await bridge_streams(comm, reader, writer)
        return Status.dont_reply

    async def _open(self) -> None:
        """Have the pages served, to the end of the cluster."""
        async with self._lock:
            if not self._opened:
                # Half a second of imports, in which the head goes on.
                pages = await asyncio.to_thread(importlib.import_module, _PAGES)
                server = self._scheduler.http_server
                # Dask asks for it, to name the origin of its pages; a Unix socket has none.
                server.port = 0
                pages.connect(self._scheduler.http_application, server, self._scheduler)
                self._opened = True
