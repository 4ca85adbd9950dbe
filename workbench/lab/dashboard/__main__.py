"""``python -m workbench.lab.dashboard NAME --socket PATH``: serve the dashboard of a cluster on a Unix socket.

The variable `workbench.lab.dashboard.PREFIX` has the path of the dashboard in the browser, for example
``/user/x/dashboard/``. The process also forwards Dask's dashboard, in the head on any host, on another socket.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from distributed.comm.core import connect

from workbench.cancellation import run_to_end
from workbench.comm.unix_http import bridge_streams
from workbench.deploy.connection import HeadConnection
from workbench.errors import WorkbenchError
from workbench.lab.dashboard import PREFIX
from workbench.lab.dashboard.head_source import HeadSource
from workbench.lab.dashboard.lifetime import wait_for_shutdown
from workbench.lab.dashboard.server import serving

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
        await run_to_end(asyncio.gather(*tasks, return_exceptions=True))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket)  # noqa: PTH108  (no method of Path in an asynchronous function)


def main(arguments: Sequence[str]) -> int:
    """Serve until the parent process ends this one; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m workbench.lab.dashboard")
    parser.add_argument("name", help="the cluster")
    parser.add_argument("--socket", type=Path, required=True, help="path of the Unix socket; must not exist")
    parser.add_argument("--dask", help="address of Dask's dashboard, relative to this one")
    parser.add_argument("--dask-socket", type=Path, required=True, help="path of the socket for Dask's dashboard")
    options = parser.parse_args(arguments)
    try:
        asyncio.run(_serve(options))
    except WorkbenchError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


async def _serve(options: argparse.Namespace) -> None:
    async with (
        HeadSource(options.name) as source,
        bridge(source.connection, options.dask_socket),
        serving(source, options.name, options.socket, prefix=os.environ.get(PREFIX, ""), dask=options.dask),
    ):
        await wait_for_shutdown()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
