"""Tells when a call or a cell gets nowhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from workbench import where_words


class Hang:
    """Looks at the ranks of a call or a cell from time to time.

    Parameters
    ----------
    patience
        Seconds between two looks. Who has begun no operation of MPI between them gets nowhere.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._next = time.monotonic() + patience
        self._before: dict[int, int] = {}

    def is_due(self) -> bool:
        """Tell whether it is time for a look."""
        return time.monotonic() >= self._next

    def words(self, places: Mapping[int, Mapping[str, Any]]) -> str | None:
        """Return where the ranks are if none has got anywhere since the last look; else None.

        Parameters
        ----------
        places
            By rank, as `workbench.rank.whereabouts` tells.
        """
        counts = {rank: told["count"] for rank, told in places.items()}
        stuck = bool(counts) and counts == self._before
        self._before, self._next = counts, time.monotonic() + self.patience
        return where_words.words(places) if stuck else None
