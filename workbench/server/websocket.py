"""The websocket that sends changes to a browser."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from workbench.server.api import HandlerContext
from workbench.server.blocking_files import FilesystemTimeout
from workbench.server.log import logger
from workbench.server.pings import PingingWebSocket


class Events(PingingWebSocket, JupyterHandler):
    """Sends the state to a browser, then changes, each after the message before it is written.

    A change is relative to the last message, so a slow browser misses nothing.
    """

    auth_resource = "workbench"

    def initialize(self, shared: HandlerContext) -> None:
        """Set the shared objects, which tornado passes as a keyword argument."""
        self._board = shared.board
        self._sending: asyncio.Task[None] | None = None
        self._pulse: asyncio.Task[None] | None = None

    async def prepare(self) -> None:  # type: ignore[override]  # of the two it has to be Jupyter's
        """Reject users without a login, rather than redirect them."""
        await JupyterHandler.prepare(self, _redirect_to_login=False)

    def check_origin(self, origin: str = "") -> bool:
        """Return whether Jupyter's settings allow a websocket from an origin."""
        return JupyterHandler.check_origin(self, origin)

    @ws_authenticated
    async def get(self, *_: Any, **__: Any) -> None:
        """Open the websocket for logged-in users whom the authorizer allows to read."""
        await self._join()

    @authorized(action="read")  # type: ignore[untyped-decorator]
    async def _join(self) -> None:
        await WebSocketHandler.get(self)  # to the end of the connection

    def open(self, *_: Any, **__: Any) -> None:
        """Start sending."""
        self._sending = asyncio.create_task(self._send())

    def on_message(self, message: str | bytes) -> None:
        """Receive whether the page is visible, and for which clusters it shows heartbeats."""
        try:
            visible = json.loads(message)["visible"]
        except (ValueError, RecursionError, TypeError, KeyError):
            visible = None
        match visible:
            case True:
                self._board.show(self._show)
            case False:
                self._board.hide(self._show)
            case [*names] if all(isinstance(name, str) for name in names):
                self._board.show(self._show, frozenset(names))
            case _:
                self.close(1003, 'allowed is {"visible": true}, {"visible": false} or {"visible": ["NAME", ...]}')

    def on_close(self) -> None:
        """Stop sending."""
        self._board.hide(self._show)
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        try:
            with self._board.watching():
                with suppress(FilesystemTimeout):  # the state has the error
                    await self._board.state()
                state = self._board.known
                await self.write_message({"type": "state", **state.whole()})
                while True:
                    before, state = state, await self._board.news(state)
                    await self.write_message({"type": "changed", **state.since(before)})
        except WebSocketClosedError:
            return
        except Exception:
            logger.exception("the websocket of a browser failed; the browser connects again")
            self.close(1011)

    def _show(self, message: dict[str, Any]) -> None:
        # Skipped while the last heartbeat is not written yet.
        if self._pulse is None or self._pulse.done():
            self._pulse = asyncio.create_task(self._write(message))

    async def _write(self, message: dict[str, Any]) -> None:
        try:
            await self.write_message(message)
        except WebSocketClosedError:
            self._board.hide(self._show)
