"""The pages of clusters in JupyterLab and in files: the Jupyter server's part, and the dashboard."""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    # `workbench dashboard` uses this package too, and needs no Jupyter server.
    from workbench.lab.server.extension import WorkbenchExtension

    return [{"module": "workbench.lab", "app": WorkbenchExtension}]
