"""The output of a cell that ran on many ranks, as a notebook shows it: equal outputs of several ranks once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from workbench.cells.engine_client import CellOutput
from workbench.cells.result import CellResult
from workbench.collective.rank_locations import label, labeled


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
