"""Serves the app on a socket that only this user can open."""

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

# Bytes that the path of a Unix socket may have, its end included.
_SOCKET_PATH_BYTES = 108


@asynccontextmanager
async def serving(
    source: Source, name: str, socket: Path, *, prefix: str = "", dask: str | None = None, every: float = TICK
) -> AsyncIterator[DataStore]:
    """Serve the dashboard of a cluster on a Unix socket of mode 0600, which is removed in the end.

    Parameters
    ----------
    source
        The source of the numbers.
    name
        Of the cluster.
    socket
        Path of the socket.
    prefix
        Path under which the app is served, as the browser has it: a proxy hands it on as it is.
    dask
        Address of Dask's own pages, relative to that of the app.
    every
        Seconds between two questions to the source.

    Yields
    ------
    store
        What the app draws.

    Raises
    ------
    InvalidRequest
        If the path is too long for a socket, or exists; `OSError` if the socket cannot be made.

    Notes
    -----
    Whoever may open the socket is this user, or a proxy that has to have checked who asks and from which origin: here
    every origin is taken. Scripts, styles and letters come from the server itself, and nothing from anywhere else.
    """
    _check(socket)
    # It warns of the origins, see above.
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
            f"socket {str(socket)!r}: a path may have {_SOCKET_PATH_BYTES - 1} bytes; take a shorter folder."
        )
    if socket.exists():
        raise InvalidRequest(f"socket {str(socket)!r}: there is something already; take another path.")
