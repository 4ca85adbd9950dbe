"""Cards, the parts of a page: each with a title, and charts with their numbers as CSV."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from html import escape
from itertools import chain, count
from typing import Any

import pandas as pd
import panel as pn
from bokeh.models import ColumnDataSource, CustomAction, CustomJS

from workbench.lab.dashboard.theme import Theme

_ICON = (
    "data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24' fill='none' stroke='%23888' "
    "stroke-width='1.6' stroke-linecap='round' stroke-linejoin='round'><path d='M6 3h8l4 4v4M6 3v8'/>"
    "<text x='12' y='21' font-size='9' font-family='sans-serif' text-anchor='middle' fill='%23888' stroke='none' "
    "font-weight='bold'>CSV</text></svg>"
)
# Lets the browser save a table that it has received.
_SAVE = """
const link = document.createElement("a")
link.href = URL.createObjectURL(new Blob([cb_obj.data.text[0]], {type: "text/csv"}))
link.download = cb_obj.data.name[0]
link.click()
URL.revokeObjectURL(link.href)
"""
_TEXT = """
:host { font-size: 13px; line-height: 1.5; color: var(--text); }
h2 { font-size: 14px; font-weight: 600; margin: 0; }
.note { color: var(--muted); font-size: 12px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: var(--muted); font-size: 12px; }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.wide { white-space: normal; overflow-wrap: anywhere; width: 99%; }
tr:last-child td { border-bottom: none; }
.right { text-align: right; }
.bar { display: inline-block; width: min(110px, 8vw); height: 8px; border-radius: 4px; background: var(--line); }
.bar i { display: block; height: 8px; border-radius: 4px; background: var(--accent); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 8px 24px; margin-top: 8px; }
.tile b { display: block; font-size: 22px; font-weight: 600; letter-spacing: -0.01em; line-height: 1.25; }
.tile { color: var(--muted); font-size: 12px; } .tile b { color: var(--text); }
/* Six tiles fill each of these numbers of columns. */
.six { container-type: inline-size; margin-bottom: 12px; }
.six .tiles { grid-template-columns: repeat(2, 1fr); }
@container (min-width: 480px) { .six .tiles { grid-template-columns: repeat(3, 1fr); } }
@container (min-width: 1080px) { .six .tiles { grid-template-columns: repeat(6, 1fr); } }
.dot { display: inline-block; width: 8px; height: 8px; margin-right: 6px; border-radius: 50%;
  background: var(--muted); }
.good .dot { background: var(--good); }
.bad .dot { background: var(--bad); }
.facts { display: grid; grid-template-columns: auto 1fr; gap: 2px 16px; margin: 0; }
.facts dt { grid-column: 1; color: var(--muted); } .facts dd { grid-column: 2; margin: 0; }
.bad, .tile b.bad { color: var(--bad); }
p { margin: 0 0 8px 0; } p:last-child { margin: 0; }
.scroll { overflow: auto; max-height: 420px; }
"""
_CARD = {
    "background": "var(--card)",
    "border": "1px solid var(--line)",
    "border-radius": "10px",
    "padding": "14px 16px",
    "box-sizing": "border-box",
    "min-width": "0",
    # Columns of cards beside each other end at the same height.
    "flex": "1 1 auto",
}
# For what is as high as its neighbors.
_STRETCHED = ":host { align-self: stretch !important; height: auto !important; }"
# Minimum width of a card beside others.
_MIN_WIDTH_PX = 420

Table = Callable[[], pd.DataFrame]


def html(text: str = "") -> Any:
    """Return a pane of HTML."""
    return pn.pane.HTML(text, sizing_mode="stretch_width", margin=0, stylesheets=[_TEXT])


def heading(title: str, note: str = "") -> str:
    """Return the heading of a card."""
    return f"<h2>{escape(title)}</h2>" + (f"<div class=note>{escape(note)}</div>" if note else "")


def rows(heads: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[int] = (), wide: int = -1) -> str:
    """Return a table of cells of markup that scrolls where it is wider than its card.

    Columns may be aligned right, or take the remaining width.
    """

    def kind(column: int) -> str:
        return " class=right" if column in right else " class=wide" if column == wide else ""

    head = "".join(f"<th{kind(column)}>{escape(text)}</th>" for column, text in enumerate(heads))
    body = "".join(
        f"<tr>{''.join(f'<td{kind(column)}>{cell}</td>' for column, cell in enumerate(row))}</tr>" for row in cells
    )
    return f"<div class=scroll><table><tr>{head}</tr>{body}</table></div>"


def tile(value: str, label: str, *, bad: bool = False) -> str:
    """Return a number with its label."""
    return f"<div class=tile><b{' class=bad' * bad}>{escape(value)}</b>{escape(label)}</div>"


def bar(part: float) -> str:
    """Return a bar that is filled to a fraction, and empty for NaN."""
    return f"<span class=bar><i style='width:{100 * min(max(0.0, part), 1.0):.0f}%'></i></span>"


def column(*cards: Any) -> Any:
    """Return cards below each other."""
    return pn.Column(
        *cards,
        sizing_mode="stretch_width",
        margin=0,
        styles={"gap": "14px", "min-width": "0"},
        # Panel's last child, without a height, would add a gap.
        stylesheets=[_STRETCHED, ".scroll-button { display: none !important; }"],
    )


def row(*cards: Any) -> Any:
    """Return cards beside each other, or below each other where the page is too narrow."""
    for card in cards:
        card.styles = {**card.styles, "flex": f"1 1 {_MIN_WIDTH_PX}px"}
    return pn.FlexBox(*cards, sizing_mode="stretch_width", margin=0, gap="14px", align_items="stretch")


def unique_name(name: str, others: Container[str], mark: str) -> str:
    """Return a name that is not among the others, with a mark and a number appended if necessary."""
    return next(each for each in chain([name], (f"{name}{mark}{at}" for at in count(2))) if each not in others)


class CardFactory:
    """Makes the cards of a page.

    Parameters
    ----------
    theme
        Colors.
    live
        Whether a server answers requests of the page; a report has no server, and no tables for download.

    Attributes
    ----------
    tables : dict of str to callable
        Functions that return the numbers of a chart, by the name of the chart.
    """

    def __init__(self, theme: Theme, *, live: bool = True) -> None:
        self.theme, self.live = theme, live
        self.tables: dict[str, Table] = {}
        self._requested = ColumnDataSource({"name": []})
        self._saved = ColumnDataSource({"name": [], "text": []})
        self._requested.on_change("data", self._save)
        self._saved.js_on_change("data", CustomJS(code=_SAVE))

    def text(self, title: str, content: Any, note: str = "") -> Any:
        """Return a card of text."""
        return self._card(title, note, [content])

    def chart(self, title: str, figure: Any, table: Table, note: str = "", above: Any = None) -> Any:
        """Return a card of a figure.

        Parameters
        ----------
        title
            Title of the card.
        figure
            The Bokeh figure.
        table
            Returns the numbers of the figure.
        note
            Units and explanation.
        above
            Panel object between heading and figure.
        """
        slug = "".join(letter if letter.isalnum() else " " for letter in title.lower()).split()
        name = unique_name("-".join(slug), self.tables, "-")
        self.tables[name] = table
        if self.live:
            request = CustomJS(
                args={"wanted": self._requested, "saved": self._saved, "name": name},
                code="wanted.data = {name: [name], at: [Date.now()]}",
            )
            figure.add_tools(CustomAction(icon=_ICON, description="Save as CSV", callback=request))
        shown = pn.pane.Bokeh(figure, sizing_mode="stretch_width", margin=0)
        return self._card(title, note, [shown] if above is None else [above, shown])

    def csv(self, name: str) -> str:
        """Return the numbers of a chart as CSV."""
        return self.tables[name]().to_csv(index=False)

    def _save(self, attribute: str, before: Any, now: Any) -> None:
        for name in now["name"]:
            if name in self.tables:
                # The time makes a second request for the same table a change.
                self._saved.data = {"name": [f"{name}.csv"], "text": [self.csv(name)], "at": now["at"]}

    def _card(self, title: str, note: str, content: list[Any]) -> Any:
        return pn.Column(
            html(heading(title, note)),
            *content,
            margin=0,
            sizing_mode="stretch_width",
            styles=dict(_CARD),
            stylesheets=[_STRETCHED],
        )
