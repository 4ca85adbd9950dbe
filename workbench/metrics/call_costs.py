"""What calls on all ranks and cells have cost, each of them, and which cell of a notebook had asked for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# Calls that are remembered.
_MANY = 500


@dataclass
class Call:
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


class Calls:
    """The last calls of a cluster."""

    def __init__(self) -> None:
        self._cells: OrderedDict[str, int | None] = OrderedDict()
        self._calls: OrderedDict[str, tuple[int, Call]] = OrderedDict()

    def began(self, call: str, cell: int | None) -> None:
        """Note which cell has asked for a call."""
        self._cells[call] = cell
        if len(self._cells) > _MANY:
            self._cells.popitem(last=False)

    def ended(self, seq: int, world: int, told: Mapping[str, Any]) -> None:
        """Take what a rank tells of a call that it has ended, as `workbench.metrics.rank_sample.Ended`.

        Parameters
        ----------
        seq
            Of the tick to which it belongs.
        """
        name, begin, end = told["call"], told["begin"], told["end"]
        _, its = self._calls.get(name, (0, None))
        if its is None:
            its = Call(name, self._cells.get(name), told["what"], world, begin, end)
        its.begin, its.end = min(its.begin, begin), max(its.end, end)
        its.ranks += 1
        its.seconds += end - begin
        for what in ("mpi", "operations", "bytes"):
            setattr(its, what, getattr(its, what) + told[what])
        self._calls[name] = seq, its
        self._calls.move_to_end(name)
        if len(self._calls) > _MANY:
            self._calls.popitem(last=False)

    def since(self, since: int, until: int) -> list[dict[str, Any]]:
        """Return the calls of which something was told after one tick and up to another."""
        return [asdict(its) for seq, its in self._calls.values() if since < seq <= until]
