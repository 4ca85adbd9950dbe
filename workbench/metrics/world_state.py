"""What the head knows of the ranks of one world: the last samples, and totals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.metrics.node_message import OPERATION_TOTALS, SENT, SIZED, WHEN, WHO, rows
from workbench.metrics.schema import KINDS, RANK, SAMPLED
from workbench.metrics.update import RankActivity
from workbench.metrics.wait_times import LATE, WaitTimes
from workbench.mpi.operation_names import OPERATIONS, WAITS
from workbench.mpi.size_bins import SIZES

if TYPE_CHECKING:
    from numpy.typing import NDArray

# How much of the share of waiting is that of the last half second: meetings are a sample.
_SHARE_SMOOTHING = 0.5


class WorldState:
    """One world.

    Parameters
    ----------
    size
        Its ranks.
    start
        Name of this start of it.
    by_node
        Whether traffic is counted between nodes (by the first rank of each), not between ranks.
    """

    def __init__(self, size: int, start: str, *, by_node: bool) -> None:
        self.start, self.by_node = start, by_node
        self.nodes = [""] * size
        """Host of each rank; nothing of one that has not come yet."""
        self._values = np.full((size, len(SAMPLED)), np.nan)
        self._received_at = np.full(size, -np.inf)
        self.now: list[RankActivity] = [RankActivity("", None, 0.0)] * size
        self.sent = np.zeros((2, len(KINDS), size, size))
        """Bytes and messages, of each kind, from ranks to ranks, or to the first rank of each node."""
        self._operations = np.zeros((size, len(OPERATIONS), 3))
        self._waiting = np.zeros(len(OPERATIONS))
        self._spent_before = np.zeros(len(OPERATIONS))
        self._sizes = np.zeros((size, len(KINDS), SIZES))
        self._wait_times = WaitTimes()
        # Of the meetings so far: seconds that each rank has waited in each operation, and was in it.
        self._wait_totals = np.zeros((size, len(OPERATIONS), 2))
        self._new_waits: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
        self._share = np.zeros(size)
        self._share_of_operation = np.isin(OPERATIONS, list(WAITS)).astype(np.float64)
        self._sent_before = np.zeros((2, size))
        self.lost: dict[int, float] = {}
        """Ranks that are gone, and since when, in seconds since the epoch."""

    @property
    def known_ranks(self) -> list[int]:
        """Ranks that have come, also those that are gone since."""
        return [rank for rank, host in enumerate(self.nodes) if host]

    def take(self, message: Mapping[str, Any], now: float) -> None:
        """Take the message of a node, which came now, in seconds since the epoch."""
        ranks = np.array(message["ranks"], np.intp)
        self._values[ranks] = rows(message["values"], SAMPLED)
        self._received_at[ranks] = now
        for rank, doing in zip(message["ranks"], message["now"], strict=True):
            self.now[rank] = RankActivity(*doing)
        sent = rows(message["sent"], SENT)
        rank, peer, kind = sent[:, :3].astype(np.intp).T
        self.sent[:, kind, rank, peer] = sent[:, 3:].T
        operations = rows(message["operations"], OPERATION_TOTALS)
        self._operations[tuple(operations[:, :2].astype(np.intp).T)] = operations[:, 2:]
        sizes = rows(message["sizes"], SIZED)
        self._sizes[tuple(sizes[:, :2].astype(np.intp).T)] = sizes[:, 2:]
        self._wait_times.add(rows(message["who"], WHO, np.int64), rows(message["when"], WHEN), now)

    def sample(self, now: float, passed: float, patience: float) -> NDArray[np.float32]:
        """Return the columns of `RANK` for each rank; NaN for ranks without a valid sample.

        Parameters
        ----------
        now, passed
            Seconds since the epoch, and since the last sample.
        patience
            Seconds for which a sample is valid.
        """
        self._update_waiting(now)
        values = dict(zip(SAMPLED, self._values.T, strict=True))
        waiting = values["stuck"] + values["waits"] + self._share * values["closed"]
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
        table[now - self._received_at > patience] = np.nan
        table[list(self.lost)] = np.nan
        return table

    def _rates(self, passed: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the bytes a second that each rank sends, and receives: unknown where nodes are counted."""
        sent = self.sent[0].sum(axis=(0, 2))
        received = np.full(len(sent), np.nan) if self.by_node else self.sent[0].sum(axis=(0, 1))
        totals = np.stack((sent, received))
        # a rank that was started again begins with nothing
        rates = np.maximum(totals - self._sent_before, 0.0) / passed
        self._sent_before = totals
        return rates[0], rates[1]

    def _update_waiting(self, now: float) -> None:
        self.wait_times(now - LATE)
        who, seconds = map(np.concatenate, zip(*self._new_waits, strict=True))
        self._new_waits = []
        for index, (shares, size) in enumerate(
            ((self._share, len(self._share)), (self._share_of_operation, len(OPERATIONS)))
        ):
            waited, inside = (np.bincount(who[:, index], seconds[:, column], minlength=size) for column in (0, 1))
            known = inside > 0
            shares[known] += _SHARE_SMOOTHING * (waited[known] / inside[known] - shares[known])
        spent = self._operations[:, :, 2].sum(axis=0)
        self._waiting += (spent - self._spent_before) * self._share_of_operation
        self._spent_before = spent

    def wait_times(self, until: float) -> NDArray[np.float64]:
        """Return how long each rank has waited for others, from the meetings that ranks have sent.

        Parameters
        ----------
        until
            Seconds since the epoch, as of `WaitTimes.take`: when they were over.

        Returns
        -------
        ndarray of float64, shape (size, len(OPERATIONS), 2)
            Seconds waited, and in the operation, since the start. The meetings are a sample of those that there were.
        """
        who, seconds = self._wait_times.take(until)
        np.add.at(self._wait_totals, (who[:, 0], who[:, 1]), seconds)
        self._new_waits.append((who, seconds))
        return self._wait_totals

    @property
    def operations(self) -> NDArray[np.float64]:
        """As `workbench.metrics.update.Update.operations`."""
        return np.concatenate((self._operations.sum(axis=0), self._waiting[:, None]), axis=1)

    @property
    def sizes(self) -> NDArray[np.float64]:
        """As `workbench.metrics.update.Update.sizes`."""
        total: NDArray[np.float64] = self._sizes.sum(axis=0)
        return total
