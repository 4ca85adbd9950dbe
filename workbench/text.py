"""Texts of times, counts and tables, the words of a typed line, and foreign text made safe to show."""

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


def rank_and_process(facts: Mapping[str, Any]) -> str:
    """Return the text of a rank with its process, from the facts with which the rank has registered."""
    return f"rank {facts['rank']} (pid {facts.get('pid')} on {facts.get('host')})"


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


LONGEST = 4000
"""Maximum characters of a line."""
_LONG = re.compile(f"(?<![^\r\n])([^\r\n]{{{LONGEST}}})([^\r\n]+)")
# Control characters except carriage return and escape: C0 without tab and newline, DEL and C1; characters that change
# the direction of text; and surrogates, which UTF-8 does not have. Python makes one of each byte of the name of a file
# that is not UTF-8.
_CONTROLS = "\ud800-\udfff\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
# C programs, Open MPI among them, print the end of a text as a character.
_END = re.compile(r"(?<!\x00)\x00++$", re.MULTILINE)
_ALL = re.compile(f"[\r\x1b{_CONTROLS}]")
_ALL_BUT_COLORS = re.compile(rf"[{_CONTROLS}]|\x1b(?!\[(?:[0-9;]*m|K))")


def printable(text: str) -> str:
    r"""Return a text with control characters written out, as in ``\x1b``, and with long lines cut.

    Notes
    -----
    A carriage return becomes a new line: on a terminal the text after it would hide the text before it.
    """
    return _escape(_ALL, text.replace("\r\n", "\n").replace("\r", "\n"))


def brief(text: str, longest: int = LONGEST) -> str:
    r"""Return a text of user code for a message between processes: like `printable`, and without the middle if longer.

    Notes
    -----
    A text that UTF-8 cannot encode would end the connection that sends it, and with it the rank.

    Examples
    --------
    >>> brief("cannot read x\udce9.nc"), brief("a very long text", longest=4)
    ('cannot read x\\udce9.nc', 'a  [... 12 characters] xt')
    """
    if (left := len(text) - longest) > 0:
        text = f"{text[: longest // 2]} [... {left} characters] {text[-longest // 2 :]}"
    return _controls_out(_ALL, text.replace("\r\n", "\n").replace("\r", "\n"))


def colored(text: str) -> str:
    r"""Return a text like `printable`, but with colors and carriage returns, which a page can show.

    Notes
    -----
    Colors are those of ``\x1b[31m``, and ``\x1b[K``, which often follows them, clears the rest of a line.
    """
    return _escape(_ALL_BUT_COLORS, text)


def _escape(controls: re.Pattern[str], text: str) -> str:
    return _controls_out(controls, _LONG.sub(_cut, text))


def _controls_out(controls: re.Pattern[str], text: str) -> str:
    return controls.sub(lambda match: ascii(match[0])[1:-1], _END.sub("", text))


def _cut(line: re.Match[str]) -> str:
    return f"{line[1]} [... {len(line[2])} more characters are in the file]"
