"""The messages of a cell between a notebook and an engine: the code, and the outcome.

Notebooks make these objects, so this module imports nothing that takes long.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.cells.namespaces import SHARED


@dataclass
class CellOutcome:
    """Outcome of a cell on one rank, without its output, which is sent earlier."""

    status: str
    """``ok``, ``error``, ``exit`` (by ``exit()``), ``ended`` (since another rank failed) or ``interrupted``."""
    summary: str = ""
    """Reason of a status that is not ``ok``, in one line."""
    traceback: str = ""
    """Traceback of an error, as IPython formats it."""
    value: bytes | None = None
    """Parcel of the value of the last line, if the notebook wants values."""
    refusal: str = ""
    """Reason of a value that could not be sent."""
    cut: int = 0
    """Characters of output above the limit."""


@dataclass(frozen=True)
class RunCell:
    """A cell that an engine calls."""

    cell: str
    """Identity of the cell, as in `workbench.cells.protocol.Prepare`."""
    source: str
    """Source text of the user."""
    result_limit: int | None = None
    """Bytes that the parcel of the value of the last line may have; None: the notebook wants no values."""
    namespace: str = SHARED
    """Name of the namespace of the cell."""

    def __call__(self) -> CellOutcome:
        """Run the cell by the engine of this process."""
        from workbench.cells.engine import RankEngine

        outcome: CellOutcome = RankEngine.instance().run_cell(self)
        return outcome


@dataclass(frozen=True)
class Ping:
    """An empty message to an engine, whose answer shows that messages arrive in both directions."""

    def __call__(self) -> None:
        """Do nothing."""
