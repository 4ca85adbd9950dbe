"""The Panel app: a page for each browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn
from bokeh.models import CustomJS

from workbench.dashboard.session import Session
from workbench.dashboard.store import DataStore
from workbench.dashboard.theme import STYLE, THEMES, read_asset
from workbench.dashboard.view_state import ViewState


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
