"""An observer whose dashboards return their requests, and echo: ``python -m server.fake_observer SOCKET IDLE``."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler

from workbench.errors import HeadUnreachable
from workbench.lab import observer


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
        self.settings["viewers"].add(self)
        self.write_message(told(self.request))

    def on_close(self):
        self.settings["viewers"].discard(self)

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


def application(prefix, viewers):
    """Return the pages below a prefix."""
    pages = {"asked": Asked, "large": Large, "breaks": Breaks, "fails": Fails, "ws": Echo, "": Asked, "a%2Fb c": Asked}
    routes = [(f"{prefix}{path.replace(' ', '%20')}", handler) for path, handler in pages.items()]
    return Application(
        [*routes, (f"{prefix}moves", Moves, {"prefix": prefix})], log_function=lambda _: None, viewers=viewers
    )


@asynccontextmanager
async def pages_of(name, prefix, dashboard, dask):
    """Serve pages in place of those of a cluster, which has no head."""
    if name.startswith("broken"):
        raise HeadUnreachable("no such thing: the first word\x1b")
    if name.startswith("slow"):
        await asyncio.Event().wait()
    if name.startswith("crash"):
        sys.exit("the first \x1bword of its log\nno such thing: the last word of its log")
    servers, viewers = [], set()
    # Dask knows nothing of the browser's prefix
    for path, root in ((dask, "/"), (dashboard, prefix)):
        if not (path == dask and name.startswith("mute")):
            servers.append(HTTPServer(application(root, viewers)))
            servers[-1].add_socket(bind_unix_socket(str(path), mode=0o600))
    try:
        yield lambda: bool(viewers)
    finally:
        for server in servers:
            server.stop()
        for path in (dask, dashboard):
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    observer.pages_of = pages_of
    observer.main(sys.argv[1:])
