"""Tells when a call or a cell gets nowhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from workbench.collective import rank_locations


class StallDetector:
    """Looks at the ranks of a call or a cell from time to time.

    Parameters
    ----------
    patience
        Seconds. Who neither enters nor leaves an operation of MPI for so long gets nowhere.

    Attributes
    ----------
    interval : float
        Seconds between two looks, so that it is told not much later than after the patience.
    """

    def __init__(self, patience: float) -> None:
        self.interval = patience / 4
        self._patience = patience
        self._began = time.monotonic()
        self._next = self._began + self.interval
        self._again = self._began
        self._since: dict[int, float] = {}

    def is_due(self) -> bool:
        """Tell whether it is time for a look."""
        return time.monotonic() >= self._next

    def report(self, places: Mapping[int, Mapping[str, Any]]) -> str | None:
        """Return where the ranks are if none gets anywhere, and that was not told just before; else None.

        Parameters
        ----------
        places
            By rank, as `workbench.metrics.call_stack` tells; ``{"silent": True}`` for one that does not answer.
        """
        now = time.monotonic()
        # Who does not answer is where it was.
        self._since = {
            rank: now - told["seconds"] if "seconds" in told else self._since.get(rank, self._began)
            for rank, told in places.items()
        }
        self._next = now + self.interval
        if now < self._again or not places or now - max(self._since.values()) < self._patience:
            return None
        self._again = now + self._patience
        return rank_locations.words(places)
