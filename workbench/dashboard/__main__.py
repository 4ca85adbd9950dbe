"""``python -m workbench.dashboard NAME --socket PATH``: serve the dashboard of a cluster on a Unix socket.

The variable `workbench.dashboard.PREFIX` has the path of the dashboard in the browser, for example
``/user/x/dashboard/``. The process also forwards Dask's dashboard on another socket, since it is connected to the head.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from workbench.dashboard import PREFIX
from workbench.dashboard.dask_bridge import bridge
from workbench.dashboard.head_source import HeadSource
from workbench.dashboard.lifetime import wait_for_shutdown
from workbench.dashboard.server import serving
from workbench.errors import WorkbenchError


def main(arguments: Sequence[str]) -> int:
    """Serve until the parent process ends this one; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m workbench.dashboard")
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
