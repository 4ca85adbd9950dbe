"""Dask's HTTP servers on Unix sockets.

Each Dask scheduler and worker binds an HTTP port, also with ``dashboard=False``, which serves logs and task names
without authentication. On a shared node every user could read them, so the port becomes a socket file of mode 0600.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


class UnixHTTP:
    """Mix-in before Dask's ``Scheduler`` or ``Worker`` that serves HTTP only on the Unix socket `http_socket`.

    It replaces ``ServerNode.start_http_server``, and publishes no port as a service, so Dask shows no broken link.
    """

    http_application: Any
    http_server: Any

    def __init__(self, *args: Any, http_socket: Path, **kwargs: Any) -> None:
        # Dask starts HTTP in the constructor of the node.
        self.http_socket = http_socket
        super().__init__(*args, **kwargs)

    def start_http_server(
        self, routes: Any, dashboard_address: Any, default_port: int = 0, ssl_options: Any = None
    ) -> None:
        """Serve `routes` on the Unix socket; addresses and ports are not used."""
        from distributed.http.routing import RoutingApplication
        from tornado.httpserver import HTTPServer
        from tornado.netutil import bind_unix_socket

        self.http_application = RoutingApplication(routes)
        self.http_server = HTTPServer(self.http_application)
        self.http_server.add_socket(bind_unix_socket(str(self.http_socket), mode=0o600))
