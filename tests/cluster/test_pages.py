"""The pages of a real cluster, as the observer serves them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from support.processes import DEADLINE, until

from workbench import MPICluster
from workbench.host import node_dirs
from workbench.lab.dashboard.cluster_pages import cluster_pages


@pytest.fixture(scope="module")
def name():
    with MPICluster(1, quiet=True) as cluster:
        yield cluster.record.name


@asynccontextmanager
async def asked(socket, path):
    """Give the first line of an answer, while its connection is open."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: pages\r\n\r\n".encode())
    try:
        yield (await asyncio.wait_for(reader.readline(), DEADLINE)).decode()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_both_kinds_of_pages_are_served_and_know_whether_a_browser_shows_them(name):
    folder = node_dirs.sockets("pages-tests")
    dashboard, dask = folder / "a.dashboard", folder / "a.dask"
    try:
        async with cluster_pages(name, "/proxied/", dashboard, dask) as is_watched:
            assert not is_watched()
            async with asked(dask, "/status") as line:
                assert line.startswith("HTTP/1.1 200")
                assert is_watched()
            await asyncio.to_thread(until, "the connection is closed", lambda: not is_watched())
            async with asked(dashboard, "/proxied/") as line:
                assert line.startswith("HTTP/1.1 200")
            assert is_watched(), "its session waits for the websocket of the browser"
        assert list(folder.iterdir()) == []
    finally:
        node_dirs.remove("pages-tests")
