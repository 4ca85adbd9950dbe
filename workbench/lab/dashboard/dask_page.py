"""Dask's dashboard, embedded."""

from __future__ import annotations

from html import escape
from typing import Any

from workbench.lab.dashboard import cards
from workbench.lab.dashboard.page import Page


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
