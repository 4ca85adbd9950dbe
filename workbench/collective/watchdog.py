"""Detection of a call or a cell that makes no progress."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from workbench.collective import rank_locations


class StallDetector:
    """Detects that no rank of a call or a cell has entered or left an operation of MPI for `patience` seconds.

    The caller passes the positions of the ranks to `report` every `interval` seconds.
    """

    def __init__(self, patience: float) -> None:
        self.interval = patience / 4
        self._patience = patience
        self._began = time.monotonic()
        self._next = self._began + self.interval
        self._again = self._began
        self._since: dict[int, float] = {}

    def is_due(self) -> bool:
        """Return whether `interval` has passed since the last `report`."""
        return time.monotonic() >= self._next

    def report(self, places: Mapping[int, Mapping[str, Any]]) -> str | None:
        """Return the positions of the ranks if none makes progress, at most once per `patience` seconds; else None.

        Parameters
        ----------
        places
            By rank, as of `workbench.metrics.call_stack`; ``{"silent": True}`` for a rank that does not answer.
        """
        now = time.monotonic()
        # A rank that does not answer counts as in the last known position.
        self._since = {
            rank: now - place["seconds"] if "seconds" in place else self._since.get(rank, self._began)
            for rank, place in places.items()
        }
        self._next = now + self.interval
        if now < self._again or not places or now - max(self._since.values()) < self._patience:
            return None
        self._again = now + self._patience
        return rank_locations.words(places)
