"""`workbench dashboard NAME`: a link that opens once, and nothing without it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import psutil
import pytest
from server.running import Server, observers_of
from support.processes import DEADLINE, gone, until
from tornado.web import Application

from workbench import cli
from workbench.lab.server import api, standalone

PAGES = [
    "/workbench/dashboard/a/asked",
    "/workbench/dashboard/a/",
    "/workbench/dashboard/a",
    "/workbench/dask/a/",
    "/other",
]
PROGRAM = """
import sys
from server.running import FAKE
from workbench import cli
from workbench.lab.server import observer
observer.MODULE = FAKE
sys.exit(cli.main(["dashboard", *sys.argv[1:]]))
"""


class Site(Server):
    """The server of a link; all its paths begin with that of the link."""

    def __init__(self, link, process=None):
        super().__init__(process, urlsplit(link).netloc, [], "", {})
        self.base = urlsplit(link).path.removesuffix("/")

    async def get(self, path, **more):
        return await super().get(f"{self.base}{path}", **more)

    def join(self, path, **more):
        return super().join(f"{self.base}{path}", **more)

    def silent(self, path, **more):
        return super().silent(f"{self.base}{path}", **more)


@asynccontextmanager
async def served(name):
    """Give the printed link, and its server for a browser that has not opened it."""
    links = asyncio.Queue()
    serving = asyncio.create_task(standalone._serve(name, links.put_nowait))
    try:
        link = await asyncio.wait_for(links.get(), DEADLINE)
        yield link, Site(link)
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


@pytest.fixture
async def site(fake, cluster):
    cluster("a")
    async with served("a") as (link, server):
        yield link, server


async def enter(link, server):
    """Open the link, and keep the cookie."""
    answer = await server.get(f"/?{urlsplit(link).query}")
    if "Set-Cookie" in answer.headers:
        server.cookie = answer.headers["Set-Cookie"].partition(";")[0]
    return answer


async def test_the_link_leads_to_the_dashboard_and_its_pages(site):
    link, server = site

    answer = await enter(link, server)

    assert (answer.code, answer.headers["Location"]) == (302, f"{server.base}/workbench/dashboard/a/")
    assert {"HttpOnly", "SameSite=Lax"} <= set(answer.headers["Set-Cookie"].split("; "))
    page = await server.get("/workbench/dashboard/a/asked")
    assert page.code == 200
    assert server.cookie.partition("=")[2] not in page.body.decode()
    async with server.join("/workbench/dashboard/a/ws") as socket:
        assert "cookie" not in json.dumps(json.loads(await socket.read_message())).lower()
    assert (await server.get("/workbench/dashboard/nobody/")).code == 404
    assert (await server.get("/other")).code == 404
    assert (await server.get("/")).headers["Location"] == f"{server.base}/workbench/dashboard/a/"


async def test_a_browser_is_told_to_keep_the_cookie_from_other_ports_by_a_path_that_nobody_guesses(site, cluster):
    link, server = site
    cluster("b")

    answer = await enter(link, server)

    assert f"Path={server.base}/" in answer.headers["Set-Cookie"].split("; ")
    async with served("b") as (_, other):
        assert other.base != server.base
    assert len(server.base) > 20
    anybody = Server(None, server.host, [], "", {})
    for path in ("/", "/workbench/dashboard/a/", f"/{server.base[::-1]}/"):
        assert (await anybody.get(path)).code == 403
    assert (await anybody.get("/favicon.ico")).code == 204


async def test_who_opens_the_link_again_in_the_same_browser_is_led_to_the_page(site):
    link, server = site
    await enter(link, server)

    again = await enter(link, server)

    assert (again.code, again.headers["Location"]) == (302, f"{server.base}/workbench/dashboard/a/")


async def test_the_link_opens_once(site):
    link, server = site
    await enter(link, server)
    server.cookie = ""

    again = await enter(link, server)

    assert (again.code, "Set-Cookie" in again.headers) == (403, False)
    assert b"It opens once, in one browser" in again.body


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=w%C3%B6rter"])
async def test_without_the_token_nobody_gets_in_and_the_link_stays_good(site, query):
    link, server = site

    refused = await server.get(f"/{query}")
    assert (refused.code, "Set-Cookie" in refused.headers) == (403, False)
    assert (await enter(link, server)).code == 302


@pytest.mark.parametrize("cookie", ["", "other=x", "workbench=", "workbench=wrong"])
async def test_nothing_is_served_without_the_cookie(site, cookie):
    link, server = site
    server.cookie = cookie

    for path in PAGES:
        for method in ("GET", "HEAD", "POST"):
            assert (await server.get(f"{path}?{urlsplit(link).query}", method=method)).code == 403
        assert await server.knock(path) == 403
    assert observers_of(psutil.Process().pid) == []


async def test_a_name_that_was_made_to_lead_here_gets_nothing(site):
    link, server = site
    for headers in ({}, {"Cookie": server.cookie}):
        headers["Host"] = f"elsewhere.example:{urlsplit(link).port}"
        assert (await server.get(f"/?{urlsplit(link).query}", headers=headers)).code == 403
        assert (await server.get(PAGES[0], headers=headers)).code == 403
        await enter(link, server)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost:9", "localhost"])
async def test_through_a_tunnel_to_another_port_it_is_told_which_to_forward_and_nobody_gets_in(site, host):
    link, server = site
    port = urlsplit(link).port

    told = await server.get(f"/?{urlsplit(link).query}", headers={"Host": host})
    without = await server.get("/?token=wrong", headers={"Host": host})

    assert (told.code, "Set-Cookie" in told.headers) == (403, False)
    assert f"has requested {host}" in told.body.decode()
    assert f"ssh -L {port}:127.0.0.1:{port}" in told.body.decode()
    assert (without.code, str(port) in without.body.decode()) == (403, False)
    assert (await enter(link, server)).code == 302
    used = await server.get(f"/?{urlsplit(link).query}", headers={"Host": host})
    assert (used.code, str(port) in used.body.decode()) == (403, False)


async def test_a_page_of_another_origin_opens_no_websocket(site):
    link, server = site
    await enter(link, server)

    for origin, status in (("http://elsewhere.example", 403), ("null", 403), (f"http://{server.host}", 101)):
        told = {"Cookie": server.cookie, "Origin": origin}
        assert await server.knock("/workbench/dashboard/a/ws", headers=told) == status


async def test_a_browser_that_is_gone_without_a_word_is_no_viewer_any_more(site, monkeypatch):
    monkeypatch.setattr(api, "_PING", 0.1)
    link, server = site
    await enter(link, server)

    async with server.silent("/workbench/dashboard/a/ws", headers={"Cookie": server.cookie}) as (status, reader):
        assert status == 101
        await asyncio.wait_for(reader.read(), DEADLINE)  # to the end of the connection


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (30.0, 30.0)),
        ({"websocket_ping_interval": 0, "websocket_ping_timeout": 0}, (30.0, 30.0)),
        ({"websocket_ping_interval": 90}, (90, 90)),
        ({"websocket_ping_interval": 90, "websocket_ping_timeout": 20}, (90, 20)),
    ],
)
def test_browsers_are_asked_as_often_as_the_site_says(settings, expected):
    socket = object.__new__(api.PingingWebSocket)
    socket.application = Application(**settings)

    assert (socket.ping_interval, socket.ping_timeout) == expected


async def test_a_large_body_is_refused_before_it_is_read(site):
    _, server = site
    reader, writer = await asyncio.open_connection(*server.host.split(":"))
    writer.write(f"POST {server.base}/ HTTP/1.1\r\nHost: {server.host}\r\nContent-Length: {1 << 20}\r\n\r\n".encode())
    assert (await asyncio.wait_for(reader.read(), DEADLINE)).startswith(b"HTTP/1.1 400")
    writer.close()


async def test_it_listens_on_loopback_alone(site):
    link, _ = site
    listening = [c.laddr for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN and c.laddr]

    assert [address.ip for address in listening if address.port == urlsplit(link).port] == ["127.0.0.1"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_ctrl_c_ends_it_with_its_dashboard(cluster, options):
    cluster("a")
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, "a", *options], stdout=subprocess.PIPE, text=True)
    first = process.stdout.readline()
    link = json.loads(first)["url"] if options else first.strip()
    server = Site(link, process)

    async def look():
        await enter(link, server)
        return await server.get("/workbench/dashboard/a/asked")

    assert asyncio.run(look()).code == 200
    [observer] = observers_of(process.pid)
    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=DEADLINE) == 0
    rest = process.stdout.read()
    process.stdout.close()
    assert (rest == "") == bool(options)
    if rest:
        assert "opens once, in one browser. Ctrl-C ends the dashboard; the cluster continues." in rest
        assert f"ssh -L {urlsplit(link).port}:127.0.0.1:{urlsplit(link).port} " in rest
    until("the observer is gone", lambda: gone(observer))


def test_without_a_cluster_it_says_so(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))

    assert cli.main(["dashboard"]) == 1
    assert capsys.readouterr().err == "no cluster runs. Start a cluster with `workbench start`.\n"
    assert cli.main(["dashboard", "nobody"]) == 1
