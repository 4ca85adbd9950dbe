"""Serves the app on a Unix socket of this user."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import panel as pn

from workbench.dashboard.app import make_app
from workbench.dashboard.source import Source
from workbench.dashboard.store import DataStore
from workbench.errors import InvalidRequest
from workbench.metrics.schema import TICK

# Maximum length of the path of a Unix socket, including the terminating byte.
_SOCKET_PATH_BYTES = 108


@asynccontextmanager
async def serving(
    source: Source, name: str, socket: Path, *, prefix: str = "", dask: str | None = None, every: float = TICK
) -> AsyncIterator[DataStore]:
    """Serve the dashboard of a cluster on a Unix socket of mode 0600 until the end of the block.

    Parameters
    ----------
    source
        The source of the metrics.
    name
        Name of the cluster.
    socket
        Path of the socket.
    prefix
        Path of the app in the browser; a proxy forwards it unchanged.
    dask
        Address of Dask's dashboard, relative to that of the app.
    every
        Seconds between two polls of the source.

    Yields
    ------
    store
        The data of the app.

    Raises
    ------
    InvalidRequest
        If the path is too long for a socket, or exists.
    OSError
        If the socket cannot be created.

    Notes
    -----
    Only this user can open the socket. A proxy in front of it must check the user and the origin: this server accepts
    every origin. The server itself serves all scripts, styles and fonts.
    """
    _check(socket)
    # Bokeh would warn about the origins, see above.
    logging.getLogger("bokeh.server.util").setLevel(logging.ERROR)
    pn.extension()
    store = DataStore(source, every=every)
    server = pn.serve(
        make_app(store, name, dask),
        show=False,
        start=False,
        verbose=False,
        title=f"{name} - ranks",
        unix_socket=str(socket),
        prefix=prefix,
        websocket_origin="*",
    )
    try:
        server.start()
        yield store
    finally:
        server.stop()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket)  # noqa: PTH108  (no method of Path in an asynchronous function)


def _check(socket: Path) -> None:
    if len(str(socket).encode()) >= _SOCKET_PATH_BYTES:
        raise InvalidRequest(
            f"The path of the socket {str(socket)!r} is too long: it may have {_SOCKET_PATH_BYTES - 1} bytes. Use a "
            "shorter folder."
        )
    if socket.exists():
        raise InvalidRequest(f"The path of the socket {str(socket)!r} exists already. Use another path.")
