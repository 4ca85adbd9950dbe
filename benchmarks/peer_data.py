"""The data that our estimators and their peers are compared on: made on the ranks, from the number of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_Array = NDArray[np.float64]

CLUSTERS = 16
"""That K-means looks for; columns of its data."""
_FEATURES = 32
_WIDE = 256


@dataclass(frozen=True)
class Data:
    """What a model is fitted on."""

    rows: int
    """In all blocks together."""
    least: int
    """The fewest that a rank may have."""
    block: Callable[[Intracomm, int], Any]
    """Returns the block of a rank with so many rows, or a tuple of blocks."""

    def per_rank(self, ranks: int, scale: float) -> int:
        """Return the rows of each rank, with a factor for their number."""
        return max(self.least, round(self.rows * scale / ranks))


def points(comm: Intracomm, rows: int) -> _Array:
    """Return points without any clusters, so that Lloyd's iterations do not end early: shape (rows, columns)."""
    return _normal(comm.rank, rows, CLUSTERS)


def centers() -> _Array:
    """Return the first centers, which are the first points of rank 0: shape (clusters, columns)."""
    return _normal(0, CLUSTERS, CLUSTERS)


def labeled(comm: Intracomm, rows: int) -> tuple[_Array, _Array]:
    """Return features and labels, 0 and 1: shapes (rows, columns) and (rows,)."""
    X = _normal(comm.rank, rows, _FEATURES)
    scores = X @ np.linspace(-1, 1, _FEATURES)
    return X, (np.random.default_rng([1, comm.rank]).logistic(size=rows) < scores).astype(np.float64)


def decaying(comm: Intracomm, rows: int) -> _Array:
    """Return rows whose singular values fall like 1, 1/2, 1/3 and so on: shape (rows, columns)."""
    X = _normal(comm.rank, rows, _WIDE)
    X /= np.arange(1, _WIDE + 1)
    return X


def _normal(rank: int, rows: int, columns: int) -> _Array:
    return np.random.default_rng(rank).standard_normal((rows, columns))


DATA = {
    "kmeans": Data(2_000_000, CLUSTERS, points),
    "logistic": Data(2_000_000, _FEATURES, labeled),
    "svd": Data(500_000, _WIDE, decaying),
}
"""By what is compared."""
