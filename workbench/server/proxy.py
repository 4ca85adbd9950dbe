"""Requests and websockets, handed on to an HTTP server on a Unix socket.

Only what is listed here passes: neither cookies, ``Authorization`` nor a token reach the server behind it, and it
sets no cookies and no rules for other origins.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AbstractContextManager
from html import escape
from http.client import responses
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote_plus, urlsplit

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.httputil import HTTPHeaders, HTTPInputError, HTTPServerRequest, parse_response_start_line
from tornado.netutil import Resolver
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
from workbench.server.pings import PingingWebSocket


class Upstream(Protocol):
    """An HTTP server that is reached by a Unix socket of this host, wherever it runs."""

    @property
    def name(self) -> str:
        """What it is, in words."""
        ...

    @property
    def root(self) -> str:
        """The path, as its server has it, of what the browser finds under the prefix; with a slash at its end."""
        ...

    async def socket(self) -> Path:
        """Return the socket that it answers on, and start it if need be.

        Raises
        ------
        WorkbenchError
            If it cannot be reached; the message is for the person who looks.
        """
        ...

    def viewing(self) -> AbstractContextManager[None]:
        """Give a context in which somebody looks at it."""
        ...


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
"""Headers that pass on the way up. ``Origin`` does not: it is checked here, where the browser's host is known."""
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
"""Headers that pass on the way down, as tornado writes them; ``Location`` does if it leads to the same upstream."""
# Of an answer, and of a message of a websocket, in bytes.
_LARGEST, _LARGEST_MESSAGE = 256 << 20, 64 << 20
# Seconds to connect, and for a whole answer.
_CONNECT, _ANSWER = 20.0, 600.0
_FAULTS = (OSError, HTTPClientError, HTTPInputError, WebSocketError, ValueError)


class _ToSocket(Resolver):
    """Finds every host at one Unix socket."""

    def initialize(self, path: Path) -> None:
        self._path = path

    async def resolve(self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[Any]:
        return [(socket.AF_UNIX, str(self._path))]


class Proxy(PingingWebSocket):
    """A handler that can hand on its request, be it for a page or a websocket, and tells trouble in words."""

    _far: WebSocketClientConnection

    @property
    def is_websocket(self) -> bool:
        """Whether the request is for a websocket."""
        # HEAD may come from who may read and no more
        return self.request.method == "GET" and self.request.headers.get("Upgrade", "").lower() == "websocket"

    async def forward(self, upstream: Upstream, prefix: str, rest: str) -> None:
        """Let an upstream answer the request.

        Parameters
        ----------
        upstream
            What answers.
        prefix
            Path of the browser that stands for the root of the upstream.
        rest
            What follows it, quoted as it came.

        Raises
        ------
        WorkbenchError
            If the upstream cannot be reached.
        """
        origin = self.request.headers.get("Origin")
        if self.is_websocket and origin is not None and not self.check_origin(origin):
            self.send_error(403)
            return
        query = without_token(self.request.query)
        target = f"{upstream.root}{rest}?{query}" if query else f"{upstream.root}{rest}"
        resolver = _ToSocket(path=await upstream.socket())
        try:
            with upstream.viewing():
                if self.is_websocket:
                    await self._join(f"ws://localhost{target}", resolver)
                else:
                    await self._fetch(f"http://localhost{target}", resolver, upstream.root, prefix)
        except _FAULTS as error:
            raise HeadUnreachable(
                f"{upstream.name} does not answer ({error or type(error).__name__}).",
                hint=("Reload this page; ", Command("status"), " shows whether the cluster is still running."),
            ) from error

    # -- pages -------------------------------------------------------------------------------------------------

    async def _fetch(self, url: str, resolver: Resolver, root: str, prefix: str) -> None:
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
                # Not awaited, which tornado's client can do from 6.6 on: a browser that is slow costs a page of memory.
                self.flush()

        request = HTTPRequest(
            url,
            method=str(self.request.method),
            headers=asked(self.request),
            connect_timeout=_CONNECT,
            request_timeout=_ANSWER,
            follow_redirects=False,
            decompress_response=False,
            header_callback=on_header,
            streaming_callback=on_chunk,
        )
        client = SimpleAsyncHTTPClient(force_instance=True, resolver=resolver, max_body_size=_LARGEST)
        try:
            await client.fetch(request, raise_error=False)
        except _FAULTS:
            if not begun:
                raise
            # What is lacking must not look like the end.
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
        """Return None: the upstream knows what its pages are like."""
        return None

    # -- websockets --------------------------------------------------------------------------------------------

    async def _join(self, url: str, resolver: Resolver) -> None:
        offered = [word.strip() for word in self.request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        # First, so that its choice of a protocol can be told, and its failure by a status.
        self._far = await websocket_connect(
            HTTPRequest(url, headers=asked(self.request), connect_timeout=_CONNECT),
            max_message_size=_LARGEST_MESSAGE,
            subprotocols=list(filter(None, offered)) or None,
            resolver=resolver,
        )
        try:
            await WebSocketHandler.get(self)  # to the end of the connection
        finally:
            self._far.close()

    def check_origin(self, origin: str) -> bool:
        """Tell whether a page of an origin may open a websocket here: one of this server."""
        return urlsplit(origin).netloc.lower() == self.request.host.lower()

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        """Return the protocol that the upstream has chosen."""
        return self._far.selected_subprotocol

    def open(self, *_: str, **__: str) -> None:
        """Begin to hand on what the upstream says."""
        self._relay = asyncio.create_task(self._hand_down())

    async def _hand_down(self) -> None:
        try:
            while (message := await self._far.read_message()) is not None:
                await self.write_message(message, binary=isinstance(message, bytes))
        except WebSocketClosedError:
            return
        self.close(1001)

    async def on_message(self, message: str | bytes) -> None:
        """Hand on what the browser says."""
        try:
            await self._far.write_message(message, binary=isinstance(message, bytes))
        except WebSocketClosedError:
            self.close(1001)

    # -- trouble -----------------------------------------------------------------------------------------------

    def error_page(self, status: int, words: str) -> None:
        """Answer with a page that says what is the matter."""
        self.clear()
        self.set_status(status)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(page(responses.get(status, "Trouble"), words))

    def write_error(self, status_code: int, **_: Any) -> None:
        """Answer with the name of the trouble and no more: messages of errors may tell what is secret."""
        self.error_page(status_code, f"{status_code} {responses.get(status_code, '')}")


def asked(request: HTTPServerRequest) -> HTTPHeaders:
    """Return the headers of a request that pass on the way up."""
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
    """Return where a redirect of an upstream leads the browser, or None if it leads away from its pages.

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
    # Browsers take a backslash for a slash.
    return None if urlsplit(value).scheme or value.startswith("\\") else value


def page(title: str, words: str) -> str:
    """Return a page of text."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:3em auto;max-width:40em;"
        "padding:0 1em}p{white-space:pre-wrap;overflow-wrap:anywhere}"
        f"</style><h1>{escape(title)}</h1><p>{escape(words)}</p></html>\n"
    )
