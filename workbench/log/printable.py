"""Text of a log file made safe for a terminal or a page, since any program may have written it."""

from __future__ import annotations

import re

LONGEST = 4000
"""Maximum characters of a line."""
_LONG = re.compile(f"(?<![^\r\n])([^\r\n]{{{LONGEST}}})([^\r\n]+)")
# Control characters except carriage return and escape: C0 without tab and newline, DEL and C1; and characters that
# change the direction of text.
_CONTROLS = "\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_ALL = re.compile(f"[\r\x1b{_CONTROLS}]")
_ALL_BUT_COLORS = re.compile(rf"[{_CONTROLS}]|\x1b(?!\[(?:[0-9;]*m|K))")


def printable(text: str) -> str:
    r"""Return a text with control characters written out, as in ``\x1b``, and with long lines cut.

    Notes
    -----
    A carriage return becomes a new line: on a terminal the text after it would hide the text before it.
    """
    return _escape(_ALL, text.replace("\r\n", "\n").replace("\r", "\n"))


def colored(text: str) -> str:
    r"""Return a text like `printable`, but with colors and carriage returns, which a page can show.

    Notes
    -----
    Colors are those of ``\x1b[31m``, and ``\x1b[K``, which often follows them, clears the rest of a line.
    """
    return _escape(_ALL_BUT_COLORS, text)


def _escape(controls: re.Pattern[str], text: str) -> str:
    return controls.sub(lambda match: ascii(match[0])[1:-1], _LONG.sub(_cut, text))


def _cut(line: re.Match[str]) -> str:
    return f"{line[1]} [... {len(line[2])} more characters are in the file]"
