"""A separate Jupyter server, as a browser sees it, and the observers that processes have started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from support.processes import DEADLINE, gone, line_of, until
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

FAKE = "server.fake_observer"
BASE, TOKEN = "/user/me/", "the-token-of-jupyter"
API = f"{BASE}workbench/api/"
# That of the server: what may be chosen for a cluster.
FOLDER = Path(os.environ["JUPYTER_DATA_DIR"]) / "of-server"


def observers_of(process: int) -> list[psutil.Process]:
    """Return the observers that a process has started."""
    # the server, a child like them, gets its name, too
    children = psutil.Process(process).children()
    return [child for child in children if not gone(child) and f"-m {FAKE}" in " ".join(line_of(child))]


@dataclass
class Server:
    """A Jupyter server, as a browser sees it."""

    process: subprocess.Popen
    host: str
    routes: list[str]
    variable: str
    page_config: dict[str, object]
    cookie: str = ""

    def headers(self, **more):
        return {**({"Cookie": self.cookie} if self.cookie else {}), **more}

    async def get(self, path, *, method="GET", headers=None, **more):
        """Return the answer to a request of who is logged in, or with `headers` of anybody."""
        request = HTTPRequest(
            f"http://{self.host}{path}",
            method=method,
            headers=self.headers() if headers is None else headers,
            follow_redirects=False,
            allow_nonstandard_methods=True,
            connect_timeout=DEADLINE,
            request_timeout=100,  # a dashboard, or a subcommand, may have to start first
            **more,
        )
        return await AsyncHTTPClient(force_instance=True).fetch(request, raise_error=False)

    async def ask(self, path, method="GET", body=None, **headers):
        """Return status and answer of a request to the API, by token unless `headers` say otherwise."""
        answer = await self.get(
            f"{API}{path}",
            method=method,
            headers=headers or {"Authorization": f"token {TOKEN}"},
            body=body if body is None or isinstance(body, str) else json.dumps(body),
        )
        return answer.code, json.loads(answer.body or "null")

    @asynccontextmanager
    async def asking(self, path, body):
        """Give a context in which a request to the API waits for its answer, and after which no client waits."""
        _, writer = await asyncio.open_connection(*self.host.split(":"))
        text = json.dumps(body)
        lines = [f"POST {API}{path} HTTP/1.1", f"Host: {self.host}", f"Authorization: token {TOKEN}"]
        writer.write("\r\n".join([*lines, f"Content-Length: {len(text)}", "", text]).encode())
        try:
            yield
        finally:
            writer.close()
            await writer.wait_closed()

    @asynccontextmanager
    async def join(self, path, *, headers=None, **more):
        """Give an open websocket of who is logged in, or with `headers` of anybody."""
        told = self.headers() if headers is None else headers
        request = HTTPRequest(f"ws://{self.host}{path}", headers=told, connect_timeout=100)
        socket = await websocket_connect(request, **more)
        try:
            yield socket
        finally:
            socket.close()

    async def knock(self, path, *, method="GET", headers=None):
        """Return the status with which a websocket is opened or refused."""
        async with self.silent(path, method=method, headers=headers) as (status, _):
            return status

    @asynccontextmanager
    async def silent(self, path, *, method="GET", headers=None):
        """Give the status of a websocket, and a reader of what comes then, which is never answered."""
        asking = {
            "Host": self.host,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            **(self.headers() if headers is None else headers),
        }
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in asking.items()), "", ""]
        reader, writer = await asyncio.open_connection(*self.host.split(":"))
        writer.write("\r\n".join(lines).encode())
        try:
            status = await asyncio.wait_for(reader.readline(), DEADLINE)
            yield int(status.split()[1]), reader
        finally:
            writer.close()
            await writer.wait_closed()


def start(patience: float | None = None, **settings) -> Server:
    """Start a server that answers, and waits so many seconds for files, or as many as servers do.

    `settings` are those of its configuration for the extension.
    """
    (FOLDER / "inside").mkdir(parents=True, exist_ok=True)
    given = json.dumps([patience, settings])
    process = subprocess.Popen(
        [sys.executable, "-m", "server.server_program", BASE, TOKEN, FAKE, str(FOLDER), given],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    told = json.loads(process.stdout.readline())
    address = urlsplit(told["url"])
    until("the server answers", lambda: _listens(process.pid, address.port))
    return Server(process, address.netloc, told["routes"], told["variable"], told["page_config"])


async def log_in(server: Server) -> Server:
    """Return the server for a browser that is logged in."""
    if not server.cookie:
        answer = await server.get(f"{BASE}?token={TOKEN}")
        server.cookie = "; ".join(cookie.partition(";")[0] for cookie in answer.headers.get_list("Set-Cookie"))
    return server


def _listens(process: int, port: int) -> bool:
    connections = psutil.Process(process).net_connections("tcp4")
    return any(its.status == psutil.CONN_LISTEN and its.laddr.port == port for its in connections)


def end(process: subprocess.Popen, number=signal.SIGTERM) -> int:
    """Send a process a signal, and return how it has ended."""
    process.send_signal(number)
    process.stdout.close()
    try:
        return process.wait(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # the server prints where every thread is
        process.wait()
        raise
