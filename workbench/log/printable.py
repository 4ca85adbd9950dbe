"""Text of programs and of users made safe for a terminal, a page or a message between processes."""

from __future__ import annotations

import re

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
