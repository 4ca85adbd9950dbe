"""Bytes of a socket through a connection of Dask's, to one who reads slowly."""

from __future__ import annotations

import asyncio

from distributed.comm import connect, listen

from workbench.comm import certificates
from workbench.comm.unix_http import bridge_streams

PIECE, PIECES = 1 << 16, 512


async def test_one_who_reads_slowly_gets_everything_and_it_is_not_kept_on_the_way(tmp_path):
    certificates.make(tmp_path, "tunnel")
    security = certificates.security(tmp_path)
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    far, kept = [], []

    async def answer(reader, writer):
        await reader.readline()
        for _ in range(PIECES):
            writer.write(bytes(PIECE))
            await writer.drain()
            stream = far[0].stream
            kept.append(stream._total_write_index - stream._total_write_done_index)
        writer.close()

    async def head(comm):
        far.append(comm)
        await bridge_streams(comm, *await asyncio.open_unix_connection(inner))

    async def lead(reader, writer):
        comm = await connect(listener.contact_address, **security.get_connection_args("client"))
        await bridge_streams(comm, reader, writer)

    async with (
        await asyncio.start_unix_server(answer, inner),
        listen("tls://127.0.0.1:0", head, **security.get_listen_args("scheduler")) as listener,
        await asyncio.start_unix_server(lead, outer),
    ):
        reader, writer = await asyncio.open_unix_connection(outer)
        writer.write(b"GET\n")
        arrived = 0
        while piece := await reader.read(PIECE):
            arrived += len(piece)
            for _ in range(10):  # the others run ten times as fast
                await asyncio.sleep(0)
        writer.close()

    assert arrived == PIECES * PIECE
    assert max(kept) < 2 * PIECE
