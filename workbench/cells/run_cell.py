"""A cell on its way to a rank and back: what the notebook sends to an engine, and what it answers.

Imports nothing heavy: notebooks make these objects.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CellOutcome:
    """How a cell went on one rank. Its output is not part of it: that goes ahead, as it comes."""

    status: str
    """``ok``, ``error``, ``exit`` (it left by itself), ``ended`` (since another rank failed) or ``interrupted``."""
    summary: str = ""
    """Why it is not ok, in one line."""
    traceback: str = ""
    """Of an error, as IPython words it."""
    value: bytes | None = None
    """The value of its last line as a parcel, if it was wanted."""
    refusal: str = ""
    """Why the value that was wanted is not there."""
    cut: int = 0
    """Characters of output that were too many."""


@dataclass(frozen=True)
class RunCell:
    """A cell for an engine, to be called there."""

    cell: str
    """Its id, under which the head has prepared it."""
    source: str
    """As the user has typed it."""
    result_limit: int | None = None
    """Bytes that the value of its last line may have as a parcel; None: it is not wanted."""

    def __call__(self) -> CellOutcome:
        """Run it, as the engine of this process does."""
        from workbench.cells.engine import RankEngine

        done: CellOutcome = RankEngine.instance().run_cell(self)
        return done


@dataclass(frozen=True)
class Ping:
    """Answers at once, to see that the way to an engine and back is open."""

    def __call__(self) -> None:
        """Do nothing."""
