"""Traffic between places: since the start, in the last seconds, and for one pair over time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from workbench.metrics.schema import KINDS
from workbench.metrics.update import Traffic

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECENT_S = 10.0
# The history of all pairs: seconds between two rates, number of rates, and places above which it is shorter.
_RATE_INTERVAL_S, _RATES_KEPT, _PLACES_IN_FULL = 1.0, 600, 64


class TrafficHistory:
    """Totals of all pairs of places over time, in bounded memory."""

    def __init__(self, places: int) -> None:
        nothing = np.zeros((len(KINDS), places, places))
        self.total = Traffic(nothing, nothing)
        self._recent_totals: deque[tuple[float, Traffic]] = deque()
        steps = (
            _RATES_KEPT if places <= _PLACES_IN_FULL else max(10, int(_RATES_KEPT * (_PLACES_IN_FULL / places) ** 2))
        )
        self._rates: deque[tuple[float, NDArray[np.float32]]] = deque(maxlen=steps)
        self._step: tuple[float, NDArray[np.float64]] | None = None

    def add(self, now: float, total: Traffic) -> None:
        """Add the totals of the time `now`, in seconds since the epoch."""
        self.total = total
        self._recent_totals.append((now, total))
        while now - self._recent_totals[0][0] > RECENT_S and len(self._recent_totals) > 1:
            self._recent_totals.popleft()
        if self._step is None:
            self._step = (now, total.bytes)
        elif now - self._step[0] >= _RATE_INTERVAL_S:
            then, before = self._step
            self._rates.append((now, ((total.bytes - before) / (now - then)).astype(np.float32)))
            self._step = (now, total.bytes)

    @property
    def recent(self) -> Traffic:
        """Traffic of the last ten seconds."""
        before = self._recent_totals[0][1] if self._recent_totals else self.total
        return Traffic(
            np.maximum(self.total.bytes - before.bytes, 0.0), np.maximum(self.total.messages - before.messages, 0.0)
        )

    def pair(self, source: int, target: int) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Return the history of a pair: times, shape (t,), and bytes per second by kind, shape (t, len(KINDS))."""
        times = np.array([time for time, _ in self._rates], np.float64)
        rates = np.array([rate[:, source, target] for _, rate in self._rates], np.float32)
        return times, rates.reshape(len(times), len(KINDS))
