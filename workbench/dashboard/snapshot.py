"""The state of a cluster at a moment, with the ticks before."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from workbench.dashboard import diagnosis
from workbench.dashboard.diagnosis import Wait
from workbench.metrics.frames import places
from workbench.metrics.schema import KINDS, RANK, TICK
from workbench.metrics.update import Layout, Update

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARES = ("compute", "mpi", "waiting", "idle")
"""Parts of the time of a rank."""
SHARE_TITLES = ("Compute", "MPI", "Waiting", "Idle")

# Ticks of the recent means: single ticks vary too much to read.
_RECENT_TICKS = round(5 / TICK)


@dataclass(frozen=True)
class Snapshot:
    """A moment that is shown: the last one, or one in the buffer.

    Attributes
    ----------
    update : Update
        The state; its arrays of ticks are empty.
    valid_at : float
        The time of that state, in seconds since the epoch: before the moment if that is not the last one.
    times : ndarray of float64, shape (f,)
        Ends of the ticks up to then, oldest first.
    rank, node, core : ndarray
        Of these ticks, as in `Update`.
    totals : ndarray of float64, shape (g, 1 + len(KINDS))
        Time, and bytes sent since the start, by kind: one row for each answer of the head.
    fits : list of dict
        Records of fits up to then.
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
        """Return the last moment of the first answer of a head, with all its history."""
        moment = float(update.times[-1]) if len(update.times) else 0.0
        ticks = update.times, update.rank, update.node, update.core
        return cls(without_history(update), moment, *ticks, np.empty((0, 1 + len(KINDS))), update.fits)

    def copy(self) -> Snapshot:
        """Return the same moment with numbers of its own: those of the buffer move on."""
        kept: dict[str, Any] = {
            name: getattr(self, name).copy() for name in ("times", "rank", "node", "core", "totals")
        }
        return replace(self, **kept)

    @property
    def layout(self) -> Layout:
        """Which ranks and nodes the columns are."""
        return self.update.layout

    @property
    def time(self) -> float:
        """The moment, in seconds since the epoch by the clock of the head."""
        return float(self.times[-1]) if len(self.times) else 0.0

    @cached_property
    def names(self) -> list[str]:
        """Names of the ranks."""
        return [place.name for place in self.layout.ranks]

    @cached_property
    def between(self) -> list[str]:
        """Names of what there is traffic between: ranks or nodes."""
        return places(self.update)

    def of_ranks(self, field: str) -> NDArray[np.float32]:
        """Return a number of all ranks over time, shape (f, ranks)."""
        numbers: NDArray[np.float32] = self.rank[:, :, RANK.index(field)]
        return numbers

    @cached_property
    def recent_means(self) -> NDArray[np.float32]:
        """Means of the last five seconds, shape (ranks, len(RANK)); NaN where a rank has sent nothing."""
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
        """Which ranks wait for which for longer than `diagnosis.PATIENCE`."""
        return diagnosis.waits(self.layout, self.update.now, self.valid_at)

    @cached_property
    def imbalance(self) -> float:
        """The part of the busiest rank's computing that the mean rank does not have: 0 if the work is even."""
        compute = self.recent_mean("compute")
        most = float(np.nanmax(compute)) if np.isfinite(compute).any() else 0.0
        # what ranks do that have nothing to do is not uneven work
        return 1 - float(np.nanmean(compute)) / most if most > 0.1 else 0.0

    @cached_property
    def rates(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times, shape (g - 1,), and bytes a second that were sent between them, shape (g - 1, len(KINDS))."""
        if len(self.totals) < 2:
            return np.empty(0), np.empty((0, len(KINDS)))
        steps = np.diff(self.totals, axis=0)
        return self.totals[1:, 0], np.maximum(steps[:, 1:], 0) / np.maximum(steps[:, :1], TICK / 2)


def without_history(update: Update) -> Update:
    """Return the state without the ticks and the records of fits."""
    # copies of nothing: a view would keep all that it is of
    ticks: dict[str, Any] = {name: getattr(update, name)[:0].copy() for name in ("times", "rank", "node", "core")}
    return replace(update, **ticks, fits=[])


def means(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean over the first axis of what is not NaN, and NaN where nothing else is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        mean: NDArray[np.float32] = np.nanmean(numbers, axis=0)
    return mean
