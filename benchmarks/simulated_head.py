"""``python -m benchmarks.simulated_head FOLDER RANKS NODES``: what a head does for metrics, and nothing else.

It serves under the TLS of the certificate in the folder, prints its address, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from distributed.core import Server, Status

from benchmarks.simulated_nodes import host
from workbench.comm import certificates
from workbench.lab.observer import wait_for_shutdown
from workbench.metrics.head import Metrics

if TYPE_CHECKING:
    from distributed.comm.core import Comm


async def main(folder: Path, ranks: int, nodes: int) -> None:
    """Serve until the end of the standard input."""
    logging.getLogger("distributed").setLevel(logging.WARNING)
    metrics = Metrics(dict)
    for rank in range(ranks):
        facts = {"size": ranks, "host": host(rank * nodes // ranks), "cores": 16, "cpus": range(16), "start": ""}
        metrics.store.joined(0, rank, facts)
    server = Server({}, stream_handlers=metrics.stream_handlers)

    async def node(comm: Comm) -> Status:
        await server.handle_stream(comm, extra={"worker": ""})
        return Status.dont_reply

    server.handlers |= {**metrics.handlers, "node": node}
    arguments = certificates.security(folder).get_listen_args("scheduler")
    await server.listen("tls://127.0.0.1:0", **arguments)
    print(server.address, flush=True)
    ticking = asyncio.create_task(metrics.run())
    await wait_for_shutdown()
    ticking.cancel()
    await server.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
