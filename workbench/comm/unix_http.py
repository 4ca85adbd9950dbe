"""Dask's HTTP servers on Unix sockets.

Every Dask scheduler and worker binds an HTTP port, ``dashboard=False`` or not, and answers logs and task
names on it to anybody. On a shared node that is everybody: the port becomes a socket file of mode 0600.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


class UnixHTTP:
    """Mix-in ahead of Dask's ``Scheduler`` or ``Worker``: HTTP is served on a Unix socket alone.

    Parameters
    ----------
    http_socket
        Path of the socket.

    Notes
    -----
    It takes the place of ``ServerNode.start_http_server``. No port is published as a service, so Dask shows
    no link that would lead nowhere.
    """

    http_application: Any
    http_server: Any

    def __init__(self, *args: Any, http_socket: Path, **kwargs: Any) -> None:
        # Before the node is made, for Dask starts HTTP there.
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
