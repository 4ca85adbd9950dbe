"""The cost of each SPMD call and each cell, and the notebook cell that requested the call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_CALLS_KEPT = 500


@dataclass
class CallCost:
    """An SPMD call, or a cell, that has ended on one rank at least."""

    call: str
    """Identity."""
    cell: int | None
    """Number of the notebook cell, for example 12 of ``In [12]``; None for a call from outside IPython."""
    what: str
    """Name of the function or the fit, or ``"a cell"``."""
    world: int
    begin: float
    """Begin on the first rank, in seconds since the epoch; ``end``: end on the last rank."""
    end: float
    ranks: int = 0
    """Ranks on which the call has ended."""
    seconds: float = 0.0
    """Sum over all ranks, like the numbers below."""
    mpi: float = 0.0
    """Seconds in MPI, waiting included."""
    operations: float = 0.0
    """Number of MPI operations."""
    bytes: float = 0.0
    """Bytes sent over MPI."""


class CallCosts:
    """The latest calls of a cluster."""

    def __init__(self) -> None:
        self._cells: OrderedDict[str, int | None] = OrderedDict()
        self._calls: OrderedDict[str, tuple[int, CallCost]] = OrderedDict()

    def began(self, call: str, cell: int | None) -> None:
        """Record the notebook cell that requested a call."""
        self._cells[call] = cell
        if len(self._cells) > _CALLS_KEPT:
            self._cells.popitem(last=False)

    def ended(self, seq: int, world: int, call: Mapping[str, Any]) -> None:
        """Add the fields of a `workbench.metrics.rank_sample.FinishedCall` of a rank to the tick `seq`."""
        name, begin, end = call["call"], call["begin"], call["end"]
        _, cost = self._calls.get(name, (0, None))
        if cost is None:
            cost = CallCost(name, self._cells.get(name), call["what"], world, begin, end)
        cost.begin, cost.end = min(cost.begin, begin), max(cost.end, end)
        cost.ranks += 1
        cost.seconds += end - begin
        for column in ("mpi", "operations", "bytes"):
            setattr(cost, column, getattr(cost, column) + call[column])
        self._calls[name] = seq, cost
        self._calls.move_to_end(name)
        if len(self._calls) > _CALLS_KEPT:
            self._calls.popitem(last=False)

    def since(self, since: int, until: int) -> list[dict[str, Any]]:
        """Return the calls that changed after the tick `since`, up to the tick `until`."""
        return [asdict(cost) for seq, cost in self._calls.values() if since < seq <= until]
