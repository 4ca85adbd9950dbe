"""Dask's HTTP servers on Unix sockets, and the bridge to them through a Dask connection.

Each Dask scheduler and worker binds an HTTP port, also with ``dashboard=False``, which serves logs and task names
without authentication. On a shared node every user could read them, so the port becomes a socket file of mode 0600.

The connection uses the TLS of the scheduler, so the bridge needs no port, and requires the cluster's certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cancellation import run_to_end

if TYPE_CHECKING:
    from distributed.comm.core import Comm


class UnixHTTP:
    """Mix-in before Dask's ``Scheduler`` or ``Worker`` that serves HTTP only on the Unix socket `http_socket`.

    It replaces ``ServerNode.start_http_server``, and publishes no port as a service, so Dask shows no broken link.
    """

    http_application: Any
    http_server: Any

    def __init__(self, *args: Any, http_socket: Path, **kwargs: Any) -> None:
        # Dask starts HTTP in the constructor of the node.
        self.http_socket = http_socket
        super().__init__(*args, **kwargs)

    def start_http_server(
        self, routes: Any, dashboard_address: Any, default_port: int = 0, ssl_options: Any = None
    ) -> None:
        """Serve `routes` on the Unix socket; addresses and ports are not used."""
        from distributed.http.routing import RoutingApplication
        from tornado.httpserver import HTTPServer
        from tornado.netutil import bind_unix_socket

        self.http_application = RoutingApplication(routes)
        self.http_server = HTTPServer(self.http_application)
        self.http_server.add_socket(bind_unix_socket(str(self.http_socket), mode=0o600))


# Bytes of one message.
_PIECE = 1 << 16


async def bridge_streams(comm: Comm, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes in both directions until one side ends, and then close both; `comm` has no other use after that."""
    ways = [asyncio.create_task(_to_comm(reader, comm)), asyncio.create_task(_to_socket(comm, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await run_to_end(asyncio.gather(*ways, return_exceptions=True))
        writer.close()
        comm.abort()


async def _to_comm(reader: asyncio.StreamReader, comm: Comm) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            await comm.write(piece)
            # Dask does not wait for the socket. With a slow socket all data would collect here, and the rest would be
            # lost at the end. An empty write completes when all data before it has been sent.
            stream = getattr(comm, "stream", None)
            if stream is not None and stream.writing():
                await stream.write(b"")


async def _to_socket(comm: Comm, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while True:
            writer.write(await comm.read())
            await writer.drain()
