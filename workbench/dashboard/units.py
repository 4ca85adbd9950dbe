"""Numbers in words of few letters."""

from __future__ import annotations

import math
import time

UNKNOWN = "?"
"""What is not known."""

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(number: float) -> str:
    """Word a number of bytes.

    Examples
    --------
    >>> size(0), size(1536), size(512 * 2**30)
    ('0 B', '1.5 KiB', '512 GiB')
    """
    if not math.isfinite(number):
        return UNKNOWN
    power = min(int(math.log(number, 1024)) if number >= 1 else 0, len(_SIZES) - 1)
    value = number / 1024**power
    return f"{value:.0f} {_SIZES[power]}" if not power or value >= 99.95 else f"{value:.3g} {_SIZES[power]}"


def rate(number: float) -> str:
    """Word bytes a second."""
    return f"{size(number)}/s"


def count(number: float) -> str:
    """Word a large number.

    Examples
    --------
    >>> count(999), count(12_345), count(3.4e9)
    ('999', '12.3 k', '3.4 G')
    """
    if not math.isfinite(number):
        return UNKNOWN
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            return f"{number / (limit if letter != 'k' else 1e3):.3g} {letter}"
    return f"{number:.4g}"


def number(value: float) -> str:
    """Word a number with five digits.

    Examples
    --------
    >>> number(113462.7), number(0.0012345), number(3.0e-9)
    ('113,463', '0.0012345', '3e-09')
    """
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.5g}"


def percent(part: float) -> str:
    """Word a part of a whole."""
    return f"{100 * part:.0f} %" if math.isfinite(part) else UNKNOWN


def span(seconds: float) -> str:
    """Word a short time.

    Examples
    --------
    >>> span(0.0021), span(0.5), span(42.4)
    ('2.1 ms', '500 ms', '42.4 s')
    """
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds / 3600:.3g} h"


def clock(moment: float) -> str:
    """Word a moment of today, to the second."""
    return time.strftime("%H:%M:%S", time.localtime(moment))
