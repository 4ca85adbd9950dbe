"""What one who looks has: a page, the line above it, and what has been chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from html import escape
from typing import Any

import panel as pn

from workbench.dashboard import cards
from workbench.dashboard.backpressure import Pace
from workbench.dashboard.cards import Cards
from workbench.dashboard.communication import Communication
from workbench.dashboard.controls import Controls
from workbench.dashboard.cores import Cores
from workbench.dashboard.dask_page import DaskPage
from workbench.dashboard.overview import Overview
from workbench.dashboard.page import Desk, Page, Take
from workbench.dashboard.snapshot import Moment
from workbench.dashboard.store import DataStore
from workbench.dashboard.theme import THEMES
from workbench.dashboard.training import Training
from workbench.dashboard.view_state import Looking
from workbench.dashboard.waiting import Waiting
from workbench.errors import WorkbenchError

PAGE_CLASSES: dict[str, type[Page]] = {
    "overview": Overview,
    "communication": Communication,
    "cores": Cores,
    "training": Training,
    "waiting": Waiting,
    "dask": DaskPage,
}
"""What draws a page, by the names of `workbench.dashboard.view_state.PAGES`."""
# Pages that are put away for good, because other ranks have come, until the browser is told to begin anew: Bokeh's
# side of it keeps all that was ever shown (bokeh#15289, bokeh#15290).
_PUT_AWAY = 30


class Session:
    """Draws what one looks at when there is something new.

    Parameters
    ----------
    store
        What is known.
    looking
        What is looked at.
    dask
        Address of Dask's own pages; None if there are none.
    """

    def __init__(self, store: DataStore, looking: Looking, dask: str | None) -> None:
        self._store, self._looking = store, looking
        self._document: Any = pn.state.curdoc
        self._location = pn.state.location
        # Pages of one layout: those that are not shown are hidden, and come back.
        self._pages: dict[tuple[str, ...], Page] = {}
        self._page: Page | None = None
        self._number: int | None = None
        self._away = 0
        self._drawn: Moment | None = None
        self._due = self._missed = False
        self._asking: set[asyncio.Task[None]] = set()
        self._desk_of: Callable[[], Desk] = lambda: Desk(
            looking, Cards(THEMES[looking.theme or "light"]), self._ask_pair, dask
        )
        self.controls = Controls(looking, lambda: store.at(None))
        self.pace = Pace(self._catch_up)
        self.trouble = cards.html()
        self.main = pn.Column(sizing_mode="stretch_width", margin=0)
        self._loaded = False
        looking.param.watch(self._chosen, list(looking.param.values()))
        self._draw()
        # Panel loses what changes while the browser still loads.
        pn.state.onload(self._load)
        # the last: of what fails before, nobody would tell the store that it has gone
        self._leave = store.listen(self._later)

    def close(self) -> None:
        """Look no more."""
        self._leave()
        self.pace.close()
        for task in self._asking:
            task.cancel()
        self._page = self._drawn = None
        self._pages.clear()

    def _load(self) -> None:
        self._loaded = True

    def _later(self) -> None:
        # A browser that is slow is not sent more than it can take, and one that has gone nothing.
        context = self._document.session_context
        connected = context is not None and context.session is not None and context.session.connection_count
        if self._loaded and connected and not self._due:
            self._due = True
            self._document.add_next_tick_callback(self._tick)

    def _tick(self) -> None:
        self._due = False
        self._draw()

    def _catch_up(self) -> None:
        if self._missed:
            self._draw()

    def _chosen(self, *events: Any) -> None:
        self._drawn = None
        if self._location is not None:
            self._location.search = self._looking.query
        self._draw()

    def _draw(self) -> None:
        store = self._store
        moment = store.at(self._looking.until)
        self.controls.show(moment, store.at(None))
        self.trouble.object = f"<p class=bad>{escape(store.trouble)}</p>" if store.trouble else ""
        self.trouble.visible = bool(store.trouble)
        if moment is None or not len(moment.times):
            return
        key = self._key()
        turned = self._number != moment.layout.number or self._page is not self._pages.get(key)
        if not turned and not self._is_new(moment):
            return
        if self._looking.until is not None:
            moment = moment.copy()  # it stays on the screen, and its numbers may be asked for
        self._missed = not self.pace.is_free
        if self._page is None or turned:
            self._turn(key, moment)
        elif not self._missed:
            self._page.show(moment)
        if not self._missed:
            self._drawn = moment
        if self._loaded and (turned or not self._missed):
            self.pace.sent()

    def _key(self) -> tuple[str, ...]:
        page = self._looking.page
        return page, *(getattr(self._looking, name) for name in PAGE_CLASSES[page].chosen)

    def _turn(self, key: tuple[str, ...], moment: Moment) -> None:
        """Show a page that was not shown, as it is at a moment."""
        if self._number != moment.layout.number:
            self._away += len(self._pages)
            self._pages.clear()
            self._page, self._number, self.main[:] = None, moment.layout.number, []
            if self._away >= _PUT_AWAY and self._location is not None:
                self._location.reload = True
        if self._page is not None:
            self._page.leave()
            self._page.view.visible = False
        if key in self._pages:
            self._page = self._pages[key]
            if not self._missed:
                self._page.show(moment)
            self._page.view.visible = True
        else:
            self._page = self._pages[key] = PAGE_CLASSES[key[0]](moment, self._desk_of())
            self._page.show(moment)
            self.main.append(self._page.view)

    def _is_new(self, moment: Moment) -> bool:
        """Tell whether a moment is another one than what is on the screen."""
        before = self._drawn
        return before is None or (before is not moment and (before.time, before.told) != (moment.time, moment.told))

    def _ask_pair(self, source: int, target: int, take: Take) -> None:
        async def ask() -> None:
            try:
                times, rates = await self._store.source.pair(source, target)
            except (OSError, WorkbenchError):
                return  # the line at the top tells that the head does not answer
            await self.pace.free()
            self._document.add_next_tick_callback(lambda: take(times, rates))

        task = asyncio.get_running_loop().create_task(ask())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
