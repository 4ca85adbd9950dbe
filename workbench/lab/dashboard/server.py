"""The Panel app, a page for each browser, on a Unix socket of this user."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import panel as pn
from bokeh.models import CustomJS

from workbench.errors import InvalidRequest
from workbench.lab.dashboard.session import Session
from workbench.lab.dashboard.source import Source
from workbench.lab.dashboard.store import DataStore
from workbench.lab.dashboard.theme import STYLE, THEMES, read_asset
from workbench.lab.dashboard.view_state import ViewState
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


def make_app(store: DataStore, name: str, dask: str | None = None) -> Callable[[], Any]:
    """Return the function that makes the page of each browser.

    Parameters
    ----------
    store
        The data of the cluster; all browsers share it.
    name
        Name of the cluster.
    dask
        Address of Dask's dashboard, relative to that of the app; None without one.
    """

    def app() -> Any:
        query = {key: values[-1].decode(errors="replace") for key, values in pn.state.session_args.items()}
        view_state = ViewState.at(query)
        session = Session(store, view_state, dask)
        pn.state.on_session_destroyed(lambda _: session.close())
        theme = THEMES[view_state.theme or "light"]
        template: Any = pn.template.Template(read_asset("page.html"), location=True)
        template.add_variable("variables", theme.variables)
        template.add_variable("scheme", theme.name)
        template.add_variable("style", STYLE)
        template.add_variable("cluster", name)
        template.add_panel("pages", session.controls.pages)
        template.add_panel("choices", session.controls.choices)
        template.add_panel("trouble", session.trouble)
        template.add_panel("main", session.main)
        template.add_panel("pace", session.backpressure.view)
        # A browser that reconnects has lost its session, so it loads the page again.
        document: Any = pn.state.curdoc
        document.js_on_event("connection_lost", CustomJS(code='document.getElementById("cut").hidden = false'))
        document.js_on_event("client_reconnected", CustomJS(code="location.reload()"))
        template.title = f"{name} - ranks"
        return template

    return app
