"""Walltimes: parsing of the user's text, and the forms for schedulers."""

from __future__ import annotations

import math
import re
from typing import Any

from workbench import config
from workbench.errors import InvalidRequest

_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d)")
_DAYS_AND_HOURS = re.compile(r"(?P<days>\d+)-(?P<hours>\d\d?)(?::(?P<minutes>\d\d))?")
UNLIMITED = ("0", "unlimited", "infinite", "-1")
"""How Slurm writes that a job has no time limit."""
# One number with its unit; several can follow each other: 1d12h.
_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")
_UNIT = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
# Ten years: a longer time is a typing error, and no scheduler accepts the number.
_LONGEST = 10 * 366 * 86400
# Most characters: Python raises for numbers with thousands of digits.
_MAX_LENGTH = 60


def walltime(given: Any) -> int:
    """Return a walltime in seconds.

    Parameters
    ----------
    given
        ``"02:00:00"``, ``"1-12:00:00"``, or a time with units such as ``"2 hours"``, ``"90 minutes"``, ``"1d12h"``.

    Raises
    ------
    InvalidRequest
        If the value has none of these forms, or is longer than ten years. A bare number is not valid, since Slurm
        reads minutes and PBS seconds.

    Examples
    --------
    >>> walltime("1-12:00:00"), walltime("90 minutes"), walltime("1d12h")
    (129600, 5400, 129600)
    """
    text = str(given).strip()
    if re.fullmatch(r"\d+(\.\d+)?", text) or isinstance(given, int | float):
        raise InvalidRequest(
            f"walltime {given!r}: Slurm would read minutes and PBS seconds.",
            option="walltime",
            given=given,
            hint=f"Give '{text} minutes' or '{text} seconds'.",
        )
    seconds = (_clock_seconds(text) or _span_seconds(text)) if len(text) <= _MAX_LENGTH else None
    if seconds is None or not 0 < seconds <= _LONGEST:
        raise InvalidRequest(
            option="walltime",
            given=given,
            allowed="a time above zero as HH:MM:SS, D-HH:MM:SS or with units, e.g. 02:00:00, 1-12:00:00 or '2 hours'",
        )
    return seconds


def site_walltime(text: str, unit: int) -> int:
    """Return a walltime from a site's settings in seconds, read as the scheduler itself would.

    Parameters
    ----------
    text
        A bare number, ``MM:SS``, ``HH:MM:SS`` or ``D-HH:MM:SS`` with any number of digits in each part, or a text for
        `walltime`.
    unit
        Seconds per unit of a bare number: 60 in Slurm, 1 in PBS.

    Raises
    ------
    InvalidRequest
        If the text has none of these forms.

    Examples
    --------
    >>> site_walltime("90", 60), site_walltime("90", 1), site_walltime("120:30", 60)
    (5400, 90, 7230)
    """
    text = text.strip()
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    numbers = (days, *parts) if dash else parts
    if len(text) > _MAX_LENGTH or len(parts) > 3 or not all(number.isdecimal() for number in numbers):
        return walltime(f"{text} s" if text.isdecimal() else text)
    # After days come hours; without days the last part is seconds, but a number alone has its own unit.
    units = (3600, 60, 1) if dash else {1: (unit,), 2: (60, 1), 3: (3600, 60, 1)}[len(parts)]
    seconds = int(days or 0) * 86400 + sum(int(part) * size for part, size in zip(parts, units, strict=False))
    return walltime(f"{seconds} s")


def clock(seconds: int) -> str:
    """Return a walltime in the form of Slurm, also for users.

    Examples
    --------
    >>> clock(7200), clock(129600)
    ('02:00:00', '1-12:00:00')
    """
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def pbs_clock(seconds: int) -> str:
    """Return a walltime in the form of PBS, in which the number of hours has no limit.

    Examples
    --------
    >>> pbs_clock(129600)
    '36:00:00'
    """
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _clock_seconds(text: str) -> int | None:
    match = _CLOCK.fullmatch(text) or _DAYS_AND_HOURS.fullmatch(text)
    if match is None:
        return None
    parts = {name: int(number) for name, number in match.groupdict().items() if number is not None}
    # 00:90:00 is an error rather than an hour and a half.
    if parts.get("minutes", 0) > 59 or parts.get("seconds", 0) > 59 or ("days" in parts and parts["hours"] > 23):
        return None
    return sum(number * _UNIT[name] for name, number in parts.items())


def _span_seconds(text: str) -> int | None:
    from dask.utils import parse_timedelta

    parts = _SPAN.findall(text)
    if not parts or _SPAN.sub("", text):
        return None
    seconds = [config.parse_positive(f"{number}{unit}", parse_timedelta) for number, unit in parts]
    known = [number for number in seconds if number is not None]
    return math.ceil(sum(known)) if len(known) == len(parts) else None
