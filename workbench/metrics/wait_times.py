"""How long ranks have waited for one another, from when each has entered an operation and left it.

Waiting is the time from one's own entry to the last entry, or to one's own leaving if that is earlier: a rank may go
before the last has come, as the root of a broadcast does. Nobody waits for the sake of being measured. The clocks of
nodes are corrected to that of the head before; see `workbench.metrics.clock_offset`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LATE = 1.2
"""Seconds after which every rank has sent a meeting that it has left: two ticks, and the way to the head."""

# Seconds from now at which a meeting is no meeting of now.
_CLOCK_TOLERANCE_S = 10.0
# Keys times this are far apart: the golden ratio of 64 bits, as hash tables have it (Knuth, TAOCP 3, section 6.4).
_KEY_MULTIPLIER = np.int64(-7046029254386353131)


class WaitTimes:
    """Meetings of the ranks of a world, of which some ranks may not have sent their part yet."""

    def __init__(self) -> None:
        self._received: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []

    def add(self, who: NDArray[np.int64], when: NDArray[np.float64], now: float) -> None:
        """Take the message of a node; see `workbench.metrics.node_message` for the columns."""
        # a clock that was set meanwhile
        plausible = np.abs(when[:, 1] - now) < _CLOCK_TOLERANCE_S
        if plausible.any():
            self._received.append((who[plausible], when[plausible]))

    def take(self, until: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the meetings that all had left by a time, who had come by then, and forget them.

        Parameters
        ----------
        until
            Seconds since the epoch, `LATE` ago or more: of later meetings only some ranks may have sent their part.

        Returns
        -------
        who : ndarray of int64, shape (n, 2)
            Rank and operation.
        seconds : ndarray of float64, shape (n, 2)
            How long the rank has waited for others, and how long it was in the operation.
        """
        all_who = np.concatenate([np.empty((0, 4), np.int64), *(who for who, _ in self._received)])
        all_when = np.concatenate([np.empty((0, 2)), *(when for _, when in self._received)])
        # One number for a key and its number, since to sort by two takes three times as long.
        which = all_who[:, 1] * _KEY_MULTIPLIER + all_who[:, 2]
        over = all_when[:, 1] < until
        over &= ~np.isin(which, np.unique(which[~over & (all_when[:, 0] < until)]))
        self._received = [(all_who[~over], all_when[~over])]
        who, when, which = all_who[over], all_when[over], which[over]
        if not len(who):
            return who[:, [0, 3]], when
        order = np.argsort(which)
        who, when, which = who[order], when[order], which[order]
        first = np.concatenate(([True], which[1:] != which[:-1]))
        starts = np.flatnonzero(first)
        members = np.diff(np.append(starts, len(who)))
        last = np.repeat(np.maximum.reduceat(when[:, 0], starts), members)
        inside = when[:, 1] - when[:, 0]
        waited = np.clip(last - when[:, 0], 0.0, inside)
        complete = np.repeat(members > 1, members)  # of the others one rank alone has sent its part
        return who[complete][:, [0, 3]], np.stack((waited[complete], inside[complete]), axis=1)
