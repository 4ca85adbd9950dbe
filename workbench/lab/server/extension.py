"""The extension of Jupyter's server: clusters, their pages and logs for logged-in users."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.extension.application import ExtensionApp
from tornado import web
from traitlets import Bool, Float

from workbench.host import debug_log
from workbench.lab.server.api import HandlerContext
from workbench.lab.server.dashboards import ROUTE, ClusterPages
from workbench.lab.server.handlers import ROUTES
from workbench.lab.server.kernels import Kernels
from workbench.lab.server.observer import IDLE, Observer
from workbench.lab.server.state import LOOK, SELDOM, StateFeed
from workbench.lab.server.survey import DeadlineReader
from workbench.session.current import SERVER


class ClusterHandler(ClusterPages, JupyterHandler):
    """Pages of clusters under Jupyter's login and authorizer, with its rules for other origins.

    Requests are no activity of the user: an open dashboard would keep a hub's server from being culled.
    """

    auth_resource = "workbench"

    @web.authenticated
    async def get(  # type: ignore[override]  # it may redirect to the login
        self, kind: str, name: str, *_: Any
    ) -> None:
        """Answer a request for a page, or for a websocket, which also needs the permission to execute."""
        await (self._answer_execute if self.is_websocket else self._answer_read)(kind, name)

    @web.authenticated
    async def head(self, kind: str, name: str, *_: Any) -> None:
        """Answer a request for the headers of a page."""
        await self._answer_read(kind, name)

    @authorized(action="read")  # type: ignore[untyped-decorator]
    async def _answer_read(self, kind: str, name: str) -> None:
        await self.answer(kind, name)

    @authorized(action="execute")  # type: ignore[untyped-decorator]
    async def _answer_execute(self, kind: str, name: str) -> None:
        await self.answer(kind, name)

    def check_origin(self, origin: str = "") -> bool:
        """Return whether Jupyter's settings allow a websocket from an origin."""
        return JupyterHandler.check_origin(self, origin)


class WorkbenchExtension(ExtensionApp):
    """The application that Jupyter's server loads; when it stops, clusters and pending actions continue."""

    name = "workbench"
    load_other_extensions = True

    dashboard_idle = Float(IDLE, min=1, config=True, help="Seconds without a viewer after which a dashboard ends.")
    look_interval = Float(
        LOOK,
        min=0.1,
        config=True,
        help="Seconds between two scans of the folder of clusters while a browser shows clusters, or while a cluster "
        "is being started, scaled, restarted or stopped.",
    )
    look_interval_unseen = Float(
        SELDOM,
        min=0.1,
        config=True,
        help="Seconds between two scans of the folder of clusters while JupyterLab is open but shows no clusters.",
    )
    allow_starts = Bool(
        True,
        config=True,
        help="Whether JupyterLab's panel offers to start clusters. Notebooks and terminals can start clusters anyway.",
    )

    def initialize_settings(self) -> None:
        """Add this server's limits to JupyterLab's page config, which JupyterLab reads without a request."""
        server: Any = self.serverapp
        settings = server.web_app.settings
        # JupyterHub's extension, which forbids frames, is already loaded: extensions load in alphabetical order.
        policy = settings.get("headers", {}).get("Content-Security-Policy", "")
        settings.setdefault("page_config_data", {}).update(
            workbenchFramed=may_frame(policy), workbenchStarts=self.allow_starts
        )

    def initialize_handlers(self) -> None:
        """Add the routes to the server, and announce them to its kernels."""
        debug_log.set_up()
        base = self.settings["base_url"]
        self.observer = Observer(self.dashboard_idle)
        self.handlers.append((f"/{ROUTE}", ClusterHandler, {"observer": self.observer, "base": base}))
        self.board = StateFeed(self.observer, self.look_interval, self.look_interval_unseen)
        server: Any = self.serverapp
        root = Path(server.root_dir)
        kernels = Kernels(server.kernel_spec_manager)
        shared = HandlerContext(self.board, kernels, root, DeadlineReader(lambda: root), may_start=self.allow_starts)
        self.handlers.extend((f"/{route}", handler, {"shared": shared}) for route, handler in ROUTES.items())
        # The kernels inherit the variable, and check by the PID that their own server has set it.
        os.environ[SERVER] = f"{os.getpid()} {base}"

    async def stop_extension(self) -> None:
        """End scans and the observer; clusters and pending actions continue."""
        await self.board.close()
        await self.observer.close()


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
