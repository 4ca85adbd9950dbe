"""The websocket by which a browser hears of changes."""

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
    """Tells a browser how things stand, then what changes, each as soon as the message before it is written.

    What it is told differs from what it was told before, so one that is slow misses nothing.
    """

    auth_resource = "workbench"

    def initialize(self, shared: HandlerContext) -> None:
        """Take what all requests share."""
        self._board = shared.board
        self._telling: asyncio.Task[None] | None = None
        self._pulse: asyncio.Task[None] | None = None

    async def prepare(self) -> None:  # type: ignore[override]  # of the two it has to be Jupyter's
        """Refuse strangers, rather than lead them to a login."""
        await JupyterHandler.prepare(self, _redirect_to_login=False)

    def check_origin(self, origin: str = "") -> bool:
        """Tell whether a page of an origin may open it, by Jupyter's settings."""
        return JupyterHandler.check_origin(self, origin)

    @ws_authenticated
    async def get(self, *_: Any, **__: Any) -> None:
        """Open it for who is logged in, by the rules of the authorizer."""
        await self._join()

    @authorized(action="read")  # type: ignore[untyped-decorator]
    async def _join(self) -> None:
        await WebSocketHandler.get(self)  # to the end of the connection

    def open(self, *_: Any, **__: Any) -> None:
        """Begin to tell."""
        self._telling = asyncio.create_task(self._tell())

    def on_message(self, message: str | bytes) -> None:
        """Hear whether somebody sees what is told, and of which clusters the pulses."""
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
        """Tell no more."""
        self._board.hide(self._show)
        if self._telling is not None:
            self._telling.cancel()

    async def _tell(self) -> None:
        try:
            with self._board.watching():
                with suppress(FilesystemTimeout):  # which the board says, too
                    await self._board.state()
                state = self._board.known
                await self.write_message({"type": "state", **state.whole()})
                while True:
                    before, state = state, await self._board.news(state)
                    await self.write_message({"type": "changed", **state.since(before)})
        except WebSocketClosedError:
            return
        except Exception:
            logger.exception("a browser is told no more of clusters; it connects again")
            self.close(1011)

    def _show(self, message: dict[str, Any]) -> None:
        # One that has not taken the last one yet does without this one.
        if self._pulse is None or self._pulse.done():
            self._pulse = asyncio.create_task(self._write(message))

    async def _write(self, message: dict[str, Any]) -> None:
        try:
            await self.write_message(message)
        except WebSocketClosedError:
            self._board.hide(self._show)
