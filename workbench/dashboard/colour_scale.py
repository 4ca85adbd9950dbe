"""Numbers as the colours of a heat map, and the words of its colour bar."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTHING, FIRST, TOP, MISSING = 0, 1, 254, 255
"""Codes: of 0 on a logarithmic scale, of the two ends of the ramp, and of an unknown number."""


@dataclass(frozen=True)
class ColourScale:
    """How numbers become codes.

    Attributes
    ----------
    low : float
        The number of code `FIRST`: above 0 on a logarithmic scale, where 0 has the code `NOTHING`; 0 on an even one.
    high : float
        The number of code `TOP`.
    """

    low: float
    high: float

    @classmethod
    def even(cls, high: float) -> ColourScale:
        """From 0 on."""
        return cls(0.0, high if high > 0 else 1.0)

    @classmethod
    def logarithms(cls, numbers: NDArray[np.float64]) -> ColourScale:
        """From the smallest number above 0 on, over one decade at least and six at most."""
        above = numbers[np.isfinite(numbers) & (numbers > 0)]
        if not above.size:
            return cls(1.0, 10.0)
        high = float(above.max())
        # numbers that differ little have colours that differ little
        return cls(min(max(float(above.min()), high / 1e6), high / 10), high)

    def codes(self, numbers: NDArray[np.floating]) -> NDArray[np.uint8]:
        """Return the codes of numbers."""
        with np.errstate(invalid="ignore", divide="ignore"):
            part = np.log(numbers / self.low) / math.log(self.high / self.low) if self.low else numbers / self.high
            codes = FIRST + np.clip(part, 0, 1) * (TOP - FIRST)
            codes = np.where((numbers > 0) | (self.low == 0), codes, NOTHING)
            return np.where(np.isfinite(numbers), np.rint(codes), MISSING).astype(np.uint8)

    def labels(self, words: Callable[[float], str]) -> dict[float, str]:
        """Return codes and the words of their numbers, for a colour bar."""
        middle = math.sqrt(self.low * self.high) if self.low else self.high / 2
        return {FIRST: words(self.low), (FIRST + TOP) / 2: words(middle), TOP: words(self.high)}
