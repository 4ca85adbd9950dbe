"""Sizes of messages: as an option, as text, and means over a range of them."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

KIB, MIB = 2**10, 2**20


def sizes(text: str) -> list[int]:
    """Return the sizes in bytes, ascending, that an option gives as ``1,64KiB,2MiB``.

    Raises
    ------
    argparse.ArgumentTypeError
        If one of them is no size above zero.
    """
    from dask.utils import parse_bytes

    found = set()
    for word in text.split(","):
        try:
            nbytes = parse_bytes(word) if any(map(str.isdigit, word)) else 0
        except ValueError:
            nbytes = 0
        if nbytes < 1:
            raise argparse.ArgumentTypeError(f"{word!r} is not valid. Choose sizes above zero, such as 1,64KiB,2MiB")
        found.add(nbytes)
    return sorted(found)


def words(nbytes: float) -> str:
    """Return a size for people.

    Examples
    --------
    >>> words(1), words(64 * 1024), words(2_000_000)
    ('1 B', '64 KiB', '1.9 MiB')
    """
    for unit, name in ((2**30, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{nbytes:.0f} B"


def mean_ratio(rows: Iterable[Mapping[str, Any]], over: str, under: str, where: Callable[[int], bool]) -> float | None:
    """Return the geometric mean of one column over another, or None if no row is of such a size.

    Parameters
    ----------
    rows
        Measurements, each with its ``nbytes``.
    over, under
        The two columns.
    where
        Which sizes count.
    """
    ratios = [row[over] / row[under] for row in rows if where(row["nbytes"])]
    return statistics.geometric_mean(ratios) if ratios else None
