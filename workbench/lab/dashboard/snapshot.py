"""The state of a cluster at one time, with the ticks before."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from workbench.lab.dashboard import diagnosis
from workbench.lab.dashboard.diagnosis import Wait
from workbench.metrics.schema import KINDS, RANK, TICK
from workbench.metrics.tables import places
from workbench.metrics.update import Layout, Update

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARES = ("compute", "mpi", "waiting", "idle")
"""Fractions of the time of a rank."""
SHARE_TITLES = ("Compute", "MPI", "Waiting", "Idle")

# Means over several ticks, because single ticks vary too much to read.
_RECENT_TICKS = round(5 / TICK)


@dataclass(frozen=True)
class Snapshot:
    """The latest state, or one in the buffer.

    Attributes
    ----------
    update : Update
        The state; its arrays of ticks are empty.
    valid_at : float
        Time of `update`, in seconds since the epoch: it may be earlier than the last tick of a state in the buffer.
    times : ndarray of float64, shape (f,)
        Ends of the ticks until then, oldest first.
    rank, node, core : ndarray
        Numbers of these ticks, see `Update`.
    totals : ndarray of float64, shape (g, 1 + len(KINDS))
        Time, and bytes sent since the start, by kind: one row for each answer of the head.
    fits : list of dict
        Records of fits until then.
    """

    update: Update
    valid_at: float
    times: NDArray[np.float64]
    rank: NDArray[np.float32]
    node: NDArray[np.float32]
    core: NDArray[np.uint8]
    totals: NDArray[np.float64]
    fits: list[dict[str, Any]]

    @classmethod
    def of(cls, update: Update) -> Self:
        """Return the snapshot of the first answer of a head, with all its history."""
        moment = float(update.times[-1]) if len(update.times) else 0.0
        ticks = update.times, update.rank, update.node, update.core
        return cls(without_history(update), moment, *ticks, np.empty((0, 1 + len(KINDS))), update.fits)

    def copy(self) -> Snapshot:
        """Return the snapshot with copies of the buffer's arrays, which will change."""
        kept: dict[str, Any] = {
            name: getattr(self, name).copy() for name in ("times", "rank", "node", "core", "totals")
        }
        return replace(self, **kept)

    @property
    def layout(self) -> Layout:
        """Ranks and nodes of the columns."""
        return self.update.layout

    @property
    def time(self) -> float:
        """End of the last tick, in seconds since the epoch by the clock of the head."""
        return float(self.times[-1]) if len(self.times) else 0.0

    @cached_property
    def names(self) -> list[str]:
        """Names of the ranks."""
        return [str(place.rank) for place in self.layout.ranks]

    @cached_property
    def between(self) -> list[str]:
        """Names of the ranks or nodes between which traffic is counted."""
        return places(self.update)

    def of_ranks(self, field: str) -> NDArray[np.float32]:
        """Return a number of all ranks over time, shape (f, ranks)."""
        numbers: NDArray[np.float32] = self.rank[:, :, RANK.index(field)]
        return numbers

    @cached_property
    def recent_means(self) -> NDArray[np.float32]:
        """Means of the last five seconds, shape (ranks, len(RANK)); NaN without samples of a rank."""
        return means(self.rank[-_RECENT_TICKS:])

    def recent_mean(self, field: str) -> NDArray[np.float32]:
        """Return the mean of a number over the last five seconds, shape (ranks,)."""
        return self.recent_means[:, RANK.index(field)]

    @cached_property
    def recent_node_means(self) -> NDArray[np.float32]:
        """Means of the last five seconds, shape (nodes, len(NODE))."""
        return means(self.node[-_RECENT_TICKS:])

    @cached_property
    def waits(self) -> list[Wait]:
        """Waits that last longer than `diagnosis.PATIENCE`."""
        return diagnosis.waits(self.update.now, self.valid_at)

    @cached_property
    def imbalance(self) -> float:
        """The load imbalance: 1 - mean / maximum of the compute time of ranks; 0 for an even load."""
        compute = self.recent_mean("compute")
        most = float(np.nanmax(compute)) if np.isfinite(compute).any() else 0.0
        # Idle ranks have no load to balance.
        return 1 - float(np.nanmean(compute)) / most if most > 0.1 else 0.0

    @cached_property
    def rates(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times, shape (g - 1,), and bytes per second sent between them, shape (g - 1, len(KINDS))."""
        if len(self.totals) < 2:
            return np.empty(0), np.empty((0, len(KINDS)))
        steps = np.diff(self.totals, axis=0)
        return self.totals[1:, 0], np.maximum(steps[:, 1:], 0) / np.maximum(steps[:, :1], TICK / 2)


def without_history(update: Update) -> Update:
    """Return the state without the ticks and the records of fits."""
    # Copies, because an empty view would keep its whole array alive.
    ticks: dict[str, Any] = {name: getattr(update, name)[:0].copy() for name in ("times", "rank", "node", "core")}
    return replace(update, **ticks, fits=[])


def means(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean over the first axis without NaN; NaN where all numbers are NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        mean: NDArray[np.float32] = np.nanmean(numbers, axis=0)
    return mean
