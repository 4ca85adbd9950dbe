"""Numbers as short text."""

from __future__ import annotations

import math
import time

UNKNOWN = "?"
"""Text of a missing number."""

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_THOUSANDS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def size(number: float) -> str:
    """Format a number of bytes.

    Examples
    --------
    >>> size(0), size(1536), size(512 * 2**30), size(1023.99 * 1024)
    ('0 B', '1.5 KiB', '512 GiB', '1 MiB')
    """
    if not math.isfinite(number):
        return UNKNOWN
    power = next((power for power in range(len(_SIZES)) if number < 1023.5 * 1024**power), len(_SIZES) - 1)
    value = number / 1024**power
    return f"{value:.0f} {_SIZES[power]}" if not power or value >= 99.95 else f"{value:.3g} {_SIZES[power]}"


def rate(number: float) -> str:
    """Format bytes per second."""
    return f"{size(number)}/s"


def short(number: float) -> str:
    """Format a large number.

    Examples
    --------
    >>> short(999), short(9999.7), short(12_345), short(999_999), short(3.4e9)
    ('999', '10 k', '12.3 k', '1 M', '3.4 G')
    """
    if not math.isfinite(number):
        return UNKNOWN
    if abs(number) < 9999.5:
        return f"{number:.4g}"
    # Rounded before the choice of the unit, because rounding may reach the next unit.
    rounded = float(f"{number:.3g}")
    limit, letter = next(unit for unit in _THOUSANDS if abs(rounded) >= unit[0])
    return f"{rounded / limit:.3g} {letter}"


def number(value: float) -> str:
    """Format a number with five digits.

    Examples
    --------
    >>> number(113462.7), number(9999.97), number(0.0012345), number(3.0e-9)
    ('113,463', '10,000', '0.0012345', '3e-09')
    """
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 9999.95 else f"{value:.5g}"


def percent(fraction: float) -> str:
    """Format a fraction as a percentage."""
    return f"{100 * fraction:.0f} %" if math.isfinite(fraction) else UNKNOWN


def span(seconds: float) -> str:
    """Format a short time.

    Examples
    --------
    >>> span(0.0021), span(0.5), span(0.9997), span(42.4), span(999.7)
    ('2.1 ms', '500 ms', '1 s', '42.4 s', '0.278 h')
    """
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds / 3600:.3g} h"


def second(moment: float) -> str:
    """Format a time of day, to the second."""
    return time.strftime("%H:%M:%S", time.localtime(moment))
