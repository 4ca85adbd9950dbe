"""MPI wait times: how long ranks have waited for one another, from the times at which each entered and left operations.

The wait time of a rank lasts from its entry to the last entry of a rank, or to its own exit if that is earlier: a rank
may leave before the last rank enters, like the root of a broadcast. The measurement itself delays no rank. The
times of nodes are corrected to the clock of the head; see `workbench.metrics.clock_offset`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LATE = 1.2
"""Seconds after which every rank has sent a synchronization that it has left: two ticks, and the way to the head."""

# A synchronization farther from the current time than this was measured by a clock that was set meanwhile.
_CLOCK_TOLERANCE_S = 10.0
# This factor spreads keys: the golden ratio of 64 bits, as in hash tables (Knuth, TAOCP 3, section 6.4).
_KEY_MULTIPLIER = np.int64(-7046029254386353131)


class WaitTimes:
    """Synchronizations of the ranks of a world, until all ranks have sent their part."""

    def __init__(self) -> None:
        self._received: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []

    def add(self, who: NDArray[np.int64], when: NDArray[np.float64], now: float) -> None:
        """Add the message of a node; see `workbench.metrics.node_message` for the columns."""
        plausible = np.abs(when[:, 1] - now) < _CLOCK_TOLERANCE_S
        if plausible.any():
            self._received.append((who[plausible], when[plausible]))

    def take(self, until: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return and remove the synchronizations that all ranks in them had left by a time.

        Parameters
        ----------
        until
            Seconds since the epoch, `LATE` ago or more: of later synchronizations only some parts may have arrived.

        Returns
        -------
        who : ndarray of int64, shape (n, 2)
            Rank and operation.
        seconds : ndarray of float64, shape (n, 2)
            How long the rank has waited for others, and how long it was in the operation.
        """
        all_who = np.concatenate([np.empty((0, 4), np.int64), *(who for who, _ in self._received)])
        all_when = np.concatenate([np.empty((0, 2)), *(when for _, when in self._received)])
        # Key and number become one number, because a sort by two columns takes three times as long.
        ids = all_who[:, 1] * _KEY_MULTIPLIER + all_who[:, 2]
        over = all_when[:, 1] < until
        over &= ~np.isin(ids, np.unique(ids[~over & (all_when[:, 0] < until)]))
        self._received = [(all_who[~over], all_when[~over])]
        who, when, ids = all_who[over], all_when[over], ids[over]
        if not len(who):
            return who[:, [0, 3]], when
        order = np.argsort(ids)
        who, when, ids = who[order], when[order], ids[order]
        first = np.concatenate(([True], ids[1:] != ids[:-1]))
        starts = np.flatnonzero(first)
        members = np.diff(np.append(starts, len(who)))
        last = np.repeat(np.maximum.reduceat(when[:, 0], starts), members)
        inside = when[:, 1] - when[:, 0]
        waited = np.clip(last - when[:, 0], 0.0, inside)
        complete = np.repeat(
            members > 1, members
        )  # without the synchronizations of which one rank alone has sent a part
        return who[complete][:, [0, 3]], np.stack((waited[complete], inside[complete]), axis=1)
