"""The pages of a cluster without Jupyter, for one person: on loopback, behind a link that works once."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

from workbench.server.pages import ROUTE, ClusterPages
from workbench.server.panels import Panels
from workbench.server.proxy import Proxy

_HOST = "127.0.0.1"


class Door:
    """Who may come in: the first who brings the token gets the cookie, and that lets in from then on.

    Parameters
    ----------
    port
        Port of the server; browsers do not keep cookies of ports apart, so it is in the cookie's name.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        """Port of the server."""
        self.cookie = f"workbench-{port}"
        """Name of the cookie."""
        self.token = secrets.token_urlsafe(32)
        """What the link has."""
        self.key = secrets.token_urlsafe(32)
        """What the cookie has."""
        self._used = False

    def open(self, token: str) -> bool:
        """Tell whether a token opens, which it does once."""
        if self._used or not hmac.compare_digest(token.encode(), self.token.encode()):
            return False
        self._used = True
        return True

    def knows(self, key: str | None) -> bool:
        """Tell whether the value of a cookie is the right one."""
        return hmac.compare_digest((key or "").encode(), self.key.encode())

    def is_here(self, host: str) -> bool:
        """Tell whether a browser asks for this server by its own name, not by one that somebody made lead here."""
        return host in {f"{_HOST}:{self.port}", f"localhost:{self.port}"}


class _Guarded(Proxy):
    def set_default_headers(self) -> None:
        self.set_header("Content-Security-Policy", "frame-ancestors 'self'")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")

    @property
    def door(self) -> Door:
        door: Door = self.settings["door"]
        return door

    @property
    def is_known(self) -> bool:
        return self.door.is_here(self.request.host) and self.door.knows(self.get_cookie(self.door.cookie))


class _Entrance(_Guarded):
    async def get(self, *_: Any) -> None:
        if not self.is_known:
            if not self.door.is_here(self.request.host) or not self.door.open(self.get_query_argument("token", "")):
                self.tell(403, _REFUSAL)
                return
            self.set_cookie(self.door.cookie, self.door.key, expires_days=None, httponly=True, samesite="Lax")
        self.redirect(self.settings["first_page"])


class _Pages(_Guarded, ClusterPages):
    def prepare(self) -> None:
        if not self.is_known:
            self.tell(403, _REFUSAL)

    async def get(self, kind: str, name: str, *_: Any) -> None:
        await self.answer(kind, name)

    async def head(self, kind: str, name: str, *_: Any) -> None:
        await self.answer(kind, name)


class _Nothing(_Guarded):
    def prepare(self) -> None:
        if not self.is_known:
            self.tell(403, _REFUSAL)
        elif self.request.path == "/favicon.ico":  # browsers ask for it, and complain if there is none
            self.set_status(204)
            self.finish()
        else:
            self.tell(404, "There is no such page.")


_REFUSAL = (
    "This needs the link that `workbench dashboard` has printed. It opens once, in one browser; for another one "
    "run `workbench dashboard` again."
)


def serve(name: str, tell: Callable[[str], None]) -> None:
    """Serve the pages of clusters on loopback until Ctrl-C.

    Parameters
    ----------
    name
        The cluster whose dashboard is the first page.
    tell
        Called with the link when it can be opened.

    Raises
    ------
    KeyboardInterrupt
        At Ctrl-C, when all has ended.
    """
    asyncio.run(_serve(name, tell))


async def _serve(name: str, tell: Callable[[str], None]) -> None:
    sockets = bind_sockets(0, _HOST)
    door = Door(sockets[0].getsockname()[1])
    panels = Panels()
    server = HTTPServer(
        Application(
            [("/", _Entrance), (f"/{ROUTE}", _Pages, {"panels": panels, "base": "/"})],
            default_handler_class=_Nothing,
            log_function=lambda _: None,  # links have the token
            door=door,
            first_page=f"/workbench/dashboard/{name}/",
        )
    )
    server.add_sockets(sockets)
    try:
        tell(f"http://{_HOST}:{door.port}/?token={door.token}")
        await asyncio.Event().wait()
    finally:
        server.stop()
        await panels.close()
        await server.close_all_connections()
