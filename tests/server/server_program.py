"""A Jupyter server whose observer is another module; prints its routes, and the data of kernels and pages.

The page ``loaded`` lists the modules that the server has imported.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys

from jupyter_server.auth import Authorizer
from jupyter_server.serverapp import ServerApp
from tornado.web import RequestHandler
from traitlets.config import Config

from workbench.lab.server import observer, survey


class Forbids(Authorizer):
    """Forbids reads of pages of clusters named ``no-read-...``, and executions by those of ``no-execute-...``.

    Also forbids the actions that the header ``Forbid`` of a request names.
    """

    def is_authorized(self, handler, user, action, resource):
        forbidden = handler.request.headers.get("Forbid", "").split()
        return resource != "workbench" or (f"/no-{action}-" not in handler.request.path and action not in forbidden)


class Loaded(RequestHandler):
    """Returns the modules that this process has imported."""

    def get(self):
        self.finish({"modules": sorted(sys.modules)})


def main(base, token, module, folder, given):
    faulthandler.enable()
    observer.MODULE = module
    patience, settings = json.loads(given)
    if patience:
        survey._PATIENCE = patience
    config = Config()
    config.ServerApp.authorizer_class = Forbids
    config.ServerApp.base_url = base
    config.ServerApp.root_dir = folder
    config.ServerApp.ip = "127.0.0.1"
    config.ServerApp.port = 0
    config.ServerApp.open_browser = False
    config.ServerApp.allow_root = True
    config.ServerApp.terminals_enabled = False
    config.ServerApp.jpserver_extensions = {"workbench.lab": True}
    config.IdentityProvider.token = token
    config.WorkbenchExtension.look_interval_unseen = 1.0  # the tests have browsers without a visible page
    config.WorkbenchExtension.update(settings)
    app = ServerApp.instance(config=config)
    app.initialize([], find_extensions=False)
    routes = [
        rule.matcher.regex.pattern
        for group in app.web_app.default_router.rules
        for rule in group.target.rules
        if getattr(rule.target, "__module__", "").startswith("workbench.")
    ]
    app.web_app.add_handlers(".*", [(f"{base}loaded", Loaded)])
    told = {
        "url": app.connection_url,
        "routes": routes,
        "variable": os.environ["WORKBENCH_SERVER"],
        "page_config": app.web_app.settings["page_config_data"],
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    # Jupyter handles SIGTERM without the event loop: if the signal arrives just before the loop waits for events, the
    # handler runs after the next event only. With any handler of the loop each signal is an event.
    app.io_loop.asyncio_loop.add_signal_handler(signal.SIGUSR1, lambda: None)
    app.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
