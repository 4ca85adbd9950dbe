"""Bytes of a socket through a connection of Dask's: a way to a server that listens on a Unix socket of the head's node.

It goes over the TLS of the scheduler, so it needs no port, and who has no certificate of the cluster cannot take it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed.comm.core import Comm

# Bytes of one message.
_PIECE = 1 << 16


async def bridge_streams(comm: Comm, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes in both directions until one side ends, and end the other.

    Parameters
    ----------
    comm
        Connection whose messages are pieces of bytes from now on; it is of no other use after that.
    reader, writer
        The socket.
    """
    ways = [asyncio.create_task(_to_comm(reader, comm)), asyncio.create_task(_to_socket(comm, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        writer.close()
        comm.abort()


async def _to_comm(reader: asyncio.StreamReader, comm: Comm) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            await comm.write(piece)
            # Dask does not wait for the socket. One that is slow would have everything kept here, and what is left of
            # it at the end would be lost; a write of nothing ends when all before it has been sent.
            stream = getattr(comm, "stream", None)
            if stream is not None and stream.writing():
                await stream.write(b"")


async def _to_socket(comm: Comm, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while True:
            writer.write(await comm.read())
            await writer.drain()
