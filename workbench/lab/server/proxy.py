"""Forwards requests and websockets to an HTTP server on a Unix socket.

Only the listed headers are forwarded. The server receives no cookies, no ``Authorization`` and no token, and cannot
set cookies or rules for other origins.
"""

from __future__ import annotations

import asyncio
from html import escape
from http.client import responses
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.httputil import HTTPHeaders, HTTPInputError, HTTPServerRequest, parse_response_start_line
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from tornado.websocket import (
    WebSocketClientConnection,
    WebSocketClosedError,
    WebSocketError,
    WebSocketHandler,
    websocket_connect,
)

from workbench.errors import HeadUnreachable
from workbench.hints import Command
from workbench.lab.server.api import PingingWebSocket
from workbench.lab.server.observer import SocketResolver

REQUEST_HEADERS = (
    "Accept",
    "Accept-Encoding",
    "Accept-Language",
    "Cache-Control",
    "If-Modified-Since",
    "If-None-Match",
    "If-Range",
    "Range",
    "User-Agent",
)
"""Forwarded request headers. ``Origin`` is checked here, because only this server knows the browser's host."""
RESPONSE_HEADERS = (
    "Accept-Ranges",
    "Cache-Control",
    "Content-Disposition",
    "Content-Encoding",
    "Content-Language",
    "Content-Length",
    "Content-Range",
    "Content-Type",
    "Etag",
    "Expires",
    "Last-Modified",
    "Vary",
)
"""Forwarded response headers, in tornado's spelling. ``Location`` is forwarded if it leads to the same upstream."""
# Bytes of an answer and of a message of a websocket, at most.
_MAX_ANSWER, _MAX_MESSAGE = 256 << 20, 64 << 20
# Seconds to connect, and for a whole answer.
_CONNECT_TIMEOUT, _ANSWER_TIMEOUT = 20.0, 600.0
_ERRORS = (OSError, HTTPClientError, HTTPInputError, WebSocketError, ValueError)


class Proxy(PingingWebSocket):
    """A handler that can forward its request, for a page or a websocket, with error pages for users."""

    _upstream: WebSocketClientConnection

    @property
    def is_websocket(self) -> bool:
        """Whether the request is for a websocket."""
        # A user with read permission only may send HEAD.
        return self.request.method == "GET" and self.request.headers.get("Upgrade", "").lower() == "websocket"

    @property
    def is_foreign(self) -> bool:
        """Whether the request is for a websocket, of a page whose origin is not allowed."""
        origin = self.request.headers.get("Origin")
        return self.is_websocket and origin is not None and not self.check_origin(origin)

    async def forward(self, socket: Path, root: str, prefix: str, rest: str, name: str) -> None:
        """Let the server behind a Unix socket answer the request.

        Parameters
        ----------
        socket
            The socket.
        root, prefix
            Paths on the server and in the browser that correspond to each other, with a slash at their ends.
        rest
            The rest of the path, quoted as received.
        name
            Description of the server for messages.

        Raises
        ------
        HeadUnreachable
            If the server does not answer.
        """
        query = without_token(self.request.query)
        target = f"{root}{rest}?{query}" if query else f"{root}{rest}"
        resolver = SocketResolver(path=socket)
        try:
            if self.is_websocket:
                await self._connect_websocket(f"ws://localhost{target}", resolver)
            else:
                await self._fetch(f"http://localhost{target}", resolver, root, prefix)
        except _ERRORS as error:
            raise HeadUnreachable(
                f"{name} does not answer ({error or type(error).__name__}).",
                hint=("Reload this page; ", Command("status"), " shows whether the cluster is still running."),
            ) from error

    # -- pages -------------------------------------------------------------------------------------------------

    async def _fetch(self, url: str, resolver: SocketResolver, root: str, prefix: str) -> None:
        status, begun = 0, False

        def on_header(line: str) -> None:
            nonlocal status
            if status == 0:
                status = parse_response_start_line(line.strip()).code
                self.set_status(status)
            elif status < 500:
                name, _, value = line.strip().partition(":")
                self._answer_header(name.title(), value.strip(), root, prefix)

        def on_chunk(chunk: bytes) -> None:
            nonlocal begun
            if status < 500:
                begun = True
                self.write(chunk)
                # The flush is not awaited, which needs tornado 6.6. A slow browser costs the memory of one page.
                self.flush()

        request = HTTPRequest(
            url,
            method=str(self.request.method),
            headers=request_headers(self.request),
            connect_timeout=_CONNECT_TIMEOUT,
            request_timeout=_ANSWER_TIMEOUT,
            follow_redirects=False,
            decompress_response=False,
            header_callback=on_header,
            streaming_callback=on_chunk,
        )
        client = SimpleAsyncHTTPClient(force_instance=True, resolver=resolver, max_body_size=_MAX_ANSWER)
        try:
            await client.fetch(request, raise_error=False)
        except _ERRORS:
            if not begun:
                raise
            # The browser must detect that the answer is incomplete.
            self.detach().close()
        finally:
            client.close()
        if status >= 500:
            raise HTTPClientError(status)

    def _answer_header(self, name: str, value: str, root: str, prefix: str) -> None:
        if name in RESPONSE_HEADERS:
            self.set_header(name, value)
        elif name == "Location" and (place := location(value, root, prefix)) is not None:
            self.set_header(name, place)

    def compute_etag(self) -> str | None:
        """Return None, because the upstream sets the ETag."""
        return None

    # -- websockets --------------------------------------------------------------------------------------------

    async def _connect_websocket(self, url: str, resolver: SocketResolver) -> None:
        offered = [name.strip() for name in self.request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        # The upstream is connected first, so that its choice of a protocol and its failure are known for the answer.
        self._upstream = await websocket_connect(
            HTTPRequest(url, headers=request_headers(self.request), connect_timeout=_CONNECT_TIMEOUT),
            max_message_size=_MAX_MESSAGE,
            subprotocols=list(filter(None, offered)) or None,
            resolver=resolver,
        )
        try:
            await WebSocketHandler.get(self)  # until the end of the connection
        finally:
            self._upstream.close()

    def check_origin(self, origin: str) -> bool:
        """Return whether a page of an origin may open a websocket: only pages of this server may."""
        return urlsplit(origin).netloc.lower() == self.request.host.lower()

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        """Return the protocol that the upstream has chosen."""
        return self._upstream.selected_subprotocol

    def open(self, *_: str, **__: str) -> None:
        """Start to forward messages of the upstream."""
        self._relay = asyncio.create_task(self._relay_messages())

    async def _relay_messages(self) -> None:
        try:
            while (message := await self._upstream.read_message()) is not None:
                await self.write_message(message, binary=isinstance(message, bytes))
        except WebSocketClosedError:
            return
        self.close(1001)

    async def on_message(self, message: str | bytes) -> None:
        """Forward a message of the browser."""
        try:
            await self._upstream.write_message(message, binary=isinstance(message, bytes))
        except WebSocketClosedError:
            self.close(1001)

    # -- errors ------------------------------------------------------------------------------------------------

    def error_page(self, status: int, text: str) -> None:
        """Answer with a page about an error."""
        self.clear()
        self.set_status(status)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(page(responses.get(status, "Error"), text))

    def write_error(self, status_code: int, **_: Any) -> None:
        """Answer with only the name of the status, because messages of errors may contain secrets."""
        self.error_page(status_code, f"{status_code} {responses.get(status_code, '')}")


def request_headers(request: HTTPServerRequest) -> HTTPHeaders:
    """Return the forwarded headers of a request."""
    return HTTPHeaders({name: request.headers[name] for name in REQUEST_HEADERS if name in request.headers})


def without_token(query: str) -> str:
    """Return a query without Jupyter's token.

    Examples
    --------
    >>> without_token("page=cores&token=secret")
    'page=cores'
    """
    return "&".join(part for part in query.split("&") if unquote_plus(part.partition("=")[0]) != "token")


def location(value: str, root: str, prefix: str) -> str | None:
    """Return the target of an upstream's redirect in the browser, or None if it is outside of the upstream's pages.

    Examples
    --------
    >>> location("/status", "/", "/user/me/workbench/dask/mpi/")
    '/user/me/workbench/dask/mpi/status'
    >>> location("status", "/", "/user/me/workbench/dask/mpi/")
    'status'
    """
    if value.startswith("/"):
        inside = value.startswith(root) and not value.startswith("//")
        return prefix + value.removeprefix(root) if inside else None
    # Browsers treat a backslash as a slash.
    return None if urlsplit(value).scheme or value.startswith("\\") else value


def page(title: str, text: str) -> str:
    """Return a page of text."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:3em auto;max-width:40em;"
        "padding:0 1em}p{white-space:pre-wrap;overflow-wrap:anywhere}"
        f"</style><h1>{escape(title)}</h1><p>{escape(text)}</p></html>\n"
    )
