"""The head's state of the ranks of the world: the last samples, totals, and the times that ranks waited.

The wait time of a rank lasts from its entry to the last entry of a rank, or to its own exit if that is earlier: a rank
may leave before the last rank enters, like the root of a broadcast. The measurement itself delays no rank. The
times of nodes are corrected to the clock of the head; see `workbench.metrics.sampler`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.metrics.node_message import OPERATION_TOTALS, SENT, SIZED, WHEN, WHO, rows
from workbench.metrics.schema import BY_NODE, KINDS, RANK, SAMPLED
from workbench.metrics.update import RankActivity
from workbench.mpi.counters import OPERATIONS, SIZES, WAITS

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


# Weight of the last half second in the fraction of waiting, since synchronizations are a sample.
_WAITING_SMOOTHING = 0.5


class WorldState:
    """One world.

    Parameters
    ----------
    index
        Number of the world.
    size
        Number of ranks.
    start
        Name of this start of the world.
    """

    def __init__(self, index: int, size: int, start: str) -> None:
        self.index, self.start = index, start
        self.by_node = size > BY_NODE
        """Whether traffic is counted between nodes (as their first ranks), not between ranks."""
        self.nodes = [""] * size
        """Host of each rank; empty before the rank has joined."""
        self.cpus: list[Sequence[int]] = [()] * size
        """Numbers of the cores that each rank may use."""
        self._values = np.full((size, len(SAMPLED)), np.nan)
        self._received_at = np.full(size, -np.inf)
        self.now: list[RankActivity] = [RankActivity("", None, 0.0)] * size
        self.sent = np.zeros((2, len(KINDS), size, size))
        """Bytes and messages of each kind, from ranks to ranks, or to the first rank of each node."""
        self._operations = np.zeros((size, len(OPERATIONS), 3))
        self._waiting = np.zeros(len(OPERATIONS))
        self._spent_before = np.zeros(len(OPERATIONS))
        self._sizes = np.zeros((size, len(KINDS), SIZES))
        self._wait_times = WaitTimes()
        # Seconds that each rank has waited in each operation, and was in it, in the synchronizations so far.
        self._wait_totals = np.zeros((size, len(OPERATIONS), 2))
        self._new_waits: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
        self._rank_waiting = np.zeros(size)
        self._operation_waiting = np.isin(OPERATIONS, list(WAITS)).astype(np.float64)
        self._sent_before = np.zeros((2, size))
        self.lost: dict[int, float] = {}
        """Lost ranks, with the time of the loss in seconds since the epoch."""

    @property
    def known_ranks(self) -> list[int]:
        """Ranks that have joined, including lost ranks."""
        return [rank for rank, host in enumerate(self.nodes) if host]

    def take(self, message: Mapping[str, Any], now: float) -> None:
        """Store the message of a node, received at `now`, in seconds since the epoch."""
        ranks = np.array(message["ranks"], np.intp)
        self._values[ranks] = rows(message["values"], SAMPLED)
        self._received_at[ranks] = now
        for rank, activity in zip(message["ranks"], message["now"], strict=True):
            self.now[rank] = RankActivity(*activity)
        sent = rows(message["sent"], SENT)
        rank, peer, kind = sent[:, :3].astype(np.intp).T
        self.sent[:, kind, rank, peer] = sent[:, 3:].T
        operations = rows(message["operations"], OPERATION_TOTALS)
        self._operations[tuple(operations[:, :2].astype(np.intp).T)] = operations[:, 2:]
        sizes = rows(message["sizes"], SIZED)
        self._sizes[tuple(sizes[:, :2].astype(np.intp).T)] = sizes[:, 2:]
        self._wait_times.add(rows(message["who"], WHO, np.int64), rows(message["when"], WHEN), now)

    def sample(self, now: float, passed: float, valid_for: float) -> NDArray[np.float32]:
        """Return the columns of `RANK` for each rank; NaN for ranks without a valid sample.

        Parameters
        ----------
        now, passed
            Seconds since the epoch, and since the last sample.
        valid_for
            Seconds for which a sample is valid.
        """
        self._update_waiting(now)
        values = dict(zip(SAMPLED, self._values.T, strict=True))
        waiting = values["stuck"] + values["waits"] + self._rank_waiting * values["closed"]
        in_mpi = values["stuck"] + values["waits"] + values["closed"]
        busy = np.clip(np.maximum(values["busy"], in_mpi), 0.0, 1.0)
        sent, received = self._rates(passed)
        columns = {
            **values,
            "compute": np.maximum(busy - in_mpi, 0.0),
            "mpi": np.maximum(in_mpi - waiting, 0.0),
            "waiting": np.minimum(waiting, 1.0),
            "idle": 1.0 - busy,
            "sent": sent,
            "received": received,
        }
        table = np.stack([columns[name] for name in RANK], axis=1).astype(np.float32)
        table[now - self._received_at > valid_for] = np.nan
        table[list(self.lost)] = np.nan
        return table

    def _rates(self, passed: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the bytes per second that each rank sends and receives; NaN received if traffic is between nodes."""
        sent = self.sent[0].sum(axis=(0, 2))
        received = np.full(len(sent), np.nan) if self.by_node else self.sent[0].sum(axis=(0, 1))
        totals = np.stack((sent, received))
        # The totals of a rank that was restarted begin at 0.
        rates = np.maximum(totals - self._sent_before, 0.0) / passed
        self._sent_before = totals
        return rates[0], rates[1]

    def _update_waiting(self, now: float) -> None:
        self.wait_times(now - LATE)
        who, seconds = map(np.concatenate, zip(*self._new_waits, strict=True))
        self._new_waits = []
        for index, waiting in enumerate((self._rank_waiting, self._operation_waiting)):
            waited, inside = (
                np.bincount(who[:, index], seconds[:, column], minlength=len(waiting)) for column in (0, 1)
            )
            known = inside > 0
            waiting[known] += _WAITING_SMOOTHING * (waited[known] / inside[known] - waiting[known])
        spent = self._operations[:, :, 2].sum(axis=0)
        self._waiting += (spent - self._spent_before) * self._operation_waiting
        self._spent_before = spent

    def wait_times(self, until: float) -> NDArray[np.float64]:
        """Return how long each rank has waited for others in the sampled synchronizations, see `WaitTimes.take`.

        Returns
        -------
        ndarray of float64, shape (size, len(OPERATIONS), 2)
            Seconds waited, and in the operation, since the start.
        """
        who, seconds = self._wait_times.take(until)
        np.add.at(self._wait_totals, (who[:, 0], who[:, 1]), seconds)
        self._new_waits.append((who, seconds))
        return self._wait_totals

    @property
    def operations(self) -> NDArray[np.float64]:
        """`workbench.metrics.update.Update.operations` of this world."""
        return np.concatenate((self._operations.sum(axis=0), self._waiting[:, None]), axis=1)

    @property
    def sizes(self) -> NDArray[np.float64]:
        """`workbench.metrics.update.Update.sizes` of this world."""
        total: NDArray[np.float64] = self._sizes.sum(axis=0)
        return total
