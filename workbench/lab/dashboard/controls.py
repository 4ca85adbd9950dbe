"""The controls at the top of every page: page, traffic, time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn

from workbench.lab.dashboard.format import second
from workbench.lab.dashboard.snapshot import Snapshot
from workbench.lab.dashboard.view_state import PAGES, ViewState
from workbench.metrics.schema import KEPT
from workbench.text import duration

_BUTTONS = """
.bk-btn-group { gap: 2px; flex-wrap: wrap; }
.bk-btn-group .bk-btn.bk-btn-default { border: none; box-shadow: none !important; border-radius: 7px !important;
  background: transparent !important; color: var(--muted) !important; font-size: 13px; padding: 5px 11px; margin: 0;
  min-height: 0; flex: none; }
.bk-btn-group .bk-btn.bk-btn-default:hover { color: var(--text) !important; }
.bk-btn-group .bk-btn.bk-btn-default.bk-active { background: var(--chosen) !important; font-weight: 600;
  color: var(--text) !important; }
.bk-btn-group .bk-btn.bk-btn-default:focus { outline: none; }
.bk-btn-group .bk-btn.bk-btn-default:focus-visible { outline: 2px solid var(--accent); }
"""
_SMALL = """
.bk-btn-group { border: 1px solid var(--line); border-radius: 8px; background: var(--card); padding: 1px; }
.bk-btn-group .bk-btn.bk-btn-default { font-size: 12px; padding: 3px 9px; }
"""
_SLIDER = """
:host { color: var(--muted); font-size: 12px; }
.noUi-target { background: var(--line); border: none; box-shadow: none; height: 6px !important; }
.noUi-connect { background: var(--accent) !important; }
.noUi-handle { background: var(--accent) !important; border: none !important; box-shadow: none !important; }
"""


class Controls:
    """Widgets that change the view, and follow it.

    Parameters
    ----------
    view_state
        The view.
    latest
        Returns the latest snapshot.

    Attributes
    ----------
    pages, choices
        Panel objects: the choice of the page, and all other controls.
    """

    def __init__(self, view_state: ViewState, latest: Callable[[], Snapshot | None]) -> None:
        self._view_state, self._latest, self._following = view_state, latest, False
        self.pages = _choice(view_state, "page", {title: page for page, title in PAGES.items()}, small=False)
        traffic = (
            _choice(view_state, "kind", {"Dask and MPI": "both", "Dask": "dask", "MPI": "mpi"}),
            _choice(view_state, "measure", {"Bytes": "bytes", "Messages": "messages"}),
            _choice(view_state, "span", {"Last 10 s": "recent", "Since the start": "total"}),
        )
        for choice in traffic:
            choice.visible = view_state.param.page.rx() == "communication"
        self._live = pn.widgets.RadioButtonGroup(
            options={"Live": True, "Paused": False}, value=True, margin=0, stylesheets=[_BUTTONS + _SMALL]
        )
        self._ago = pn.widgets.IntSlider(
            start=-round(KEPT), end=0, value=0, show_value=False, width=170, margin=0, stylesheets=[_SLIDER]
        )
        self._moment = pn.pane.HTML("", margin=0, width=170, styles={"color": "var(--muted)", "font-size": "12px"})
        self._live.param.watch(self._pause, "value")
        self._ago.param.watch(self._go_back, "value_throttled")
        minutes = _choice(
            view_state, "minutes", {f"{choice} min": choice for choice in view_state.param.minutes.objects}
        )
        self.choices = pn.FlexBox(
            *traffic, minutes, self._live, self._ago, self._moment, margin=0, gap="8px 12px", align_items="center"
        )

    def show(self, snapshot: Snapshot | None, last: Snapshot | None) -> None:
        """Show the time of the snapshot."""
        if snapshot is None or last is None or not len(last.times):
            self._moment.object = ""
            return
        live = self._view_state.until is None
        ago = last.time - snapshot.time
        self._following = True
        self._live.value = live
        self._ago.value = 0 if live else -round(ago)
        self._following = False
        back = "" if live else f", {duration(ago)} ago"
        self._moment.object = f"{second(snapshot.time)}{back}"

    def _pause(self, event: Any) -> None:
        if self._following:
            return
        last = self._latest()
        if event.new or last is None or not len(last.times):
            self._view_state.until = None
            self._live.value = True  # without data there is no time to pause at
        else:
            self._view_state.until = last.time

    def _go_back(self, event: Any) -> None:
        last = self._latest()
        if not self._following and last is not None and len(last.times):
            self._view_state.until = last.time + event.new


def _choice(view_state: ViewState, name: str, options: dict[str, Any], *, small: bool = True) -> Any:
    """Return radio buttons that are bound to a parameter of the view."""
    return pn.widgets.RadioButtonGroup.from_param(
        view_state.param[name], options=options, margin=0, name="", stylesheets=[_BUTTONS + _SMALL * small]
    )
