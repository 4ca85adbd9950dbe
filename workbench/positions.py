"""Positions of the ranks in a call, and the message of a call that makes no progress."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from workbench.text import count, duration

# Ranges of ranks, and groups of ranks, in a sentence. Further ones are counted.
_RANGES, _GROUPS = 8, 6


def describe(places: Mapping[int, Mapping[str, Any] | None]) -> str:
    """Return a sentence about the positions of ranks.

    Parameters
    ----------
    places
        By rank, as of `workbench.call_stack`; None for an idle rank, ``{"silent": True}`` for a rank that does
        not answer.

    Examples
    --------
    >>> describe({0: {"operation": "Bcast", "seconds": 31.4}, 1: {"operation": None, "place": "fit.py:42"}, 2: None})
    'rank 0 is in Bcast for 31 s; rank 1 is in user code at fit.py:42; rank 2 is idle'
    >>> describe({0: {"task": "load", "tasks": 2, "seconds": 12.3, "place": "data.py:7"}})
    'rank 0 is in the task load (the oldest of 2) at data.py:7 for 12 s'
    """
    groups: dict[tuple[int, str], list[int]] = {}
    for rank in sorted(places):
        groups.setdefault(_where(places[rank]), []).append(rank)
    # ranks that wait in MPI first, then the ranks for which they wait
    named = sorted(groups.items(), key=lambda group: (group[0][0], -len(group[1])))
    sentences = [_sentence(where, ranks, places) for (_, where), ranks in named[:_GROUPS]]
    if further := sum(len(ranks) for _, ranks in named[_GROUPS:]):
        sentences.append(f"{count(further, 'rank')} elsewhere")
    return "; ".join(sentences)


def ranges(ranks: Iterable[int]) -> str:
    """Return text for ranks, with ranges of consecutive ranks.

    Examples
    --------
    >>> ranges([0, 1, 2, 5]), ranges(range(0, 40, 2))
    ('0-2, 5', '0, 2, 4, 6, 8, 10, 12, 14 and 12 more')
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    text = ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans[:_RANGES])
    more = sum(len(span) for span in spans[_RANGES:])
    return f"{text} and {more} more" if more else text


def label(ranks: Iterable[int]) -> str:
    """Return ranks as text.

    Examples
    --------
    >>> label([2]), label([0, 1, 3])
    ('rank 2', 'ranks 0-1, 3')
    """
    ranks = list(ranks)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}"


def labeled(label: str, text: str) -> str:
    r"""Return output with its label, in the same line if the output has one line.

    Examples
    --------
    >>> labeled("rank 2", "hello")
    'rank 2: hello\n'
    """
    text = text if text.endswith("\n") else f"{text}\n"
    return f"{label}:{' ' if text.count(chr(10)) == 1 else chr(10)}{text}"


def _where(place: Mapping[str, Any] | None) -> tuple[int, str]:
    if place is None:
        return 2, "idle"
    if place.get("silent"):
        return 3, ""
    if "task" in place:
        of = "" if place["tasks"] == 1 else f" (the oldest of {place['tasks']})"
        return 1, f"in the task {place['task']}{of}" + ("" if place["place"] == "?" else f" at {place['place']}")
    if place["operation"] is not None:
        return 0, f"in {place['operation']}"
    return 1, f"{'importing a module' if place.get('importing') else 'in user code'} at {place['place']}"


def _sentence(where: str, ranks: list[int], places: Mapping[int, Mapping[str, Any] | None]) -> str:
    one = len(ranks) == 1
    subject = f"{'rank' if one else 'ranks'} {ranges(ranks)}"
    if not where:
        return f"{subject} {'does' if one else 'do'} not answer"
    lasting = [
        place for rank in ranks if (place := places[rank]) and ("task" in place or place["operation"] is not None)
    ]
    seconds = [place["seconds"] for place in lasting]
    since = f" for {duration(max(seconds))}" if seconds else ""
    return f"{subject} {'is' if one else 'are'} {where}{since}"


class StallDetector:
    """Detects that no rank of a call or a cell has entered or left an operation of MPI for `patience` seconds.

    The caller passes the positions of the ranks to `report` every `interval` seconds.
    """

    def __init__(self, patience: float) -> None:
        self.interval = patience / 4
        self._patience = patience
        self._began = time.monotonic()
        self._next = self._began + self.interval
        self._again = self._began
        self._since: dict[int, float] = {}

    def is_due(self) -> bool:
        """Return whether `interval` has passed since the last `report`."""
        return time.monotonic() >= self._next

    def report(self, places: Mapping[int, Mapping[str, Any]]) -> str | None:
        """Return the positions of the ranks if none makes progress, at most once per `patience` seconds; else None.

        Parameters
        ----------
        places
            By rank, as of `workbench.call_stack`; ``{"silent": True}`` for a rank that does not answer.
        """
        now = time.monotonic()
        # A rank that does not answer counts as in the last known position.
        self._since = {
            rank: now - place["seconds"] if "seconds" in place else self._since.get(rank, self._began)
            for rank, place in places.items()
        }
        self._next = now + self.interval
        if now < self._again or not places or now - max(self._since.values()) < self._patience:
            return None
        self._again = now + self._patience
        return describe(places)
