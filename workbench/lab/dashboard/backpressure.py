"""Flow control: a browser reports that it has received what it was sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import panel as pn

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
