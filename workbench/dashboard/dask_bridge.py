"""A Unix socket of this host that leads to Dask's own dashboard in the head, wherever that is."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from distributed.comm.core import connect

from workbench.comm.stream_bridge import bridge_streams
from workbench.deploy.connection import HeadConnection

# Seconds to reach the head.
_CONNECT_TIMEOUT_S = 10.0


@asynccontextmanager
async def bridge(connection: HeadConnection, socket: Path) -> AsyncIterator[None]:
    """Serve Dask's pages on a socket of mode 0600, to the end of the block.

    Parameters
    ----------
    connection
        To the head; open.
    socket
        Path of the socket, which must not be there yet.
    """
    open_ones: set[asyncio.Task[None]] = set()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            comm = await connect(
                connection.address, timeout=_CONNECT_TIMEOUT_S, **connection.security.get_connection_args("client")
            )
            await comm.write({"op": "workbench_dask_pages", "reply": False})
        except OSError:
            writer.close()  # who asks sees that nobody is there
            return
        await bridge_streams(comm, reader, writer)

    def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(lead(reader, writer))
        open_ones.add(task)
        task.add_done_callback(open_ones.discard)

    mask = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(attend, socket)
    finally:
        os.umask(mask)
    try:
        yield
    finally:
        server.close()
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket)  # noqa: PTH108  (no method of Path in an asynchronous function)
