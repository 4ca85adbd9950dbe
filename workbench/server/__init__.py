"""The part of the workbench that runs in a Jupyter server: clusters and their dashboards under Jupyter's login."""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    # `workbench dashboard` uses this package too, and needs no Jupyter server.
    from workbench.server.extension import WorkbenchExtension

    return [{"module": "workbench.server", "app": WorkbenchExtension}]
