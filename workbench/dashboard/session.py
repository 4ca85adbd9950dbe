"""What one who looks has: a page, the line above it, and what has been chosen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

import panel as pn

from workbench.dashboard import cards
from workbench.dashboard.cards import Cards
from workbench.dashboard.communication import Communication
from workbench.dashboard.controls import Controls
from workbench.dashboard.cores import Cores
from workbench.dashboard.dask_page import DaskPage
from workbench.dashboard.looking import Looking
from workbench.dashboard.looks import THEMES
from workbench.dashboard.moment import Moment
from workbench.dashboard.overview import Overview
from workbench.dashboard.page import Desk, Page
from workbench.dashboard.store import DataStore
from workbench.dashboard.training import Training
from workbench.dashboard.waiting import Waiting
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PAGE_CLASSES: dict[str, type[Page]] = {
    "overview": Overview,
    "communication": Communication,
    "cores": Cores,
    "training": Training,
    "waiting": Waiting,
    "dask": DaskPage,
}
"""What draws a page, by the names of `workbench.dashboard.looking.PAGES`."""
# What is chosen that the cards themselves depend on.
_BUILD = {"page", "kind", "measure", "span"}
# Seconds for a page that is turned to be on its way: a browser may hear of a change to it before it hears of the page.
_TURNING = 0.4


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
        self._page: Page | None = None
        self._number: int | None = None
        self._drawn: Moment | None = None
        self._due, self._turned = False, 0.0
        self._asking: set[asyncio.Task[None]] = set()
        self._desk_of: Callable[[], Desk] = lambda: Desk(
            looking, Cards(THEMES[looking.theme or "light"]), self._ask_pair, dask
        )
        self.controls = Controls(looking, lambda: store.at(None))
        self.trouble = cards.html()
        self.main = pn.Column(sizing_mode="stretch_width", margin=0)
        # Panel loses what changes while the browser still loads.
        self._loaded = False
        pn.state.onload(self._load)
        self._leave = store.listen(self._later)
        looking.param.watch(self._chosen, list(looking.param.values()))
        self._draw()

    def close(self) -> None:
        """Look no more."""
        self._leave()
        for task in self._asking:
            task.cancel()
        self._page = self._drawn = None

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

    def _chosen(self, *events: Any) -> None:
        if any(event.name in _BUILD for event in events):
            self._page = None
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
        turned = self._page is None or self._number != moment.layout.number
        if not turned and not self._is_new(moment):
            return
        if self._looking.until is not None:
            moment = moment.copy()  # it stays on the screen, and its numbers may be asked for
        if self._page is None or turned:
            self._number = moment.layout.number
            self._page = PAGE_CLASSES[self._looking.page](moment, self._desk_of())
            self._page.show(moment)
            self.main[:] = [self._page.view]
            self._turned = time.monotonic()
        elif time.monotonic() - self._turned < _TURNING:
            return
        else:
            self._page.show(moment)
        self._drawn = moment

    def _is_new(self, moment: Moment) -> bool:
        """Tell whether a moment is another one than what is on the screen."""
        before = self._drawn
        return before is None or (before is not moment and (before.time, before.told) != (moment.time, moment.told))

    def _ask_pair(
        self, source: int, target: int, take: Callable[[NDArray[np.float64], NDArray[np.float64]], None]
    ) -> None:
        async def ask() -> None:
            try:
                times, rates = await self._store.source.pair(source, target)
            except (OSError, WorkbenchError):
                return  # the line at the top tells that the head does not answer
            self._document.add_next_tick_callback(lambda: take(times, rates))

        task = asyncio.get_running_loop().create_task(ask())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
