"""Dask's own pages, embedded."""

from __future__ import annotations

from html import escape
from typing import Any

from workbench.dashboard import cards
from workbench.dashboard.page import Page


class DaskPage(Page):
    """Dask's task stream and progress, as its scheduler shows them."""

    def build(self) -> Any:
        """Make the frame, or say why there is none."""
        if self.desk.dask is None:
            words = "<p class=note>Dask's own pages are not reachable from here.</p>"
            return cards.column(self.cards.text("Dask", cards.html(words)))
        address = escape(self.desk.dask, quote=True)
        frame = f"<iframe src='{address}' title='Dask' style='width:100%;height:80vh;border:0'></iframe>"
        return cards.column(self.cards.text("Dask", cards.html(frame), "Task stream and progress, by Dask's scheduler"))

    def draw(self) -> None:
        """Nothing: what is in the frame draws itself."""
