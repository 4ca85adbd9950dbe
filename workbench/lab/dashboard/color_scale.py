"""Numbers as the colors of a heat map, and the labels of its color bar."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTHING, FIRST, TOP, MISSING = 0, 1, 254, 255
"""Codes of 0 on a logarithmic scale, of the two ends of the ramp, and of a missing number."""


@dataclass(frozen=True)
class ColorScale:
    """Maps numbers to codes.

    Attributes
    ----------
    low : float
        The number of code `FIRST`: above 0 on a logarithmic scale, where 0 has the code `NOTHING`; 0 on a linear scale.
    high : float
        The number of code `TOP`.
    """

    low: float
    high: float

    @classmethod
    def even(cls, high: float) -> ColorScale:
        """Return a linear scale from 0."""
        return cls(0.0, high if high > 0 else 1.0)

    @classmethod
    def logarithms(cls, numbers: NDArray[np.float64]) -> ColorScale:
        """Return a logarithmic scale from the smallest number above 0, over at least one decade and at most six."""
        above = numbers[np.isfinite(numbers) & (numbers > 0)]
        if not above.size:
            return cls(1.0, 10.0)
        high = float(above.max())
        # The minimum of one decade keeps the colors of similar numbers similar.
        return cls(min(max(float(above.min()), high / 1e6), high / 10), high)

    def codes(self, numbers: NDArray[np.floating]) -> NDArray[np.uint8]:
        """Return the codes of numbers."""
        with np.errstate(invalid="ignore", divide="ignore"):
            fraction = np.log(numbers / self.low) / math.log(self.high / self.low) if self.low else numbers / self.high
            codes = FIRST + np.clip(fraction, 0, 1) * (TOP - FIRST)
            codes = np.where((numbers > 0) | (self.low == 0), codes, NOTHING)
            return np.where(np.isfinite(numbers), np.rint(codes), MISSING).astype(np.uint8)

    def labels(self, describe: Callable[[float], str]) -> dict[float, str]:
        """Return the labels of a color bar by code."""
        middle = math.sqrt(self.low * self.high) if self.low else self.high / 2
        return {FIRST: describe(self.low), (FIRST + TOP) / 2: describe(middle), TOP: describe(self.high)}
