"""How a cell went on the ranks that ran it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.cells.engine_client import CellOutput
from workbench.cells.run_cell import CellOutcome
from workbench.collective.rank_locations import ranges
from workbench.collective.serialize import loads
from workbench.errors import CollectiveFailed, CollectiveTimeout, RankLost
from workbench.hints import Command


@dataclass
class CellResult:
    """How a cell went."""

    world: int
    ranks: Sequence[int]
    """That ran it."""
    done: dict[int, CellOutcome] = field(default_factory=dict)
    """By rank; of those that came to its end."""
    outputs: dict[int, list[CellOutput]] = field(default_factory=dict)
    """By rank, in the order in which they came."""
    lost: Sequence[int] = ()
    """Ranks that died in it."""
    interrupted: bool = False
    """Whether it was ended by Ctrl-C here."""
    timed_out: bool = False
    """Whether it was ended after its time."""

    @property
    def silent(self) -> list[int]:
        """Ranks that live, but have not come to its end."""
        return sorted(set(self.ranks) - set(self.done) - set(self.lost))

    @property
    def failed(self) -> list[int]:
        """Ranks whose own code failed."""
        return [rank for rank in self.ranks if rank in self.done and self.done[rank].status == "error"]

    def values(self) -> list[Any]:
        """Return the value of the last line on each rank, in rank order.

        Raises
        ------
        CollectiveFailed
            If a value could not be sent, or a rank did not come to the end of the cell.
        WorkbenchError
            As of `check`.
        """
        self.check()
        return [self._value(rank) for rank in self.ranks]

    def _value(self, rank: int) -> Any:
        done = self.done[rank]
        if done.status != "ok":
            raise CollectiveFailed(f"there is no value of rank {rank}: {done.summary}")
        if done.refusal:
            raise CollectiveFailed(f"the value on rank {rank} does not come here: {done.refusal}")
        try:
            return None if done.value is None else loads(done.value)
        except Exception as error:
            raise CollectiveFailed(
                f"the value that rank {rank} sent cannot be made here: {type(error).__name__}: {error}"
            ) from error

    def check(self) -> None:
        """Return if it went well.

        Raises
        ------
        RankLost
            If a rank died.
        CollectiveTimeout
            If it was ended after its time.
        CollectiveFailed
            If it failed or was ended on a rank, with the reason; or a rank does not come out of it.
        """
        if self.lost:
            them, were = ("rank", "was") if len(self.lost) == 1 else ("ranks", "were")
            raise RankLost(f"{them} {ranges(self.lost)} of world {self.world} {were} lost in this cell")
        if self.silent:
            raise CollectiveFailed(
                f"{'rank' if len(self.silent) == 1 else 'ranks'} {ranges(self.silent)} of world {self.world} did not "
                "come out of this cell: code in C, or that catches KeyboardInterrupt, cannot be ended from outside.",
                hint=("Wait for it, or start the ranks again: ", Command("restart")),
            )
        if self.failed:
            rank = self.failed[0]
            raise CollectiveFailed(f"the cell failed on rank {rank} of world {self.world}: {self.done[rank].summary}")
        ended = [rank for rank in self.ranks if self.done[rank].status in {"ended", "interrupted"}]
        if self.timed_out:
            raise CollectiveTimeout(
                f"the cell was ended: {self.done[ended[0]].summary if ended else 'it took too long'}"
            )
        if ended and not self.interrupted:
            them = "rank" if len(ended) == 1 else "ranks"
            raise CollectiveFailed(f"the cell was ended on {them} {ranges(ended)}: {self.done[ended[0]].summary}")
