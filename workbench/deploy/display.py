"""How a cluster shows itself: one line of text, a table in Jupyter that stays up to date."""

from __future__ import annotations

import html as escape
import time
from typing import Any

from tornado.ioloop import PeriodicCallback

from workbench.deploy.registry import Record
from workbench.session.notebook import dashboard_path
from workbench.text import count, countdown

_SHOWN = 16
# Jupyter aligns cells to the right, and widgets set the lines far apart.
_CELL = "text-align:left;padding:.1em 1.2em .1em 0"
# They have to be seen on white and on black.
_COLOURS = {"ready": "#43a047", "degraded": "#ef8f00", "failed": "#e53935", "closed": "#888888"}


def text(record: Record, up: int, status: str) -> str:
    """Return a line such as ``MPICluster('mpi', 8 of 8 ranks, ready, tls://127.0.0.1:40001)``."""
    state = record.state if status == "running" else status
    return f"MPICluster({record.name!r}, {up} of {record.total} ranks, {state}, {record.address or 'no address yet'})"


def html(record: Record, ranks: list[dict[str, Any]], status: str) -> str:
    """Return the cluster as a table: its state, then its ranks.

    Parameters
    ----------
    record
        What the head tells of the cluster.
    ranks
        What is known of each rank, in rank order.
    status
        State of the connection; anything but ``running`` is shown instead of the cluster's.
    """
    state = record.state if status == "running" else status
    since = time.strftime("%-d %b %H:%M", time.localtime(record.created))
    job = f" job {escape.escape(record.job)}" if record.job else ""
    dot = f'<span style="color:{_COLOURS.get(state, "#1e88e5")}">&#9679;</span>'
    rows = {
        "state": f"{dot} {escape.escape(state)}",
        "ranks": f"{len(ranks)} of {record.total}, {count(record.threads, 'thread')} each",
        "MPI": escape.escape(record.mpi),
        "dashboard": _dashboard(record.name),
        "scheduler": escape.escape(record.address or "no address yet"),
        **({"walltime": countdown(record.ends)} if record.ends else {}),
        "job": f"{escape.escape(record.scheduler)}{job} on {escape.escape(record.process.host)}, since {since}",
        "last event": escape.escape(record.message),
    }
    if state in ("closed", "gone"):
        # Nobody tells of them any more.
        del rows["ranks"], rows["dashboard"], rows["last event"]
        rows.pop("walltime", None)
        ranks = []
    head = "".join(
        f'<tr><td style="{_CELL};opacity:.7">{key}</td><td style="{_CELL}">{value}</td></tr>'
        for key, value in rows.items()
    )
    return (
        f'<div style="line-height:1.5"><div style="font-weight:600">MPI cluster {escape.escape(record.name)}</div>'
        f'<table style="margin:.3em 0 .5em">{head}</table>{_rank_table(ranks)}</div>'
    )


def _dashboard(name: str) -> str:
    if path := dashboard_path(name):
        return f'<a href="{escape.escape(path)}" target="_blank" rel="noopener">{escape.escape(path)}</a>'
    return f"<code>workbench dashboard {escape.escape(name)}</code> in a terminal"


def _rank_table(ranks: list[dict[str, Any]]) -> str:
    if not ranks:
        return ""
    columns = ("rank", "host", "pid", "worker")
    header = "".join(f'<th style="{_CELL}">{column}</th>' for column in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="{_CELL}">{escape.escape(str(value))}</td>'
            for value in (rank["name"], rank["host"], rank["pid"], rank["address"])
        )
        + "</tr>"
        for rank in ranks[:_SHOWN]
    )
    more = f"<div>and {len(ranks) - _SHOWN} more ranks</div>" if len(ranks) > _SHOWN else ""
    return (
        f"<details><summary>{len(ranks)} ranks</summary>"
        f'<table style="margin:0"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>{more}</details>'
    )


def widget(cluster: Any) -> Any:
    """Return the ipywidget that follows the cluster, or None without ipywidgets."""
    try:
        from ipywidgets import HTML
    except ImportError:
        return None
    follower = cluster.periodic_callbacks.get("cluster-repr")
    if follower is None:
        follower = _Follower(cluster, HTML(cluster._repr_html_()))
        if cluster.status.name == "running":
            cluster.periodic_callbacks["cluster-repr"] = follower
            cluster.loop.add_callback(follower.start)
    return follower.shown


class _Follower(PeriodicCallback):
    """Keeps a widget up to date, and leaves it telling that the cluster is closed."""

    def __init__(self, cluster: Any, shown: Any) -> None:
        super().__init__(self._update, 1000)
        self.cluster, self.shown = cluster, shown

    async def _update(self) -> None:
        try:
            await self.cluster.refresh()
            now = self.cluster._repr_html_()
        except OSError:
            now = html(self.cluster.record, [], "gone")
        if self.is_running() and now != self.shown.value:
            self.shown.value = now

    def stop(self) -> None:
        super().stop()
        self.shown.value = html(self.cluster.record, [], "closed")
