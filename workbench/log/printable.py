"""Text of a log file as a terminal or a page can show it: anybody's words may be in it, and they are only text."""

from __future__ import annotations

import re

LONGEST = 4000
"""Characters of a line that are shown."""
_LONG = re.compile(f"(?<![^\r\n])([^\r\n]{{{LONGEST}}})([^\r\n]+)")
# Orders to terminals, but for carriage return and escape: C0 without tab and newline, DEL and C1. The others change the
# order in which text is read.
_ORDERS = "\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_ALL = re.compile(f"[\r\x1b{_ORDERS}]")
_ALL_BUT_COLOURS = re.compile(rf"[{_ORDERS}]|\x1b(?!\[(?:[0-9;]*m|K))")


def printable(text: str) -> str:
    r"""Return a text with control characters written out, as in ``\x1b``, and with long lines cut.

    Notes
    -----
    What follows a carriage return begins a line: on a terminal it would hide what was there before.
    """
    return _written_out(_ALL, text.replace("\r\n", "\n").replace("\r", "\n"))


def coloured(text: str) -> str:
    r"""Return a text as `printable`, with what a page can show like a terminal: colours and carriage returns.

    Notes
    -----
    Colours are those of ``\x1b[31m``, and ``\x1b[K``, which often follows them, clears the rest of a line.
    """
    return _written_out(_ALL_BUT_COLOURS, text)


def _written_out(orders: re.Pattern[str], text: str) -> str:
    return orders.sub(lambda found: ascii(found[0])[1:-1], _LONG.sub(_cut, text))


def _cut(line: re.Match[str]) -> str:
    return f"{line[1]} [... {len(line[2])} more characters are in the file]"
