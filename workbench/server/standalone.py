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

from workbench.hints import TERMINAL
from workbench.server.dashboard_pages import ROUTE, ClusterPages
from workbench.server.dashboards import DashboardProcesses
from workbench.server.proxy import Proxy

_HOST = "127.0.0.1"
_COOKIE = "workbench"
# Bytes of the body of a request.
_LARGEST_BODY = 1 << 16


class OneTimeToken:
    """Who may come in: the first who brings the token gets the cookie, and that lets in from then on.

    Parameters
    ----------
    port
        Port of the server.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        """Port of the server."""
        self.base = f"/{secrets.token_urlsafe(16)}/"
        """Path of everything, which nobody guesses. A browser sends a cookie to all ports of a host, but only below
        its path: so whoever listens on another port is not told the key."""
        self.token = secrets.token_urlsafe(32)
        """What the link has."""
        self.key = secrets.token_urlsafe(32)
        """What the cookie has."""
        self._used = False

    def open(self, token: str) -> bool:
        """Tell whether a token opens, which it does once."""
        if not self.is_good(token):
            return False
        self._used = True
        return True

    def is_good(self, token: str) -> bool:
        """Tell whether a token would open."""
        return not self._used and hmac.compare_digest(token.encode(), self.token.encode())

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
    def door(self) -> OneTimeToken:
        door: OneTimeToken = self.settings["door"]
        return door

    @property
    def is_known(self) -> bool:
        return self.door.is_here(self.request.host) and self.door.knows(self.get_cookie(_COOKIE))


class _Login(_Guarded):
    async def get(self, *_: Any) -> None:
        if not self.is_known:
            token = self.get_query_argument("token", "")
            if not self.door.is_here(self.request.host):
                # Who has the token may know why: another port of an ssh tunnel is the usual reason.
                self.error_page(
                    403, _elsewhere(self.door.port, self.request.host) if self.door.is_good(token) else _REFUSAL
                )
                return
            if not self.door.open(token):
                self.error_page(403, _REFUSAL)
                return
            self.set_cookie(
                _COOKIE, self.door.key, path=self.door.base, expires_days=None, httponly=True, samesite="Lax"
            )
        self.redirect(self.settings["first_page"])


class _Pages(_Guarded, ClusterPages):
    place = TERMINAL

    def prepare(self) -> None:
        if not self.is_known:
            self.error_page(403, _REFUSAL)

    async def get(self, kind: str, name: str, *_: Any) -> None:
        await self.answer(kind, name)

    async def head(self, kind: str, name: str, *_: Any) -> None:
        await self.answer(kind, name)


class _NotFound(_Guarded):
    def prepare(self) -> None:
        # browsers ask for it, without the cookie, and complain if there is none
        if self.request.path == "/favicon.ico":
            self.set_status(204)
            self.finish()
        elif not self.is_known:
            self.error_page(403, _REFUSAL)
        else:
            self.error_page(404, "There is no such page.")


_REFUSAL = (
    "This needs the link that `workbench dashboard` has printed. It opens once, in one browser; for another one "
    "run `workbench dashboard` again."
)


def _elsewhere(port: int, host: str) -> str:
    return (
        f"The link is for {_HOST}:{port}, and this browser asks for {host}, where it does not open. Forward the port "
        f"to the same port here: `ssh -L {port}:{_HOST}:{port}` and the machine where `workbench dashboard` runs. Then "
        "open the link as it was printed; it is still good. If something else has the port here, run "
        "`workbench dashboard` again: it takes another."
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
    door = OneTimeToken(sockets[0].getsockname()[1])
    panels = DashboardProcesses()
    server = HTTPServer(
        Application(
            [(door.base, _Login), (f"{door.base}{ROUTE}", _Pages, {"panels": panels, "base": door.base})],
            default_handler_class=_NotFound,
            log_function=lambda _: None,  # links have the token
            door=door,
            first_page=f"{door.base}workbench/dashboard/{name}/",
        ),
        # Tornado reads a body before the cookie is checked, and pages send none.
        max_body_size=_LARGEST_BODY,
    )
    server.add_sockets(sockets)
    try:
        tell(f"http://{_HOST}:{door.port}{door.base}?token={door.token}")
        await asyncio.Event().wait()
    finally:
        server.stop()
        await panels.close()
        await server.close_all_connections()
