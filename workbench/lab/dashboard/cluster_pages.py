"""The pages of a running cluster: its dashboard, and the pages of Dask in its head, which may be on another host."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from distributed.comm.core import connect

from workbench.cancellation import run_to_end
from workbench.comm.unix_http import bridge_streams
from workbench.deploy.connection import HeadConnection
from workbench.lab.dashboard.head_source import HeadSource
from workbench.lab.dashboard.server import serving

_CONNECT_TIMEOUT_S = 10.0


@asynccontextmanager
async def cluster_pages(name: str, prefix: str, dashboard: Path, dask: Path) -> AsyncIterator[Callable[[], bool]]:
    """Serve both kinds of pages on new sockets of mode 0600 until the end of the block.

    Parameters
    ----------
    name
        Name of the cluster.
    prefix
        Path of the dashboard in the browser.
    dashboard, dask
        Paths of the sockets.

    Yields
    ------
    is_watched
        Returns whether a browser shows a page.

    Raises
    ------
    ClusterNotFound
        If no cluster of that name runs.
    HeadUnreachable
        If its head does not answer.
    """
    # In a thread, since it reads the record, and may query schedulers.
    async with (
        await asyncio.to_thread(HeadSource, name) as source,
        _bridge(source.connection, dask) as bridges,
        serving(source, name, dashboard, prefix=prefix, dask=f"../../dask/{name}/status") as store,
    ):
        yield lambda: bool(bridges) or store.is_watched


@asynccontextmanager
async def _bridge(connection: HeadConnection, socket: Path) -> AsyncIterator[Collection[object]]:
    """Serve Dask's pages on a socket over an open connection; yield the connections of browsers."""
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
        yield tasks
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await run_to_end(asyncio.gather(*tasks, return_exceptions=True))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket)  # noqa: PTH108  (no method of Path in an asynchronous function)
