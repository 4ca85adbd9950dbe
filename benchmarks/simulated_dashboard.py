"""``python -m benchmarks.simulated_dashboard RANKS NODES SOCKET [PREFIX [DASK]]``: that of a simulated cluster.

It is served on a Unix socket, as always, which a browser does not reach: a port of 127.0.0.1, which is printed, leads
to it. It ends as the dashboard does, when its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from benchmarks.simulated import Simulated
from workbench.lab.dashboard.server import serving
from workbench.lab.observer import wait_for_shutdown
from workbench.metrics.schema import TICK

PACE = "WORKBENCH_BENCH_PACE"
"""Variable of how much faster than usual time goes by in it, and with it everything."""


async def main(ranks: int, nodes: int, socket: str, prefix: str = "", dask: str = "") -> None:
    """Serve until the end of the standard input."""
    pace, begin = float(os.environ.get(PACE, "1")), time.time()
    source = Simulated(ranks, nodes, clock=lambda: begin + pace * (time.time() - begin))

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_unix_connection(socket)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(1 << 16):
                    target.write(data)
                    await target.drain()
            except ConnectionError:
                pass
            finally:
                target.close()

        await asyncio.gather(copy(reader, outer), copy(inner, writer))

    every = TICK / pace
    async with serving(source, "simulated", Path(socket), prefix=prefix, dask=dask or None, every=every):
        bridge = await asyncio.start_server(lead, "127.0.0.1")
        print(bridge.sockets[0].getsockname()[1], flush=True)
        await wait_for_shutdown()
        bridge.close()


if __name__ == "__main__":
    _, *words = sys.argv
    asyncio.run(main(int(words[0]), int(words[1]), *words[2:]))
