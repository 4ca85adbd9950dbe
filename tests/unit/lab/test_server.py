"""The dashboard as it is served: on a separate socket, a page for each browser."""

from __future__ import annotations

import asyncio
import re
import stat

import pytest
from support.patience import DEADLINE

from benchmarks import simulated_dashboard
from benchmarks.simulated import Simulated
from workbench.errors import InvalidRequest
from workbench.host import node_dirs
from workbench.lab.dashboard.server import serving


@pytest.fixture
def socket():
    """Return a path that is short enough for a socket."""
    yield node_dirs.sockets("serving-tests") / "dashboard.sock"
    node_dirs.remove("serving-tests")


async def get(path, at):
    """Return what is served under a path, on a socket or on a port of this host."""
    opened = asyncio.open_connection("127.0.0.1", at) if isinstance(at, int) else asyncio.open_unix_connection(str(at))
    reader, writer = await opened
    writer.write(f"GET {path} HTTP/1.0\r\nHost: dashboard\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), DEADLINE)
    writer.close()
    await writer.wait_closed()
    return answer.decode()


async def test_a_browser_gets_the_page_of_the_cluster_in_its_theme_while_the_dashboard_is_served(socket):
    async with serving(Simulated(4, 1, history=5), "training", socket, prefix="/proxied"):
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        light, dark = await get("/proxied/", socket), await get("/proxied/?theme=dark", socket)

    assert not socket.exists()
    for page, scheme in ((light, "light"), (dark, "dark")):
        assert page.startswith("HTTP/1.1 200")
        assert "<title>training - ranks</title>" in page
        assert re.findall(r"color-scheme: (\w+);", page) == [scheme]


async def test_a_path_that_cannot_be_a_socket_is_refused(tmp_path):
    there = tmp_path / "there"
    there.touch()
    for path, reason in ((there, "exists already"), (tmp_path / ("long" * 30), "may have 107 bytes")):
        with pytest.raises(InvalidRequest, match=reason):
            async with serving(Simulated(4, 1), "training", path):
                pass


async def test_a_port_leads_to_the_simulated_dashboard_that_is_measured(socket, monkeypatch):
    over, printed = asyncio.Event(), asyncio.Queue()
    monkeypatch.setattr(simulated_dashboard, "wait_for_shutdown", over.wait)
    monkeypatch.setattr("builtins.print", lambda port, **_: printed.put_nowait(port))
    serves = asyncio.create_task(simulated_dashboard.main(4, 1, str(socket)))

    async with asyncio.timeout(DEADLINE):
        page = await get("/", await printed.get())
        over.set()
        await serves

    assert "<title>simulated - ranks</title>" in page
    assert not socket.exists()
