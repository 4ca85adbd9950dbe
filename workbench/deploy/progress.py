"""What a terminal, a notebook or a log shows of a cluster that changes: the line of a start, and a table.

The table is a widget of Jupyter.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from tornado.ioloop import PeriodicCallback

from workbench.deploy.display import html
from workbench.session.current import is_kernel


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
    """Updates a widget until the cluster is closed, and then shows that state."""

    def __init__(self, cluster: Any, shown: Any) -> None:
        super().__init__(self._update, 1000)
        self.cluster, self.shown = cluster, shown

    async def _update(self) -> None:
        try:
            await self.cluster.refresh()
            table = self.cluster._repr_html_()
        except OSError:
            table = html(self.cluster.record, [], "gone")
        if self.is_running() and table != self.shown.value:
            self.shown.value = table

    def stop(self) -> None:
        super().stop()
        self.shown.value = html(self.cluster.record, [], "closed")


# Seconds between two updates of the time in the line.
_UPDATE_INTERVAL = 0.5
_BAR = 20


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
