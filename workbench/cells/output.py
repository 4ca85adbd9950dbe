"""The output and the result of a cell that ran on many ranks: equal outputs of several ranks once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.cells.engine_client import CellOutput
from workbench.cells.run_cell import CellOutcome
from workbench.collective.serialize import loads
from workbench.errors import CollectiveFailed, CollectiveTimeout, RankLost
from workbench.hints import Command
from workbench.positions import label, labeled, ranges

# Causes of lost ranks in a message, at most.
_CAUSES = 3


@dataclass
class CellResult:
    """Result of a cell."""

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
            raise CollectiveFailed(f"rank {rank} returned no value: {outcome.summary}", ranks=(rank,))
        if outcome.refusal:
            raise CollectiveFailed(f"the value on rank {rank} was not sent: {outcome.refusal}", ranks=(rank,))
        try:
            return None if outcome.value is None else loads(outcome.value)
        except Exception as error:
            raise CollectiveFailed(
                f"the value of rank {rank} cannot be unpickled in this process: {type(error).__name__}: {error}",
                ranks=(rank,),
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
            noun, were = ("rank", "was") if len(self.lost) == 1 else ("ranks", "were")
            causes = [f"rank {rank}{cause}" for rank, cause in self.lost.items() if cause][:_CAUSES]
            cause = next(iter(self.lost.values())) if len(self.lost) == 1 else f": {', '.join(causes)}" * bool(causes)
            words = f"{noun} {ranges(self.lost)} {were} lost in this cell{cause}."
            raise RankLost(words, ranks=self.lost)
        if self.disconnected:
            raise CollectiveFailed(
                "the controller of the cells ended during this cell, and the cell was ended. "
                "The next cell starts another controller, and finds the names of earlier cells.",
                hint=("See controller.log among the logs: ", Command("logs")),
            )
        if self.silent:
            raise CollectiveFailed(
                f"{'rank' if len(self.silent) == 1 else 'ranks'} {ranges(self.silent)} did not "
                "end this cell: C code, and code that catches KeyboardInterrupt, cannot be interrupted.",
                ranks=self.silent,
                hint=("Wait for the end, or start the ranks again: ", Command("restart")),
            )
        if self.failed:
            rank = self.failed[0]
            words = f"the cell failed on rank {rank}: {self.done[rank].summary}"
            raise CollectiveFailed(words, ranks=(rank,))
        ended = [rank for rank in self.ranks if self.done[rank].status in {"ended", "interrupted"}]
        if self.timed_out:
            raise CollectiveTimeout(
                f"the cell was ended: {self.done[ended[0]].summary if ended else 'its time limit has passed'}"
            )
        if ended and not self.interrupted:
            noun = "rank" if len(ended) == 1 else "ranks"
            words = f"the cell was ended on {noun} {ranges(ended)}: {self.done[ended[0]].summary}"
            raise CollectiveFailed(words, ranks=ended)


@dataclass(frozen=True)
class OutputGroup:
    """One output of one or more ranks."""

    label: str
    """The ranks: ``"ranks 0-3"``."""
    item: CellOutput


def with_label(shown: OutputGroup) -> str:
    r"""Return the text of a stream with its label, in the same line if the text has one line.

    Examples
    --------
    >>> with_label(OutputGroup("rank 2", CellOutput("stdout", "hello")))
    'rank 2: hello\n'
    """
    return labeled(shown.label, shown.item.text)


def grouped(outputs: Mapping[int, list[CellOutput]]) -> list[OutputGroup]:
    """Group the outputs of ranks: ranks with equal outputs share a group.

    Parameters
    ----------
    outputs
        Outputs by rank, in the order of arrival.
    """
    groups: dict[str, tuple[list[int], list[CellOutput]]] = {}
    for rank, items in sorted(outputs.items()):
        merged = list(_merged(items))
        key = json.dumps([(item.kind, item.text, item.data) for item in merged], sort_keys=True, default=str)
        groups.setdefault(key, ([], merged))[0].append(rank)
    return [OutputGroup(label(ranks), item) for ranks, items in groups.values() for item in items]


def _merged(items: Iterable[CellOutput]) -> Iterator[CellOutput]:
    """Join adjacent outputs of one stream; a value that has only a text form is output of a stream, too."""
    before: CellOutput | None = None
    for item in items:
        output = as_text(item)
        if before is not None and output.text and before.kind == output.kind:
            # A value begins on a new line, as in any notebook.
            ended = output is item or before.text.endswith("\n")
            before = replace(before, text=f"{before.text}{'' if ended else chr(10)}{output.text}")
            continue
        if before is not None:
            yield before
        before = output
    if before is not None:
        yield before


def as_text(item: CellOutput) -> CellOutput:
    """Return a value that has only a text form as output of a stream, and any other output unchanged."""
    if item.kind in {"display", "result"} and set(item.data) == {"text/plain"}:
        return CellOutput("stdout", f"{item.data['text/plain']}\n")
    return item


def failures(result: CellResult) -> list[str]:
    """Return messages about the ranks that did not complete a cell; the traceback of the lowest one first."""
    messages: list[str] = []
    failed = result.failed
    if failed and not result.lost:  # a lost rank may be the cause of all other failures
        first = result.done[failed[0]]
        equal = [rank for rank in failed if result.done[rank].summary == first.summary]
        messages.append(f"{label(equal)} raised:\n{first.traceback or first.summary}")
    for summary, ranks in _by(result, "error"):
        if ranks[0] != failed[0] or result.lost:
            messages.append(f"{label(ranks)} raised {summary}")
    messages += [f"{label(ranks)} left the cell by exit(), which ends no rank" for _, ranks in _by(result, "exit")]
    for status in ("ended", "interrupted"):
        messages += [f"{label(ranks)}: the cell was ended, because {summary}" for summary, ranks in _by(result, status)]
    cut: dict[int, list[int]] = {}
    for rank, done in sorted(result.done.items()):
        if done.cut:
            cut.setdefault(done.cut, []).append(rank)
    return messages + [
        f"{label(ranks)}: {number:,} more characters of output are not shown (setting workbench.cells.output-limit)"
        for number, ranks in cut.items()
    ]


def _by(result: CellResult, status: str) -> list[tuple[str, list[int]]]:
    """Return the ranks with a status, by their summaries."""
    ranks: dict[str, list[int]] = {}
    for rank, done in sorted(result.done.items()):
        if done.status == status:
            ranks.setdefault(done.summary, []).append(rank)
    return list(ranks.items())


class LinePrefixer:
    """Formats output at its arrival, with the number of the rank before each line."""

    def __init__(self) -> None:
        self._begun: dict[tuple[int, str], str] = {}

    def lines(self, rank: int, item: CellOutput) -> str:
        """Return the lines that an output of a rank completes."""
        text = self._begun.pop((rank, item.kind), "") + item.text
        whole, _, rest = text.rpartition("\n")
        if rest:
            self._begun[rank, item.kind] = rest
        return "".join(f"[{rank}] {line}\n" for line in whole.split("\n")) if whole or text.startswith("\n") else ""

    def rest(self, rank: int | None = None) -> str:
        """Return the lines that have no end yet, of a rank or of all ranks."""
        keys = sorted(key for key in self._begun if rank in (None, key[0]))
        return "".join(f"[{key[0]}] {self._begun.pop(key)}\n" for key in keys)
