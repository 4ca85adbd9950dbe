"""What a notebook shows of a cell that ran on many ranks: the same of several ranks once, each with its ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from workbench.cells.engine_client import CellOutput
from workbench.cells.result import CellResult
from workbench.collective.rank_locations import ranges


@dataclass(frozen=True)
class OutputGroup:
    """One piece of what is shown."""

    label: str
    """Whose it is: ``"ranks 0-3"``."""
    item: CellOutput


def label(ranks: Iterable[int]) -> str:
    """Name some ranks.

    Examples
    --------
    >>> label([2]), label([0, 1, 3])
    ('rank 2', 'ranks 0-1, 3')
    """
    ranks = list(ranks)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}"


def with_label(shown: OutputGroup) -> str:
    r"""Return the text of a stream with its label: beside one line, above several.

    Examples
    --------
    >>> with_label(OutputGroup("rank 2", CellOutput("stdout", "hello")))
    'rank 2: hello\n'
    """
    text = shown.item.text if shown.item.text.endswith("\n") else f"{shown.item.text}\n"
    return f"{shown.label}:{' ' if text.count(chr(10)) == 1 else chr(10)}{text}"


def grouped(outputs: Mapping[int, list[CellOutput]]) -> list[OutputGroup]:
    """Group the outputs of ranks: what several of them have said alike comes once.

    Parameters
    ----------
    outputs
        By rank, in the order in which they came.
    """
    groups: dict[str, tuple[list[int], list[CellOutput]]] = {}
    for rank, items in sorted(outputs.items()):
        merged = list(_merged(items))
        key = json.dumps([(item.kind, item.text, item.data) for item in merged], sort_keys=True, default=str)
        groups.setdefault(key, ([], merged))[0].append(rank)
    return [OutputGroup(label(ranks), item) for ranks, items in groups.values() for item in items]


def _merged(items: Iterable[CellOutput]) -> Iterator[CellOutput]:
    """Join what was written in pieces; a value that is only text is written, too."""
    before: CellOutput | None = None
    for item in items:
        now = as_text(item)
        if before is not None and now.text and before.kind == now.kind:
            # A value begins in a line of its own, as in any notebook.
            ended = now is item or before.text.endswith("\n")
            before = replace(before, text=f"{before.text}{'' if ended else chr(10)}{now.text}")
            continue
        if before is not None:
            yield before
        before = now
    if before is not None:
        yield before


def as_text(item: CellOutput) -> CellOutput:
    """Make a stream of a value that has no other form than text."""
    if item.kind in {"display", "result"} and set(item.data) == {"text/plain"}:
        return CellOutput("stdout", f"{item.data['text/plain']}\n")
    return item


def failures(result: CellResult) -> list[str]:
    """Return what is to be said of ranks on which a cell did not go well; the traceback of the lowest one first."""
    said: list[str] = []
    failed = result.failed
    if failed and not result.lost:  # of which all other failures may be a consequence
        first = result.done[failed[0]]
        alike = [rank for rank in failed if result.done[rank].summary == first.summary]
        said.append(f"{label(alike)} raised:\n{first.traceback or first.summary}")
    for summary, ranks in _by(result, "error"):
        if ranks[0] != failed[0] or result.lost:
            said.append(f"{label(ranks)} raised {summary}")
    said += [f"{label(ranks)} left the cell by exit(); the ranks go on" for _, ranks in _by(result, "exit")]
    for status in ("ended", "interrupted"):
        said += [f"{label(ranks)}: ended, since {summary}" for summary, ranks in _by(result, status)]
    cut: dict[int, list[int]] = {}
    for rank, done in sorted(result.done.items()):
        if done.cut:
            cut.setdefault(done.cut, []).append(rank)
    return said + [
        f"{label(ranks)}: {number:,} more characters of output are not shown (setting workbench.cells.output-limit)"
        for number, ranks in cut.items()
    ]


def _by(result: CellResult, status: str) -> list[tuple[str, list[int]]]:
    """Return the ranks of a status, by what they say."""
    found: dict[str, list[int]] = {}
    for rank, done in sorted(result.done.items()):
        if done.status == status:
            found.setdefault(done.summary, []).append(rank)
    return list(found.items())


class LinePrefixer:
    """Output as it comes, each line with the number of its rank."""

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
        """Return the lines that were left without an end, of a rank or of all."""
        keys = sorted(key for key in self._begun if rank in (None, key[0]))
        return "".join(f"[{key[0]}] {self._begun.pop(key)}\n" for key in keys)
