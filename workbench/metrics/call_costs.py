"""What calls on all ranks and cells have cost, each of them, and which cell of a notebook had asked for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# Calls that are remembered.
_CALLS_KEPT = 500


@dataclass
class CallCost:
    """A call on all ranks, or a cell, that has ended on some ranks at least."""

    call: str
    """Identity."""
    cell: int | None
    """Number of the notebook's cell, as in ``In [12]``; None if it was asked outside of IPython."""
    what: str
    """Name of the function or the fit, or ``"a cell"``."""
    world: int
    begin: float
    """When the first rank began, in seconds since the epoch; ``end``: when the last has ended."""
    end: float
    ranks: int = 0
    """That have ended it."""
    seconds: float = 0.0
    """Of all ranks together, as all that follows."""
    mpi: float = 0.0
    """Seconds in MPI, waiting included."""
    operations: float = 0.0
    """Operations of MPI."""
    bytes: float = 0.0
    """Sent by MPI."""


class CallCosts:
    """The last calls of a cluster."""

    def __init__(self) -> None:
        self._cells: OrderedDict[str, int | None] = OrderedDict()
        self._calls: OrderedDict[str, tuple[int, CallCost]] = OrderedDict()

    def began(self, call: str, cell: int | None) -> None:
        """Note which cell has asked for a call."""
        self._cells[call] = cell
        if len(self._cells) > _CALLS_KEPT:
            self._cells.popitem(last=False)

    def ended(self, seq: int, world: int, call: Mapping[str, Any]) -> None:
        """Take a call that a rank has ended, as `workbench.metrics.rank_sample.FinishedCall`.

        Parameters
        ----------
        seq
            Of the tick to which it belongs.
        """
        name, begin, end = call["call"], call["begin"], call["end"]
        _, cost = self._calls.get(name, (0, None))
        if cost is None:
            cost = CallCost(name, self._cells.get(name), call["what"], world, begin, end)
        cost.begin, cost.end = min(cost.begin, begin), max(cost.end, end)
        cost.ranks += 1
        cost.seconds += end - begin
        for what in ("mpi", "operations", "bytes"):
            setattr(cost, what, getattr(cost, what) + call[what])
        self._calls[name] = seq, cost
        self._calls.move_to_end(name)
        if len(self._calls) > _CALLS_KEPT:
            self._calls.popitem(last=False)

    def since(self, since: int, until: int) -> list[dict[str, Any]]:
        """Return the calls that have changed after one tick and up to another."""
        return [asdict(cost) for seq, cost in self._calls.values() if since < seq <= until]
