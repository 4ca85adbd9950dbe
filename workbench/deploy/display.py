"""The display of a cluster: a line, an HTML table, a widget that follows the cluster, the progress of a start."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from html import escape
from types import TracebackType
from typing import Any, Self

from workbench.deploy.record import Record
from workbench.session.current import dashboard_path, is_kernel
from workbench.text import count, countdown

_MAX_ROWS = 16
# Seconds between two updates of the time in the line.
_UPDATE_INTERVAL = 0.5
_BAR = 20
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


class _Follower:
    """Updates a widget each second until the cluster is closed, and then shows that state."""

    def __init__(self, cluster: Any, shown: Any) -> None:
        from tornado.ioloop import PeriodicCallback  # the command also loads this module, and starts without tornado

        self.cluster, self.shown = cluster, shown
        self._updates = PeriodicCallback(self._update, 1000)

    async def _update(self) -> None:
        try:
            await self.cluster.refresh()
            table = self.cluster._repr_html_()
        except OSError:
            table = html(self.cluster.record, [], "gone")
        if self._updates.is_running() and table != self.shown.value:
            self.shown.value = table

    def start(self) -> None:
        """Begin to update, on the event loop of the cluster."""
        self._updates.start()

    def stop(self) -> None:
        """End the updates."""
        self._updates.stop()
        self.shown.value = html(self.cluster.record, [], "closed")


class _Screen:
    """The output of the line; this class shows nothing."""

    live = False
    """Whether the line can be replaced."""

    def note(self, line: str) -> None:
        """Show a permanent line before the first progress line."""

    def draw(self, line: str) -> None:
        """Show the line; a live line replaces the previous one."""

    def close(self) -> None:
        """End the output after the last line."""


class _File(_Screen):
    def note(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    draw = note


class _Terminal(_File):
    live = True

    def draw(self, line: str) -> None:
        # The escape sequence erases the rest of the previous line.
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\n")


class _Cell(_Screen):
    """A separate output of the notebook's cell, of which a saved notebook keeps the last line only."""

    live = True

    def __init__(self) -> None:
        from IPython.display import DisplayHandle

        self._handle = DisplayHandle()
        self._show = self._handle.display

    def note(self, line: str) -> None:
        print(line)  # noqa: T201  (the output of the notebook's cell)

    def draw(self, line: str) -> None:
        self._show({"text/plain": line}, raw=True)
        self._show = self._handle.update


def _screen() -> _Screen:
    if is_kernel():
        return _Cell()
    return _Terminal() if sys.stderr.isatty() else _File()


def placed_again(again: Sequence[str], failed: Sequence[str], ranks: int) -> None:
    """Print which names of a notebook have collections on other ranks, and which do not."""
    if again:
        print(f"placed again on {count(ranks, 'rank')}: {', '.join(again)}")  # noqa: T201  (output of a notebook's cell)
    if failed:
        print(f"not placed again, so place them before the next call: {', '.join(failed)}")  # noqa: T201  (as above)


class Progress:
    """A line with the state, k of n ranks, a bar and the seconds.

    Terminals and files get the line on standard error, a file (or pipe) one line per state.

    Parameters
    ----------
    ranks
        Number of expected ranks.
    quiet
        Show nothing.
    note
        A permanent line before the first progress line.
    """

    def __init__(self, ranks: int, *, quiet: bool, note: str = "") -> None:
        self._state, self._up, self._ranks = "submitted", 0, ranks
        self._screen = _Screen() if quiet else _screen()
        self._started = self._drawn = time.monotonic()
        if note:
            self._screen.note(note)

    def __enter__(self) -> Self:
        self._draw()
        return self

    def show(self, state: str, up: int, ranks: int | None = None) -> None:
        """Show that `up` ranks have registered, of `ranks` or of the previous number."""
        before, current = (self._state, self._up, self._ranks), (state, up, ranks or self._ranks)
        self._state, self._up, self._ranks = current
        changed = current != before or time.monotonic() - self._drawn > _UPDATE_INTERVAL
        if state != before[0] or (changed and self._screen.live):
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        filled = _BAR * min(self._up, self._ranks) // self._ranks
        bar = f" |{'█' * filled}{' ' * (_BAR - filled)}|" if self._screen.live else ""
        seconds = self._drawn - self._started
        self._screen.draw(f"{self._state} · {self._up} of {self._ranks} ranks{bar} {seconds:.1f} s")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.show("failed", self._up)
        self._screen.close()
