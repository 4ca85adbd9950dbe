"""Flow control: a browser reports that it has received what it was sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import panel as pn

# Seconds without a report after which a browser is sent more all the same.
_ANSWER_TIMEOUT_S = 10.0


class Backpressure:
    """Two numbers on the page that nobody sees: what was sent last, and what the browser has of it.

    Parameters
    ----------
    arrived
        Called when the browser has all that it was sent.

    Attributes
    ----------
    view
        Panel object that has to be on the page.

    Notes
    -----
    Panel and Bokeh send in ways of their own, so that on a machine that has other work a change to a chart may overtake
    the chart: nothing is changed on a page that is still on its way. An answer vouches for what is on the page, not for
    the last data: Bokeh's own changes of data go out after the number.
    """

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._then = arrived
        self._there = asyncio.Event()
        self._there.set()
        self._since = 0.0
        self._sent: Any = pn.widgets.IntInput(value=0)
        self._has: Any = pn.widgets.IntInput(value=0)
        self._sent.jscallback(args={"has": self._has}, value="has.value = cb_obj.value")
        self._heard = self._has.param.watch(self._hear, "value")
        self.view = pn.Row(self._sent, self._has, visible=False)

    @property
    def is_ready(self) -> bool:
        """Whether more may be sent."""
        return self._there.is_set() or time.monotonic() - self._since > _ANSWER_TIMEOUT_S

    def mark_sent(self) -> None:
        """Note that something was sent."""
        self._there.clear()
        self._since = time.monotonic()
        self._sent.value += 1

    async def wait_ready(self) -> None:
        """Wait until more may be sent."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._there.wait(), _ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """Stop watching: Panel keeps the callbacks of a browser, and with them their objects."""
        self._has.param.unwatch(self._heard)

    def _hear(self, event: Any) -> None:
        if event.new == self._sent.value:
            self._there.set()
            self._then()
