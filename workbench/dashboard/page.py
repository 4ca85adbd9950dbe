"""The base of all pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.dashboard.cards import CardFactory
from workbench.dashboard.snapshot import Snapshot
from workbench.dashboard.theme import Theme
from workbench.dashboard.view_state import ViewState
from workbench.metrics.schema import TICK

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Columns that a heat map over time has at most: it is no wider.
_HEAT_MAP_COLUMNS = 240
# Ticks between two samples above which the time between them is unknown, and the second is not merely late.
_GAP_TICKS = 4

Take = Callable[["NDArray[np.float64]", "NDArray[np.float64]"], None]
"""Takes the times and rates of `Source.pair`."""


@dataclass(frozen=True)
class PageContext:
    """What a page needs of its session.

    Attributes
    ----------
    view_state : ViewState
        What is chosen; when it changes, the page is drawn anew.
    cards : CardFactory
        Makes the cards.
    ask_pair : callable
        ``(source, target, take)``: asks for the history of a pair, and has ``take(times, rates)`` called with it.
    dask : str or None
        Address of Dask's own pages, relative to this one.
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
        The first that is shown; ranks and nodes stay those.
    context
        What the page needs of its session.

    Attributes
    ----------
    view
        The Panel object to show.
    """

    view: Any
    chosen: tuple[str, ...] = ()
    """What is chosen that the cards themselves depend on, not only what is in them."""

    def __init__(self, snapshot: Snapshot, context: PageContext) -> None:
        self.snapshot, self.context = snapshot, context
        self.view_state, self.cards = context.view_state, context.cards
        self.view = self.build()

    @property
    def theme(self) -> Theme:
        """Colours."""
        return self.cards.theme

    @abstractmethod
    def build(self) -> Any:
        """Make all cards, for `self.snapshot`."""

    @abstractmethod
    def draw(self) -> None:
        """Show `self.snapshot`."""

    def show(self, snapshot: Snapshot) -> None:
        """Show a moment."""
        self.snapshot = snapshot
        self.draw()

    def leave(self) -> None:  # noqa: B027  (most have nothing to do)
        """Stop what goes on in the browser: the page is hidden until it is shown again."""

    @property
    def ticks(self) -> slice:
        """The ticks that axes of time show."""
        # a tick is of the time before its end
        return slice(int(np.searchsorted(self.snapshot.times, self.span[0] + TICK / 2, "right")), None)

    @property
    def span(self) -> tuple[float, float]:
        """Begin and end of axes of time."""
        return self.snapshot.time - 60 * self.view_state.minutes, self.snapshot.time

    def over_time(self, numbers: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float32], float]:
        """Return numbers as a heat map over time has them.

        Parameters
        ----------
        numbers
            Of shape (f, k), one row for each tick of the moment.

        Returns
        -------
        times, values, tick
            Ends of the columns, numbers of shape (k, columns), and the seconds of a column: means, if there are more
            ticks than columns; NaN where for a while there were no ticks.
        """
        times, numbers = _evenly(self.snapshot.times[self.ticks], numbers[self.ticks])
        ticks_per_column = -(-round(60 * self.view_state.minutes / TICK) // _HEAT_MAP_COLUMNS)
        whole = len(times) // ticks_per_column * ticks_per_column
        if ticks_per_column > 1 and whole:
            numbers = numbers[-whole:].reshape(-1, ticks_per_column, numbers.shape[1]).mean(axis=1, dtype=np.float32)
            times = times[-whole:][ticks_per_column - 1 :: ticks_per_column]
        return times, numbers.T, ticks_per_column * TICK


def _evenly(times: NDArray[np.float64], numbers: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Return ticks and their numbers with those that are lacking, as when a laptop has slept."""
    steps = np.diff(times) / TICK
    late = steps > _GAP_TICKS
    if not late.any():
        return times, numbers
    at = np.concatenate([[0], np.cumsum(np.where(late, np.rint(steps), 1).astype(int))])
    filled = np.full((at[-1] + 1, numbers.shape[1]), np.nan, np.float32)
    filled[at] = numbers
    return np.interp(np.arange(len(filled)), at, times), filled


def long(times: NDArray[np.float64], names: list[str], numbers: NDArray[Any], of: str, what: str) -> pd.DataFrame:
    """Return numbers of shape (f, k) as a table of one number a line."""
    return pd.DataFrame({"time": np.repeat(times, len(names)), of: np.tile(names, len(times)), what: numbers.ravel()})
