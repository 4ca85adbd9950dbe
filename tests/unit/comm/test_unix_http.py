"""HTTP servers of Dask are on Unix sockets of the user, and on no port."""

from __future__ import annotations

import asyncio
import stat

import psutil
import pytest
from distributed import Scheduler, Worker
from support.patience import DEADLINE

from workbench.comm.unix_http import UnixHTTP
from workbench.host import node_dirs


class SocketScheduler(UnixHTTP, Scheduler):
    def __init__(self, http_socket):
        super().__init__(protocol="inproc", port=0, dashboard=False, http_socket=http_socket)


class SocketWorker(UnixHTTP, Worker):
    def __init__(self, scheduler, http_socket):
        super().__init__(scheduler, nthreads=1, dashboard=False, http_socket=http_socket)


def ports():
    return {c.laddr.port for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN}


async def get(path, socket):
    """Return the answer of an HTTP server on a Unix socket."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), DEADLINE)
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.fixture
def folder():
    """Return a folder whose path is short enough for sockets."""
    yield node_dirs.sockets("http-socket-tests")
    node_dirs.remove("http-socket-tests")


@pytest.fixture
async def nodes(folder):
    """Return the ports before, a scheduler and a worker that talk through memory."""
    before = ports()
    async with (
        SocketScheduler(folder / "head.sock") as scheduler,
        SocketWorker(scheduler.address, folder / "rank-0.sock") as worker,
    ):
        yield before, scheduler, worker


async def test_health_is_answered_on_the_sockets(nodes):
    _, *servers = nodes
    for node in servers:
        answer = await get("/health", node.http_socket)
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"ok")


async def test_the_sockets_are_the_users_alone(nodes):
    _, *servers = nodes
    assert [stat.S_IMODE(node.http_socket.stat().st_mode) for node in servers] == [0o600, 0o600]


async def test_no_port_listens(nodes):
    before, *_ = nodes
    assert ports() == before


async def test_no_link_leads_to_a_port_that_is_not_there(nodes):
    _, *servers = nodes
    assert [node.service_ports for node in servers] == [{}, {}]
    assert [node.services for node in servers] == [{}, {}]
