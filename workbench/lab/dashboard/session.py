"""The session of one browser: a page, its controls, the view, and what the browser has received."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from html import escape
from typing import Any

import panel as pn

from workbench.errors import WorkbenchError
from workbench.lab.dashboard import cards
from workbench.lab.dashboard.cards import CardFactory
from workbench.lab.dashboard.communication import Communication
from workbench.lab.dashboard.controls import Controls
from workbench.lab.dashboard.cores import Cores
from workbench.lab.dashboard.overview import Overview
from workbench.lab.dashboard.page import DaskPage, Page, PageContext, Take
from workbench.lab.dashboard.snapshot import Snapshot
from workbench.lab.dashboard.store import DataStore
from workbench.lab.dashboard.theme import THEMES
from workbench.lab.dashboard.training import Training
from workbench.lab.dashboard.view_state import ViewState
from workbench.lab.dashboard.waiting import Waiting

# Seconds without an acknowledgment after which the browser is sent more nevertheless.
_ANSWER_TIMEOUT_S = 10.0


class Backpressure:
    """Two hidden numbers on the page: that of the last update, and that which the browser has acknowledged.

    Parameters
    ----------
    arrived
        Called when the browser has received all updates.

    Attributes
    ----------
    view
        Panel object that must be on the page.

    Notes
    -----
    On a busy machine Panel's and Bokeh's messages may overtake each other, a change to a chart the chart itself. So
    nothing is changed on a page that is still being sent. An acknowledgment covers the objects on the page, not the
    latest data: Bokeh sends changes of data after the number.
    """

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived
        self._acknowledged = asyncio.Event()
        self._acknowledged.set()
        self._sent_at = 0.0
        self._sent: Any = pn.widgets.IntInput(value=0)
        self._has: Any = pn.widgets.IntInput(value=0)
        self._sent.jscallback(args={"has": self._has}, value="has.value = cb_obj.value")
        self._watcher = self._has.param.watch(self._acknowledge, "value")
        self.view = pn.Row(self._sent, self._has, visible=False)

    @property
    def is_ready(self) -> bool:
        """Whether more may be sent."""
        return self._acknowledged.is_set() or time.monotonic() - self._sent_at > _ANSWER_TIMEOUT_S

    def mark_sent(self) -> None:
        """Count an update that was sent."""
        self._acknowledged.clear()
        self._sent_at = time.monotonic()
        self._sent.value += 1

    async def wait_ready(self) -> None:
        """Wait until more may be sent."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._acknowledged.wait(), _ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """Remove the watcher, because Panel keeps the callbacks of a browser and their objects."""
        self._has.param.unwatch(self._watcher)

    def _acknowledge(self, event: Any) -> None:
        if event.new == self._sent.value:
            self._acknowledged.set()
            self._arrived()


PAGE_CLASSES: dict[str, type[Page]] = {
    "overview": Overview,
    "communication": Communication,
    "cores": Cores,
    "training": Training,
    "waiting": Waiting,
    "dask": DaskPage,
}
"""The class of each page of `workbench.lab.dashboard.view_state.PAGES`."""
# After so many pages were dropped by changes of the layout, the browser loads the page again, because Bokeh keeps all
# models in the browser (bokeh#15289, bokeh#15290).
_HIDDEN_PAGES_KEPT = 30


class Session:
    """Draws the chosen page of one browser when the data or the view changes.

    Parameters
    ----------
    store
        The data of the cluster.
    view_state
        The view.
    dask
        Address of Dask's dashboard; None without one.
    """

    def __init__(self, store: DataStore, view_state: ViewState, dask: str | None) -> None:
        self._store, self._view_state = store, view_state
        self._document: Any = pn.state.curdoc
        self._location = pn.state.location
        # All pages of the current layout; only one of them is visible.
        self._pages: dict[tuple[str, ...], Page] = {}
        self._page: Page | None = None
        self._number: int | None = None
        self._hidden = 0
        self._drawn: Snapshot | None = None
        self._due = self._missed = False
        self._requests: set[asyncio.Task[None]] = set()
        self._make_context: Callable[[], PageContext] = lambda: PageContext(
            view_state, CardFactory(THEMES[view_state.theme or "light"]), self._ask_pair, dask
        )
        self.controls = Controls(view_state, lambda: store.at(None))
        self.backpressure = Backpressure(self._catch_up)
        self.trouble = cards.html()
        self.main = pn.Column(sizing_mode="stretch_width", margin=0)
        self._loaded = False
        view_state.param.watch(self._chosen, list(view_state.param.values()))
        self.draw()
        # Panel loses what changes while the browser still loads.
        pn.state.onload(self._load)
        # Last, because a session that fails earlier would never leave the store.
        self._leave = store.listen(self._later)

    def draw(self) -> None:
        """Draw what is new on the chosen page, unless the browser has not received the last update."""
        store = self._store
        snapshot = store.at(self._view_state.until)
        self.controls.show(snapshot, store.at(None))
        self.trouble.object = f"<p class=bad>{escape(store.trouble)}</p>" if store.trouble else ""
        self.trouble.visible = bool(store.trouble)
        if snapshot is None or not len(snapshot.times):
            return
        key = self._key()
        turned = self._number != snapshot.layout.number or self._page is not self._pages.get(key)
        if not turned and not self._is_new(snapshot):
            return
        if self._view_state.until is not None:
            snapshot = snapshot.copy()  # it stays on the screen, and its numbers can be downloaded
        self._missed = not self.backpressure.is_ready
        if self._page is None or turned:
            self._turn(key, snapshot)
        elif not self._missed:
            self._page.show(snapshot)
        if not self._missed:
            self._drawn = snapshot
        if self._loaded and (turned or not self._missed):
            self.backpressure.mark_sent()

    def close(self) -> None:
        """End the session."""
        self._leave()
        self.backpressure.close()
        for task in self._requests:
            task.cancel()
        self._page = self._drawn = None
        self._pages.clear()

    def _load(self) -> None:
        self._loaded = True

    def _later(self) -> None:
        # A browser that has disconnected gets nothing.
        context = self._document.session_context
        connected = context is not None and context.session is not None and context.session.connection_count
        if self._loaded and connected and not self._due:
            self._due = True
            self._document.add_next_tick_callback(self._tick)

    def _tick(self) -> None:
        self._due = False
        self.draw()

    def _catch_up(self) -> None:
        if self._missed:
            self.draw()

    def _chosen(self, *events: Any) -> None:
        self._drawn = None
        if self._location is not None:
            self._location.search = self._view_state.query
        self.draw()

    def _key(self) -> tuple[str, ...]:
        page = self._view_state.page
        return page, *(getattr(self._view_state, name) for name in PAGE_CLASSES[page].chosen)

    def _turn(self, key: tuple[str, ...], snapshot: Snapshot) -> None:
        """Show another page with a snapshot."""
        if self._number != snapshot.layout.number:
            self._hidden += len(self._pages)
            self._pages.clear()
            self._page, self._number, self.main[:] = None, snapshot.layout.number, []
            if self._hidden >= _HIDDEN_PAGES_KEPT and self._location is not None:
                self._location.reload = True
        if self._page is not None:
            self._page.leave()
            self._page.view.visible = False
        if key in self._pages:
            self._page = self._pages[key]
            if not self._missed:
                self._page.show(snapshot)
            self._page.view.visible = True
        else:
            self._page = self._pages[key] = PAGE_CLASSES[key[0]](snapshot, self._make_context())
            self._page.show(snapshot)
            self.main.append(self._page.view)

    def _is_new(self, snapshot: Snapshot) -> bool:
        """Return whether a snapshot differs from the one on the screen."""
        before = self._drawn
        return before is None or (
            before is not snapshot and (before.time, before.valid_at) != (snapshot.time, snapshot.valid_at)
        )

    def _ask_pair(self, source: int, target: int, take: Take) -> None:
        async def ask() -> None:
            try:
                times, rates = await self._store.source.pair(source, target)
            except (OSError, WorkbenchError):
                return  # the line at the top reports that the head does not answer
            await self.backpressure.wait_ready()
            self._document.add_next_tick_callback(lambda: take(times, rates))

        task = asyncio.get_running_loop().create_task(ask())
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
