"""Numbers as the 255 colours of a heat map, and the words of its colour bar."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MISSING = 255
"""Code of what is not known."""
_TOP = 254


@dataclass(frozen=True)
class Coding:
    """How numbers become codes from 0 to 254.

    Attributes
    ----------
    low : float
        For logarithms: the number of code 1, and 0 has code 0. 0 for an even scale, which begins there.
    high : float
        The number of code 254.
    """

    low: float
    high: float

    @classmethod
    def even(cls, high: float) -> Coding:
        """From 0 on."""
        return cls(0.0, high if high > 0 else 1.0)

    @classmethod
    def logarithms(cls, numbers: NDArray[np.float64]) -> Coding:
        """From the smallest number above 0 on, over six decades at most."""
        above = numbers[np.isfinite(numbers) & (numbers > 0)]
        if not above.size:
            return cls(1.0, 10.0)
        high = float(above.max())
        low = max(float(above.min()), high / 1e6)
        return cls(low if low < high else high / 10, high)

    def codes(self, numbers: NDArray[np.floating]) -> NDArray[np.uint8]:
        """Return the codes of numbers."""
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.low:
                part = np.log(numbers / self.low) / math.log(self.high / self.low)
                codes = np.where(numbers > 0, 1 + np.clip(part, 0, 1) * (_TOP - 1), 0)
            else:
                codes = np.clip(numbers / self.high, 0, 1) * _TOP
            return np.where(np.isfinite(numbers), np.rint(codes), MISSING).astype(np.uint8)

    def labels(self, words: Callable[[float], str]) -> dict[float, str]:
        """Return codes and the words of their numbers, for a colour bar."""
        if self.low:
            return {1: words(self.low), 127.5: words(math.sqrt(self.low * self.high)), _TOP: words(self.high)}
        return {0: words(0.0), _TOP / 2: words(self.high / 2), _TOP: words(self.high)}
