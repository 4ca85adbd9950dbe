"""Dask's own pages, embedded."""

from __future__ import annotations

from html import escape
from typing import Any

from workbench.dashboard import cards
from workbench.dashboard.page import Page


class DaskPage(Page):
    """Dask's task stream and progress, as its scheduler shows them."""

    def build(self) -> Any:
        """Make the card."""
        self._frame = cards.html()
        note = "Task stream and progress, by Dask's scheduler" if self.context.dask is not None else ""
        return cards.column(self.cards.text("Dask's own pages", self._frame, note))

    def draw(self) -> None:
        """Show the frame, or say why there is none; what is in it draws itself."""
        if self.context.dask is None:
            self._frame.object = "<p class=note>They are not reachable from here.</p>"
        else:
            address = escape(self.context.dask, quote=True)
            # Some hubs let no page of a server be in a frame.
            link = f"<a href='{address}' target='_blank' rel='noopener'>open them in a tab of their own</a>"
            frame = f"<iframe src='{address}' title='Dask' style='width:100%;height:80vh;border:0'></iframe>"
            self._frame.object = f"{frame}<p class=note>{link}</p>"

    def leave(self) -> None:
        """Take the frame away, or Dask would go on drawing in it."""
        self._frame.object = ""
