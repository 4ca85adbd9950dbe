"""Ratios of neighboring measurements: what slows the whole machine for a while is in both of a pair, and cancels."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import comb

# Probability that the median lies outside of its interval, at most.
_OUTSIDE = 0.05


def figures(name: str, ours: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """Return the median of the ratios of pairs, and its interval, by their names in a summary.

    Parameters
    ----------
    name
        Of the ratio.
    ours, reference
        Measurements in one unit; those at one place of both were made directly one after the other.

    Returns
    -------
    figures : dict
        `name`: the median of the ratios; `name` with ``_low`` and ``_high``: see `interval`.

    Raises
    ------
    ValueError
        If there are not as many of both.
    """
    ratios = [one / other for one, other in zip(ours, reference, strict=True)]
    low, high = interval(ratios)
    return {name: statistics.median(ratios), f"{name}_low": low, f"{name}_high": high}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return two of the values that have the median of their distribution between them, in 95 of 100 cases at least.

    Parameters
    ----------
    values
        One or more, drawn independently of each other.

    Notes
    -----
    The number of values below the median of the distribution is binomial with a probability of 1/2, whatever the
    distribution is (H. A. David and H. N. Nagaraja, *Order Statistics*, 2003, section 7.1). Five values or fewer do not
    suffice for 95 of 100: n values have the median between the smallest and the largest one in 1 - 2**(1 - n) of cases.

    Examples
    --------
    >>> interval(range(1, 19))
    (5, 14)
    >>> interval([2.0, 1.0, 4.0])
    (1.0, 4.0)
    """
    number, ordered = len(values), sorted(values)
    below, tail = 0, 1
    while 2 * (tail + comb(number, below + 1)) <= _OUTSIDE * 2**number:
        below += 1
        tail += comb(number, below)
    return ordered[below], ordered[-1 - below]
