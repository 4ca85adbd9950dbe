"""The pages of a cluster without Jupyter, for one user: on loopback, with a one-time link."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

from workbench.cancellation import run_to_end
from workbench.hints import TERMINAL
from workbench.lab.server.dashboards import ROUTE, ClusterPages
from workbench.lab.server.observer import Observer
from workbench.lab.server.proxy import Proxy

_HOST = "127.0.0.1"
_COOKIE = "workbench"
# Bytes of the body of a request.
_LARGEST_BODY = 1 << 16


class OneTimeToken:
    """The access control: the first request with the token gets a cookie, which later requests need.

    `port` is that of the server.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        """Port of the server."""
        self.base = f"/{secrets.token_urlsafe(16)}/"
        """Random path of all pages. A browser sends a cookie to all ports of a host, but only below its path, so a
        server on another port does not receive the key."""
        self.token = secrets.token_urlsafe(32)
        """Value in the link."""
        self.key = secrets.token_urlsafe(32)
        """Value of the cookie."""
        self._used = False

    def use(self, token: str) -> bool:
        """Return whether a token is valid, and use it up."""
        if not self.is_valid(token):
            return False
        self._used = True
        return True

    def is_valid(self, token: str) -> bool:
        """Return whether a token is the right one and not used."""
        return not self._used and hmac.compare_digest(token.encode(), self.token.encode())

    def is_key(self, key: str | None) -> bool:
        """Return whether the value of a cookie is the key."""
        return hmac.compare_digest((key or "").encode(), self.key.encode())

    def is_own_host(self, host: str) -> bool:
        """Return whether a request names this server, and not another name that resolves to it."""
        return host in {f"{_HOST}:{self.port}", f"localhost:{self.port}"}


class _Guarded(Proxy):
    def set_default_headers(self) -> None:
        self.set_header("Content-Security-Policy", "frame-ancestors 'self'")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")

    @property
    def access(self) -> OneTimeToken:
        access: OneTimeToken = self.settings["access"]
        return access

    @property
    def is_authorized(self) -> bool:
        return self.access.is_own_host(self.request.host) and self.access.is_key(self.get_cookie(_COOKIE))


class _Login(_Guarded):
    async def get(self, *_: Any) -> None:
        if not self.is_authorized:
            access, token = self.access, self.get_query_argument("token", "")
            if not access.is_own_host(self.request.host):
                # A user with the token gets the reason, which is usually another port of an ssh tunnel.
                is_valid = access.is_valid(token)
                self.error_page(403, _wrong_host(access.port, self.request.host) if is_valid else _LINK_REQUIRED)
                return
            if not access.use(token):
                self.error_page(403, _LINK_REQUIRED)
                return
            self.set_cookie(_COOKIE, access.key, path=access.base, expires_days=None, httponly=True, samesite="Lax")
        self.redirect(self.settings["first_page"])


class _Pages(_Guarded, ClusterPages):
    place = TERMINAL

    def prepare(self) -> None:
        if not self.is_authorized:
            self.error_page(403, _LINK_REQUIRED)

    async def get(self, kind: str, name: str, *_: Any) -> None:
        await self.answer(kind, name)

    async def head(self, kind: str, name: str, *_: Any) -> None:
        await self.answer(kind, name)


class _NotFound(_Guarded):
    def prepare(self) -> None:
        # Browsers request the icon without the cookie, and log an error if it is missing.
        if self.request.path == "/favicon.ico":
            self.set_status(204)
            self.finish()
        elif not self.is_authorized:
            self.error_page(403, _LINK_REQUIRED)
        else:
            self.error_page(404, "This page does not exist.")


_LINK_REQUIRED = (
    "This page requires the link that `workbench dashboard` has printed. It opens once, in one browser. For another "
    "browser run `workbench dashboard` again."
)


def _wrong_host(port: int, host: str) -> str:
    return (
        f"The link is for {_HOST}:{port}, but this browser has requested {host}. Forward the port to the same port of "
        f"this machine: `ssh -L {port}:{_HOST}:{port}` and the machine where `workbench dashboard` runs. Then open the "
        "link as it was printed, which is still valid. If another program uses the port on this machine, run "
        "`workbench dashboard` again, which uses another port."
    )


def serve(name: str, on_ready: Callable[[str], None]) -> None:
    """Serve the pages of clusters on loopback until Ctrl-C, which raises KeyboardInterrupt at the end.

    The dashboard of cluster `name` is the first page, and `on_ready` is called with the link.
    """
    asyncio.run(_serve(name, on_ready))


async def _serve(name: str, on_ready: Callable[[str], None]) -> None:
    sockets = bind_sockets(0, _HOST)
    access = OneTimeToken(sockets[0].getsockname()[1])
    observer = Observer()
    server = HTTPServer(
        Application(
            [(access.base, _Login), (f"{access.base}{ROUTE}", _Pages, {"observer": observer, "base": access.base})],
            default_handler_class=_NotFound,
            log_function=lambda _: None,  # links contain the token
            access=access,
            first_page=f"{access.base}workbench/dashboard/{name}/",
        ),
        # Tornado reads a body before the cookie is checked, and pages send none.
        max_body_size=_LARGEST_BODY,
    )
    server.add_sockets(sockets)
    try:
        on_ready(f"http://{_HOST}:{access.port}{access.base}?token={access.token}")
        await asyncio.Event().wait()
    finally:
        server.stop()
        await run_to_end(observer.close())
        await run_to_end(server.close_all_connections())
