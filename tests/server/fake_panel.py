"""Stands for the dashboard of a cluster: tells what it is asked, echoes, and ends as the real one does.

``python -m fake_panel NAME --socket PATH ...``, or imported for the same pages elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler

from workbench.lab.dashboard import PREFIX


def told(request):
    """Return what a request has brought, as plain values."""
    return {"method": request.method, "uri": request.uri, "headers": list(request.headers.get_all())}


class Asked(RequestHandler):
    def get(self):
        self.set_cookie("upstream", "cookie")
        self.set_header("Access-Control-Allow-Origin", "*")
        self.set_header("Server", "upstream")
        self.finish(told(self.request))

    head = get


class Large(RequestHandler):
    async def get(self):
        for number in range(64):
            self.write(bytes([number]) * 65536)
            await self.flush()


class Breaks(RequestHandler):
    async def get(self):
        self.set_header("Content-Length", "1000")
        self.write("part")
        await self.flush()
        self.detach().close()


class Fails(RequestHandler):
    def get(self):
        raise ValueError("the upstream's secret")

    def log_exception(self, *_):
        pass


class Moves(RequestHandler):
    def initialize(self, prefix):
        self.prefix = prefix

    def get(self):
        self.redirect(self.get_argument("to", f"{self.prefix}asked"))


class Echo(WebSocketHandler):
    def open(self):
        self.write_message(told(self.request))

    def check_origin(self, origin):
        raise AssertionError("origins are not its matter")

    def select_subprotocol(self, subprotocols):
        self.offered = subprotocols
        return "bokeh" if "bokeh" in subprotocols else None

    def on_message(self, message):
        if message == "leave":
            self.close()
        else:
            self.write_message(message, binary=isinstance(message, bytes))


def application(prefix):
    """Return the pages below a prefix."""
    pages = {"asked": Asked, "large": Large, "breaks": Breaks, "fails": Fails, "ws": Echo, "": Asked, "a%2Fb c": Asked}
    routes = [(f"{prefix}{path.replace(' ', '%20')}", handler) for path, handler in pages.items()]
    return Application([*routes, (f"{prefix}moves", Moves, {"prefix": prefix})], log_function=lambda _: None)


async def main():
    parser = ArgumentParser()
    parser.add_argument("name")
    for option in ("--socket", "--dask", "--dask-socket"):
        parser.add_argument(option, required=True)
    told = parser.parse_args()
    if told.name.startswith("broken"):
        sys.exit("the first \x1bword of its log\nno such thing: the last word of its log")
    # Dask knows nothing of the browser's prefix
    for path, prefix in ((told.dask_socket, "/"), (told.socket, os.environ[PREFIX])):
        if not (path == told.dask_socket and told.name.startswith("mute")):
            HTTPServer(application(prefix)).add_socket(bind_unix_socket(path, mode=0o600))
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
