"""Carries the bytes of a socket through a Dask connection, to a server in the head.

The connection uses the TLS of the scheduler, so the bridge needs no port, and requires the cluster's certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from workbench.cancellation import run_to_end

if TYPE_CHECKING:
    from distributed.comm.core import Comm

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
