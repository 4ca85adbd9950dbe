"""Text of a log file as a terminal or a page can show it: anybody's words may be in it, and they are only text."""

from __future__ import annotations

import re

LONGEST = 4000
"""Characters of a line that are shown."""
_LONG = re.compile(f"(?m)^(.{{{LONGEST}}})(.+)$")
# All of C0 but tab and newline, DEL and C1 are orders to terminals; the others change the order in which text is read.
_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Return a text with control characters written out, as in ``\x1b``, and with long lines cut.

    Notes
    -----
    What follows a carriage return begins a line: on a terminal it would hide what was there before.
    """
    lines = _LONG.sub(_cut, text.replace("\r\n", "\n").replace("\r", "\n"))
    return _ORDERS.sub(lambda found: ascii(found[0])[1:-1], lines)


def _cut(line: re.Match[str]) -> str:
    return f"{line[1]} [... {len(line[2])} more characters are in the file]"
