"""The base of all pages, and Dask's dashboard in a page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.lab.dashboard import cards
from workbench.lab.dashboard.cards import CardFactory
from workbench.lab.dashboard.snapshot import Snapshot
from workbench.lab.dashboard.theme import Theme
from workbench.lab.dashboard.view_state import ViewState
from workbench.metrics.schema import TICK

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Maximum of columns of a heat map over time.
_HEAT_MAP_COLUMNS = 240
# With more ticks than this between two samples, data is missing between them.
_GAP_TICKS = 4

Take = Callable[["NDArray[np.float64]", "NDArray[np.float64]"], None]
"""Receives the times and rates of `Source.pair`."""


@dataclass(frozen=True)
class PageContext:
    """The parts of a session that a page uses.

    Attributes
    ----------
    view_state : ViewState
        The view; when it changes, the page is drawn again.
    cards : CardFactory
        Makes the cards.
    ask_pair : callable
        ``(source, target, take)``: requests the history of a pair, and calls ``take(times, rates)``.
    dask : str or None
        Address of Dask's dashboard, relative to this one.
    """

    view_state: ViewState
    cards: CardFactory
    ask_pair: Callable[[int, int, Take], None]
    dask: str | None = None


class Page(ABC):
    """One page of the dashboard, in one browser.

    Parameters
    ----------
    snapshot
        The first snapshot; the ranks and nodes of the page do not change.
    context
        The parts of the session that the page uses.

    Attributes
    ----------
    view
        The Panel object to show.
    """

    view: Any
    chosen: tuple[str, ...] = ()
    """Names of the view's parameters on which the cards depend, and not only their content."""

    def __init__(self, snapshot: Snapshot, context: PageContext) -> None:
        self.snapshot, self.context = snapshot, context
        self.view_state, self.cards = context.view_state, context.cards
        self.view = self.build()

    @property
    def theme(self) -> Theme:
        """Colors."""
        return self.cards.theme

    @abstractmethod
    def build(self) -> Any:
        """Return all cards, for the layout of `self.snapshot`."""

    @abstractmethod
    def draw(self) -> None:
        """Show `self.snapshot`."""

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        self.snapshot = snapshot
        self.draw()

    def leave(self) -> None:  # noqa: B027  (optional)
        """Stop activity in the browser before the page is hidden."""

    @property
    def ticks(self) -> slice:
        """The ticks that axes of time show."""
        # A tick covers the time before its end.
        return slice(int(np.searchsorted(self.snapshot.times, self.span[0] + TICK / 2, "right")), None)

    @property
    def span(self) -> tuple[float, float]:
        """Begin and end of axes of time."""
        return self.snapshot.time - 60 * self.view_state.minutes, self.snapshot.time

    def over_time(self, numbers: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float32], float]:
        """Return the columns of a heat map over time.

        Parameters
        ----------
        numbers
            Shape (f, k), one row for each tick of the snapshot.

        Returns
        -------
        times, values, tick
            Ends of the columns, numbers of shape (k, columns), and the seconds of a column. With more ticks than
            columns the numbers are means; columns without ticks are NaN.
        """
        times, numbers = _fill_gaps(self.snapshot.times[self.ticks], numbers[self.ticks])
        ticks_per_column = -(-round(60 * self.view_state.minutes / TICK) // _HEAT_MAP_COLUMNS)
        whole = len(times) // ticks_per_column * ticks_per_column
        if ticks_per_column > 1 and whole:
            numbers = numbers[-whole:].reshape(-1, ticks_per_column, numbers.shape[1]).mean(axis=1, dtype=np.float32)
            times = times[-whole:][ticks_per_column - 1 :: ticks_per_column]
        return times, numbers.T, ticks_per_column * TICK


def _fill_gaps(times: NDArray[np.float64], numbers: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Return the ticks with NaN for missing ticks, for example while a laptop was suspended."""
    steps = np.diff(times) / TICK
    late = steps > _GAP_TICKS
    if not late.any():
        return times, numbers
    at = np.concatenate([[0], np.cumsum(np.where(late, np.rint(steps), 1).astype(int))])
    filled = np.full((at[-1] + 1, numbers.shape[1]), np.nan, np.float32)
    filled[at] = numbers
    return np.interp(np.arange(len(filled)), at, times), filled


def long(times: NDArray[np.float64], names: list[str], numbers: NDArray[Any], row: str, value: str) -> pd.DataFrame:
    """Return numbers of shape (f, k) as a table with one number per row."""
    return pd.DataFrame({"time": np.repeat(times, len(names)), row: np.tile(names, len(times)), value: numbers.ravel()})


class DaskPage(Page):
    """Dask's task stream and progress."""

    def build(self) -> Any:
        """Make the card."""
        self._frame = cards.html()
        note = "Task stream and progress of Dask's scheduler" if self.context.dask is not None else ""
        return cards.column(self.cards.text("Dask's dashboard", self._frame, note))

    def draw(self) -> None:
        """Show the frame, whose page updates itself, or the reason why it is missing."""
        if self.context.dask is None:
            self._frame.object = "<p class=note>Dask's dashboard is not reachable from here.</p>"
        else:
            address = escape(self.context.dask, quote=True)
            # Some hubs forbid frames.
            link = f"<a href='{address}' target='_blank' rel='noopener'>open in a new tab</a>"
            frame = f"<iframe src='{address}' title='Dask' style='width:100%;height:80vh;border:0'></iframe>"
            self._frame.object = f"{frame}<p class=note>{link}</p>"

    def leave(self) -> None:
        """Remove the frame, because Dask would keep drawing in it."""
        self._frame.object = ""
