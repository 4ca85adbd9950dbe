"""Texts of times, counts, exit codes and tables, and the arguments of a line that a user types."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from workbench.errors import InvalidRequest

# A time of day alone is ambiguous beyond this distance.
_SAME_DAY_S = 20 * 3600.0


def duration(seconds: float) -> str:
    """Return the text of a time span.

    Examples
    --------
    >>> duration(42), duration(3600), duration(7500), duration(200_000)
    ('42 s', '1 h', '2 h 5 min', '2 d 7 h')
    """
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    first = next((i for i, (size, _) in enumerate(units) if seconds >= size), len(units) - 1)
    parts: list[str] = []
    for size, unit in units[first : first + 2]:
        number, seconds = divmod(seconds, size)
        if number or not parts:
            parts.append(f"{number:.0f} {unit}")
    return " ".join(parts)


def clock(moment: float) -> str:
    """Return the clock time of a moment in seconds since the epoch, with the day, and the year, if it is not near."""
    year = "" if time.localtime(moment).tm_year == time.localtime().tm_year else "%Y "
    day = "" if abs(moment - time.time()) < _SAME_DAY_S else f"%-d %b {year}"
    return time.strftime(f"{day}%H:%M", time.localtime(moment))


def countdown(ends: float) -> str:
    """Return the text of the time left until a moment."""
    left = ends - time.time()
    return f"{duration(max(0.0, left))} left, until {clock(ends)}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> count(1, "rank"), count(8, "rank")
    ('1 rank', '8 ranks')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def table_lines(rows: Iterable[Sequence[str]], align: Callable[[str, int], str]) -> list[str]:
    """Return the lines of a table whose columns are aligned with `str.ljust` or `str.rjust`.

    Examples
    --------
    >>> table_lines([("rank", "host"), ("0", "n1")], str.rjust)
    ['rank  host', '   0    n1']
    """
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(align, line, widths)).rstrip() for line in lines]


def rank_name(world: int, rank: int) -> str:
    """Return the name of a rank, unique in all worlds; its worker has the same name.

    Examples
    --------
    >>> rank_name(0, 3), rank_name(1, 3)
    ('3', 'w1.3')
    """
    return f"w{world}.{rank}" if world else str(rank)


def rank_and_process(facts: Mapping[str, Any]) -> str:
    """Return the text of a rank with its process, from the facts with which the rank has registered."""
    return f"rank {facts['rank']} of world {facts['world']} (pid {facts.get('pid')} on {facts.get('host')})"


def exit_description(code: int) -> str:
    """Return the text of the exit code of a process.

    Examples
    --------
    >>> exit_description(1), exit_description(-9)
    ('exit code 1', 'signal 9 (SIGKILL)')
    """
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}"


def split(line: str) -> list[str]:
    """Return the arguments of a line as a shell splits it, without a comment at its end.

    Raises
    ------
    InvalidRequest
        If a quote is not closed.
    """
    try:
        # shlex would begin a comment inside of a word, too
        for comment in re.finditer(r"(?<!\S)#", line):
            with contextlib.suppress(ValueError):  # inside of quotes
                return shlex.split(line[: comment.start()])
        return shlex.split(line)
    except ValueError as error:
        raise InvalidRequest(f"cannot read {line!r}: {str(error).lower()}. Close every quote.") from None
