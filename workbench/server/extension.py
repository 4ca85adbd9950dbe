"""The extension of Jupyter's server: clusters, their pages and logs for who is logged in there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.extension.application import ExtensionApp
from tornado import web

from workbench import debug_log
from workbench.notebook import SERVER
from workbench.server.api import Shared
from workbench.server.board import Board
from workbench.server.files import Files
from workbench.server.handlers import ROUTES
from workbench.server.kernels import Kernels
from workbench.server.pages import ROUTE, ClusterPages
from workbench.server.panels import Panels


class ClusterHandler(ClusterPages, JupyterHandler):
    """Pages of clusters under Jupyter's login and authorizer, with its rules for other origins."""

    auth_resource = "workbench"

    @web.authenticated
    async def get(  # type: ignore[override]  # it may redirect to the login
        self, kind: str, name: str, *_: Any
    ) -> None:
        """Answer a request for a page, or for a websocket, by which a page can do more than be read."""
        await (self._take_part if self.is_websocket else self._look)(kind, name)

    @web.authenticated
    async def head(self, kind: str, name: str, *_: Any) -> None:
        """Answer a request for the headers of a page."""
        await self._look(kind, name)

    @authorized(action="read")  # type: ignore[untyped-decorator]
    async def _look(self, kind: str, name: str) -> None:
        await self.answer(kind, name)

    @authorized(action="execute")  # type: ignore[untyped-decorator]
    async def _take_part(self, kind: str, name: str) -> None:
        await self.answer(kind, name)

    def check_origin(self, origin: str = "") -> bool:
        """Tell whether a websocket may be opened from an origin, by Jupyter's settings."""
        return JupyterHandler.check_origin(self, origin)


class WorkbenchExtension(ExtensionApp):
    """What Jupyter's server loads; when it stops, clusters go on, and so does what is being done to them."""

    name = "workbench"
    load_other_extensions = True

    def initialize_handlers(self) -> None:
        """Give the server its routes, and its kernels the word that they are there."""
        debug_log.set_up()
        base = self.settings["base_url"]
        self.panels = Panels()
        self.handlers.append((f"/{ROUTE}", ClusterHandler, {"panels": self.panels, "base": base}))
        self.board = Board()
        server: Any = self.serverapp
        root = Path(server.root_dir)
        shared = Shared(self.board, Kernels(server.kernel_spec_manager), root, Files(lambda: root))
        self.handlers.extend((f"/{route}", handler, {"shared": shared}) for route, handler in ROUTES.items())
        # Inherited by its kernels. The number tells them that it is their own server's.
        os.environ[SERVER] = f"{os.getpid()} {base}"

    async def stop_extension(self) -> None:
        """End the dashboards, and look at clusters no more; these go on, and so does what is being done to them."""
        await self.board.close()
        await self.panels.close()
