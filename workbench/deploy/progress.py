"""A cluster's start on the screen, in a terminal, in a notebook and in a log file."""

from __future__ import annotations

import abc
import sys
import time
from types import TracebackType
from typing import Self

from workbench.session import notebook

# Seconds after which the time in the line is brought up to date.
_TICK = 0.5
_BAR = 20


class _Screen(abc.ABC):
    """Where the line is shown."""

    live: bool
    """Whether the line can be replaced, so that time and ranks are seen to pass."""

    @abc.abstractmethod
    def draw(self, line: str) -> None:
        """Show the line, in the place of the one before where lines are live."""

    @abc.abstractmethod
    def close(self) -> None:
        """Leave the last line where it is."""

    def note(self, line: str) -> None:
        """Show a line that stays, ahead of the first that is drawn."""
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class _Nowhere(_Screen):
    live = False

    def draw(self, line: str) -> None:
        pass

    def close(self) -> None:
        pass

    def note(self, line: str) -> None:
        pass


class _File(_Nowhere):
    def draw(self, line: str) -> None:
        _Screen.note(self, line)

    def note(self, line: str) -> None:
        _Screen.note(self, line)


class _Terminal(_Screen):
    live = True

    def draw(self, line: str) -> None:
        # To the end of the line nothing of the one before may be left.
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\n")


class _Cell(_Nowhere):
    """An output of its own in the notebook's cell: saved notebooks keep its last line alone."""

    live = True

    def __init__(self) -> None:
        from IPython.display import DisplayHandle

        self._handle = DisplayHandle()
        self._show = self._handle.display

    def note(self, line: str) -> None:
        print(line)  # noqa: T201  (the notebook's cell is where it belongs)

    def draw(self, line: str) -> None:
        self._show({"text/plain": line}, raw=True)
        self._show = self._handle.update


def _screen() -> _Screen:
    if notebook.is_kernel():
        return _Cell()
    return _Terminal() if sys.stderr.isatty() else _File()


class Progress:
    """One line: the state in words, k of n ranks, a bar, the seconds.

    Parameters
    ----------
    ranks
        Number of ranks that are awaited.
    quiet
        Show nothing.
    note
        A line to show ahead of it.

    Notes
    -----
    A terminal and a file get it on standard error, a file (or pipe) one line for each state.
    """

    def __init__(self, ranks: int, *, quiet: bool, note: str = "") -> None:
        self._state, self._up, self._ranks = "submitted", 0, ranks
        self._screen = _Nowhere() if quiet else _screen()
        self._started = self._drawn = time.monotonic()
        if note:
            self._screen.note(note)

    def __enter__(self) -> Self:
        self._draw()
        return self

    def show(self, state: str, up: int, ranks: int | None = None) -> None:
        """Show that `up` ranks are there now, of as many as before or of `ranks`."""
        before, now = (self._state, self._up, self._ranks), (state, up, ranks or self._ranks)
        self._state, self._up, self._ranks = now
        changed = now != before or time.monotonic() - self._drawn > _TICK
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
            self._state = "failed"
            self._draw()
        self._screen.close()
