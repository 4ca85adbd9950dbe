"""How a cluster shows itself: one line of text, a table in Jupyter that stays up to date."""

from __future__ import annotations

import html as escape
import time
from typing import Any

from workbench.registry import Record

_SHOWN = 16
_COLOURS = {"ready": "#2e7d32", "degraded": "#b26a00", "failed": "#c62828", "closed": "#777777"}


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
    minutes = max(0.0, time.time() - record.created) / 60
    dot = f'<span style="color:{_COLOURS.get(state, "#1565c0")}">&#9679;</span>'
    rows = {
        "state": f"{dot} {escape.escape(state)}",
        "ranks": f"{len(ranks)} of {record.total}, {record.threads} thread{'s'[: record.threads > 1]} each",
        "MPI": escape.escape(record.mpi),
        "scheduler": f"{escape.escape(record.address or '')} (TLS)",
        "job": f"{escape.escape(record.scheduler)} on {escape.escape(record.process.host)}, for {minutes:.0f} min",
        "last event": escape.escape(record.message),
    }
    head = "".join(
        f'<tr><td style="text-align:left;opacity:.7">{key}</td><td style="text-align:left">{value}</td></tr>'
        for key, value in rows.items()
    )
    return (
        f'<div><div style="font-weight:600;margin-bottom:.3em">MPI cluster {escape.escape(record.name)}</div>'
        f'<table style="margin:0 0 .5em 0">{head}</table>{_rank_table(ranks)}</div>'
    )


def _rank_table(ranks: list[dict[str, Any]]) -> str:
    if not ranks:
        return ""
    columns = ("rank", "host", "pid", "worker")
    header = "".join(f'<th style="text-align:left">{column}</th>' for column in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="text-align:left">{escape.escape(str(value))}</td>'
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
    """Return an ipywidget that follows the cluster, or None without ipywidgets."""
    try:
        from ipywidgets import HTML
    except ImportError:
        return None
    from tornado.ioloop import PeriodicCallback

    shown = HTML(cluster._repr_html_())

    async def update() -> None:
        try:
            if cluster.status.name == "running":
                await cluster.refresh()
            now = cluster._repr_html_()
        except OSError:
            now = html(cluster.record, [], "gone")
        if now != shown.value:
            shown.value = now

    def install() -> None:
        callback = PeriodicCallback(update, 1000)
        cluster.periodic_callbacks["cluster-repr"] = callback
        callback.start()

    if cluster.status.name == "running" and "cluster-repr" not in cluster.periodic_callbacks:
        cluster.loop.add_callback(install)
    return shown
