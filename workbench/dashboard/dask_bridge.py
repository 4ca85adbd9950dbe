"""A Unix socket on this host that forwards to Dask's dashboard in the head, on any host."""

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

_CONNECT_TIMEOUT_S = 10.0


@asynccontextmanager
async def bridge(connection: HeadConnection, socket: Path) -> AsyncIterator[None]:
    """Serve Dask's dashboard on a new socket of mode 0600 until the end of the block, over an open connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            comm = await connect(
                connection.address, timeout=_CONNECT_TIMEOUT_S, **connection.security.get_connection_args("client")
            )
            await comm.write({"op": "workbench_dask_pages", "reply": False})
        except OSError:
            writer.close()  # the client sees a closed connection
            return
        await bridge_streams(comm, reader, writer)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(forward(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    mask = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(accept, socket)
    finally:
        os.umask(mask)
    try:
        yield
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket)  # noqa: PTH108  (no method of Path in an asynchronous function)
