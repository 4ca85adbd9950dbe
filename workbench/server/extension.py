"""The extension of Jupyter's server: clusters, their pages and logs for who is logged in there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.extension.application import ExtensionApp
from tornado import web
from traitlets import Bool, Float

from workbench.log import debug_log
from workbench.server.api import HandlerContext
from workbench.server.blocking_files import DeadlineReader
from workbench.server.dashboard_pages import ROUTE, ClusterPages
from workbench.server.dashboards import IDLE, DashboardProcesses
from workbench.server.handlers import ROUTES
from workbench.server.kernels import Kernels
from workbench.server.state import LOOK, SELDOM, StateFeed
from workbench.session.notebook import SERVER


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

    dashboard_idle = Float(
        IDLE, min=1, config=True, help="Seconds without a viewer after which the process of a dashboard ends."
    )
    look_interval = Float(
        LOOK,
        min=0.1,
        config=True,
        help="Seconds between two looks at the folder of clusters while a browser shows clusters, or while one of them "
        "is being started, scaled, restarted or stopped.",
    )
    look_interval_unseen = Float(
        SELDOM,
        min=0.1,
        config=True,
        help="Seconds between two looks at the folder of clusters while JupyterLab is open and no page shows clusters.",
    )
    allow_starts = Bool(
        True,
        config=True,
        help="Whether JupyterLab's panel offers to start clusters. Notebooks and terminals can start clusters anyway.",
    )

    def initialize_settings(self) -> None:
        """Let JupyterLab know what it may show: while its tabs come back it waits for no answer."""
        server: Any = self.serverapp
        settings = server.web_app.settings
        # Extensions are loaded by their names: that of JupyterHub, which forbids frames, has been.
        policy = settings.get("headers", {}).get("Content-Security-Policy", "")
        settings.setdefault("page_config_data", {}).update(
            workbenchFramed=may_frame(policy), workbenchStarts=self.allow_starts
        )

    def initialize_handlers(self) -> None:
        """Give the server its routes, and its kernels the word that they are there."""
        debug_log.set_up()
        base = self.settings["base_url"]
        self.panels = DashboardProcesses(self.dashboard_idle)
        self.handlers.append((f"/{ROUTE}", ClusterHandler, {"panels": self.panels, "base": base}))
        self.board = StateFeed(self.look_interval, self.look_interval_unseen)
        server: Any = self.serverapp
        root = Path(server.root_dir)
        kernels = Kernels(server.kernel_spec_manager)
        shared = HandlerContext(self.board, kernels, root, DeadlineReader(lambda: root), may_start=self.allow_starts)
        self.handlers.extend((f"/{route}", handler, {"shared": shared}) for route, handler in ROUTES.items())
        # Inherited by its kernels. The number tells them that it is their own server's.
        os.environ[SERVER] = f"{os.getpid()} {base}"

    async def stop_extension(self) -> None:
        """End the dashboards, and look at clusters no more; these go on, and so does what is being done to them."""
        await self.board.close()
        await self.panels.close()


def may_frame(policy: str) -> bool:
    """Return whether a Content-Security-Policy lets pages of this server be shown in a frame of this server.

    Examples
    --------
    >>> may_frame("frame-ancestors 'none'; report-uri /csp")
    False
    >>> may_frame("frame-ancestors 'self'")
    True
    """
    directives = (directive.split() for directive in policy.lower().split(";"))
    return not any(words[1:] in ([], ["'none'"]) for words in directives if words[:1] == ["frame-ancestors"])
