"""The display of a cluster, as one line of text or as an HTML table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from workbench.deploy.record import Record
from workbench.session.current import dashboard_path
from workbench.text import count, countdown

_MAX_ROWS = 16
# Jupyter aligns cells to the right, and widgets set the lines far apart.
_CELL = "text-align:left;padding:.1em 1.2em .1em 0"
# These colors are visible on white and on black.
_COLORS = {"ready": "#43a047", "degraded": "#ef8f00", "failed": "#e53935", "closed": "#888888"}


def text(record: Record, up: int, status: str) -> str:
    """Return a line, for example ``MPICluster('mpi', 8 of 8 ranks, ready, tls://127.0.0.1:40001)``."""
    state = record.state if status == "running" else status
    return f"MPICluster({record.name!r}, {up} of {record.total} ranks, {state}, {record.address or 'no address yet'})"


def html(record: Record, ranks: list[dict[str, Any]], status: str) -> str:
    """Return the state and the ranks of a cluster as tables.

    Parameters
    ----------
    record
        The record from the head.
    ranks
        The facts of each rank, in rank order.
    status
        State of the connection. If it is not ``running``, it is shown in place of the state of the cluster.
    """
    state = record.state if status == "running" else status
    since = time.strftime("%-d %b %H:%M", time.localtime(record.created))
    job = f" job {record.job}" if record.job else ""
    dot = f'<span style="color:{_COLORS.get(state, "#1e88e5")}">&#9679;</span>'
    rows = {
        "state": Markup(f"{dot} {escape(state)}"),
        "ranks": f"{len(ranks)} of {record.total}, {count(record.threads, 'thread')} each",
        "MPI": record.mpi,
        "dashboard": _dashboard(record.name),
        "scheduler": record.address or "no address yet",
        **({"walltime": countdown(record.ends)} if record.ends else {}),
        "job": f"{record.scheduler}{job} on {record.process.host}, since {since}",
        "last event": record.message,
    }
    if state in ("closed", "gone"):
        # These values are not updated any more.
        del rows["ranks"], rows["dashboard"], rows["last event"]
        rows.pop("walltime", None)
        ranks = []
    state_table = table((), rows.items(), style="margin:.3em 0 .5em", cell=_CELL, key=";opacity:.7")
    return (
        f'<div style="line-height:1.5"><div style="font-weight:600">MPI cluster {escape(record.name)}</div>'
        f"{state_table}{_rank_table(ranks)}</div>"
    )


class Markup(str):
    """A text that is HTML."""

    __slots__ = ()


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    style: str = "margin:0",
    cell: str = "text-align:left",
    key: str = "",
) -> str:
    """Return an HTML table.

    Parameters
    ----------
    header
        Names of the columns; empty for a table without a header.
    rows
        Values, which are escaped unless they are `Markup`.
    style, cell
        Styles of the table and of its cells.
    key
        Additional style of the first cell of each row.
    """

    def line(tag: str, cells: Sequence[object], first: str) -> str:
        styles = [cell + first, *[cell] * (len(cells) - 1)]
        contents = (value if isinstance(value, Markup) else escape(str(value)) for value in cells)
        return "".join(f'<{tag} style="{css}">{content}</{tag}>' for css, content in zip(styles, contents, strict=True))

    head = f"<thead><tr>{line('th', header, '')}</tr></thead>" if header else ""
    body = "".join(f"<tr>{line('td', row, key)}</tr>" for row in rows)
    return f'<table style="{style}">{head}<tbody>{body}</tbody></table>'


def _dashboard(name: str) -> Markup:
    if path := dashboard_path(name):
        return Markup(f'<a href="{escape(path)}" target="_blank" rel="noopener">{escape(path)}</a>')
    return Markup(f"<code>workbench dashboard {escape(name)}</code> in a terminal")


def _rank_table(ranks: list[dict[str, Any]]) -> str:
    if not ranks:
        return ""
    rows = [(rank["name"], rank["host"], rank["pid"], rank["address"]) for rank in ranks[:_MAX_ROWS]]
    more = f"<div>and {len(ranks) - _MAX_ROWS} more ranks</div>" if len(ranks) > _MAX_ROWS else ""
    shown = table(("rank", "host", "pid", "worker"), rows, cell=_CELL)
    return f"<details><summary>{len(ranks)} ranks</summary>{shown}{more}</details>"
