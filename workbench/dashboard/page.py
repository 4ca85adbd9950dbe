"""What a page is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.dashboard.cards import Cards
from workbench.dashboard.snapshot import Moment
from workbench.dashboard.theme import Theme
from workbench.dashboard.view_state import Looking
from workbench.metrics.schema import TICK

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Columns that a heat map over time has at most: it is no wider.
_COLUMNS = 240
# Ticks: what comes that late after the one before has nothing known between them, and was not just told late.
_GAP = 4

Take = Callable[["NDArray[np.float64]", "NDArray[np.float64]"], None]
"""Takes the times and rates of `Source.pair`."""


@dataclass(frozen=True)
class Desk:
    """What a page has at hand.

    Attributes
    ----------
    looking : Looking
        What is looked at; when it changes, the page is drawn anew.
    cards : Cards
        Makes the cards.
    ask_pair : callable
        ``(source, target, take)``: asks for the history of a pair, and has ``take(times, rates)`` called with it.
    dask : str or None
        Address of Dask's own pages, relative to this one.
    """

    looking: Looking
    cards: Cards
    ask_pair: Callable[[int, int, Take], None]
    dask: str | None = None


class Page(ABC):
    """Shows one side of what is known, to one who looks.

    Parameters
    ----------
    moment
        The first that is shown; ranks and nodes stay those.
    desk
        What it has at hand.

    Attributes
    ----------
    view
        The Panel object to show.
    """

    view: Any
    chosen: tuple[str, ...] = ()
    """What is chosen that the cards themselves depend on, not only what is in them."""

    def __init__(self, moment: Moment, desk: Desk) -> None:
        self.moment, self.desk = moment, desk
        self.looking, self.cards = desk.looking, desk.cards
        self.view = self.build()

    @property
    def theme(self) -> Theme:
        """Colours."""
        return self.cards.theme

    @abstractmethod
    def build(self) -> Any:
        """Make all cards, for `self.moment`."""

    @abstractmethod
    def draw(self) -> None:
        """Show `self.moment`."""

    def show(self, moment: Moment) -> None:
        """Show a moment."""
        self.moment = moment
        self.draw()

    def leave(self) -> None:  # noqa: B027  (most have nothing to do)
        """End what goes on though nobody looks: the page is hidden until it is shown again."""

    @property
    def ticks(self) -> slice:
        """The ticks that axes of time show."""
        # a tick is of the time before its end
        return slice(int(np.searchsorted(self.moment.times, self.span[0] + TICK / 2, "right")), None)

    @property
    def span(self) -> tuple[float, float]:
        """Begin and end of axes of time."""
        return self.moment.time - 60 * self.looking.minutes, self.moment.time

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
        times, numbers = _evenly(self.moment.times[self.ticks], numbers[self.ticks])
        each = -(-round(60 * self.looking.minutes / TICK) // _COLUMNS)
        whole = len(times) // each * each
        if each > 1 and whole:
            numbers = numbers[-whole:].reshape(-1, each, numbers.shape[1]).mean(axis=1, dtype=np.float32)
            times = times[-whole:][each - 1 :: each]
        return times, numbers.T, each * TICK


def _evenly(times: NDArray[np.float64], numbers: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Return ticks and their numbers with those that are lacking, as when a laptop has slept."""
    steps = np.diff(times) / TICK
    late = steps > _GAP
    if not late.any():
        return times, numbers
    at = np.concatenate([[0], np.cumsum(np.where(late, np.rint(steps), 1).astype(int))])
    filled = np.full((at[-1] + 1, numbers.shape[1]), np.nan, np.float32)
    filled[at] = numbers
    return np.interp(np.arange(len(filled)), at, times), filled


def long(times: NDArray[np.float64], names: list[str], numbers: NDArray[Any], of: str, what: str) -> pd.DataFrame:
    """Return numbers of shape (f, k) as a table of one number a line."""
    return pd.DataFrame({"time": np.repeat(times, len(names)), of: np.tile(names, len(times)), what: numbers.ravel()})
