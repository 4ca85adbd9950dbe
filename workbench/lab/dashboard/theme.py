"""Colors and font of the dashboard, light and dark, the colors of a heat map, and the assets that use them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"


@cache
def read_asset(name: str) -> str:
    """Return the text of a file in this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


STYLE = f"body {{ font-family: {FONT}; }}\n{read_asset('page.css')}"
"""CSS of a whole page without the values of its colors."""


def _channels(color: str) -> list[int]:
    return [int(color[i : i + 2], 16) for i in (1, 3, 5)]


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colors, from 1 to 21 (Web Content Accessibility Guidelines 2.1)."""

    def luminance(color: str) -> float:
        parts = (part / 255 for part in _channels(color))
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@dataclass(frozen=True)
class Theme:
    """Colors of one theme; those of `shares` are distinct for color-blind readers (after Okabe and Ito).

    Attributes
    ----------
    name : {"light", "dark"}
    page, card, line, text, muted : str
        Page, cards, lines and grids, text, and secondary text.
    accent, chosen, good, bad : str
        Emphasis, background of a chosen option, a state without problems, and problems.
    shares : tuple of str
        Compute, MPI, waiting, idle.
    kinds : tuple of str
        By `workbench.metrics.schema.KINDS`.
    ramp : tuple of str
        From small to large numbers.
    nothing, missing : str
        A cell of zero, and a cell without data; neither is close to a color of the ramp.
    """

    name: str
    page: str
    card: str
    line: str
    text: str
    muted: str
    accent: str
    chosen: str
    good: str
    bad: str
    shares: tuple[str, str, str, str]
    kinds: tuple[str, str]
    ramp: tuple[str, ...]
    nothing: str
    missing: str

    @cached_property
    def palette(self) -> list[str]:
        """Colors by the codes of `workbench.lab.dashboard.theme`: 0 `nothing`, 1 to 254 `ramp`, 255 `missing`."""
        stops = [_channels(stop) for stop in self.ramp]
        colors = [self.nothing]
        for step in range(254):
            place = step / 253 * (len(stops) - 1)
            below = min(int(place), len(stops) - 2)
            channels = (
                round(low + (high - low) * (place - below))
                for low, high in zip(stops[below], stops[below + 1], strict=True)
            )
            colors.append("#" + "".join(f"{channel:02x}" for channel in channels))
        return [*colors, self.missing]

    @cached_property
    def inks(self) -> list[str]:
        """Colors of text on the colors of `palette`: black or white, whichever has more contrast."""
        return [max("#000000", "#ffffff", key=lambda ink: contrast(ink, color)) for color in self.palette]

    @property
    def variables(self) -> str:
        """The colors as CSS variables."""
        names = ("page", "card", "line", "text", "muted", "accent", "chosen", "good", "bad")
        return " ".join(f"--{name}: {getattr(self, name)};" for name in names)


LIGHT = Theme(
    "light",
    page="#f4f6f8",
    card="#ffffff",
    line="#e1e6eb",
    text="#1d2733",
    muted="#66727f",
    accent="#2f7fc1",
    chosen="#dfe9f3",
    good="#2e7d4f",
    bad="#b42318",
    shares=("#2f7fc1", "#c48600", "#d0573b", "#d5dbe1"),
    kinds=("#2f7fc1", "#c48600"),
    ramp=("#c6dcef", "#8fbde0", "#5fa3d3", "#1f6bac", "#0a2f5c"),
    nothing="#f1f0ec",
    missing="#e9dfd3",
)
DARK = Theme(
    "dark",
    page="#0f1419",
    card="#182028",
    line="#2b3641",
    text="#e3e9ef",
    muted="#93a1af",
    accent="#4a9bdc",
    chosen="#26394b",
    good="#5cb87f",
    bad="#ff8a75",
    shares=("#4a9bdc", "#f0b43c", "#e56f51", "#3a4651"),
    kinds=("#4a9bdc", "#f0b43c"),
    ramp=("#1c4d78", "#26699c", "#2f86c2", "#7cc3ee", "#eaf6ff"),
    nothing="#2b2c2e",
    missing="#4a3f35",
)
THEMES = {theme.name: theme for theme in (LIGHT, DARK)}

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
