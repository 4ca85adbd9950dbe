"""The result of a cell on its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.cells.engine_client import CellOutput
from workbench.cells.run_cell import CellOutcome
from workbench.collective.rank_locations import ranges
from workbench.collective.serialize import loads
from workbench.errors import CollectiveFailed, CollectiveTimeout, RankLost
from workbench.hints import Command

# Causes of lost ranks in a message, at most.
_CAUSES = 3


@dataclass
class CellResult:
    """Result of a cell."""

    world: int
    """Index of the world."""
    ranks: Sequence[int]
    """Ranks that ran the cell."""
    done: dict[int, CellOutcome] = field(default_factory=dict)
    """Outcomes by rank, of the ranks that have ended the cell."""
    outputs: dict[int, list[CellOutput]] = field(default_factory=dict)
    """Outputs by rank, in the order of arrival."""
    lost: Mapping[int, str] = field(default_factory=dict)
    """Ranks that died in the cell, with the cause of each loss as the end of a sentence; empty if not known."""
    disconnected: bool = False
    """Whether the controller of the cells ended in the cell, which the ranks then ended."""
    interrupted: bool = False
    """Whether Ctrl-C in this process ended the cell."""
    timed_out: bool = False
    """Whether the cell was ended after its timeout."""

    @property
    def silent(self) -> list[int]:
        """Ranks that live, but have not ended the cell."""
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
            If a value could not be sent, or a rank did not complete the cell.
        WorkbenchError
            As of `check`.
        """
        self.check()
        return [self._value(rank) for rank in self.ranks]

    def _value(self, rank: int) -> Any:
        outcome = self.done[rank]
        if outcome.status != "ok":
            raise CollectiveFailed(f"rank {rank} returned no value: {outcome.summary}")
        if outcome.refusal:
            raise CollectiveFailed(f"the value on rank {rank} was not sent: {outcome.refusal}")
        try:
            return None if outcome.value is None else loads(outcome.value)
        except Exception as error:
            raise CollectiveFailed(
                f"the value of rank {rank} cannot be unpickled in this process: {type(error).__name__}: {error}"
            ) from error

    def check(self) -> None:
        """Return if all ranks have completed the cell.

        Raises
        ------
        RankLost
            If a rank died.
        CollectiveTimeout
            If the cell was ended after its timeout.
        CollectiveFailed
            If the cell failed or was ended on a rank, with the reason, or if a rank does not end the cell.
        """
        if self.lost:
            noun, verb = ("rank", "was") if len(self.lost) == 1 else ("ranks", "were")
            causes = [f"rank {rank}{cause}" for rank, cause in self.lost.items() if cause][:_CAUSES]
            cause = next(iter(self.lost.values())) if len(self.lost) == 1 else f": {', '.join(causes)}" * bool(causes)
            raise RankLost(f"{noun} {ranges(self.lost)} of world {self.world} {verb} lost in this cell{cause}.")
        if self.disconnected:
            raise CollectiveFailed(
                f"the controller of the cells of world {self.world} ended during this cell, and the cell was ended. "
                "The next cell starts another controller, and finds the names of earlier cells.",
                hint=("See controller.log among the logs: ", Command("logs")),
            )
        if self.silent:
            raise CollectiveFailed(
                f"{'rank' if len(self.silent) == 1 else 'ranks'} {ranges(self.silent)} of world {self.world} did not "
                "end this cell: C code, and code that catches KeyboardInterrupt, cannot be interrupted.",
                hint=("Wait for the end, or start the ranks again: ", Command("restart")),
            )
        if self.failed:
            rank = self.failed[0]
            raise CollectiveFailed(f"the cell failed on rank {rank} of world {self.world}: {self.done[rank].summary}")
        ended = [rank for rank in self.ranks if self.done[rank].status in {"ended", "interrupted"}]
        if self.timed_out:
            raise CollectiveTimeout(
                f"the cell was ended: {self.done[ended[0]].summary if ended else 'its time limit has passed'}"
            )
        if ended and not self.interrupted:
            noun = "rank" if len(ended) == 1 else "ranks"
            raise CollectiveFailed(f"the cell was ended on {noun} {ranges(ended)}: {self.done[ended[0]].summary}")
