"""K-means and logistic regression as an MPI programmer writes them, with no Dask in the process.

What is computed on the block of a rank is what our estimators compute on it; around it are a loop, buffers and
``MPI_Allreduce``, the same on all ranks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.bench import turns
from workbench.bench.measuring import Growth, Watch
from workbench.ml.kmeans.part import KMeansPart
from workbench.ml.logistic.part import LogisticPart

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_Vector = NDArray[np.float64]
_Block = tuple[_Vector, _Vector]

COLUMNS, CLUSTERS = 32, 16
"""Of the block of each rank; that are looked for in them."""
# Features of so different spread keep L-BFGS from converging before the iterations that are wanted are made.
_SPREAD = np.geomspace(0.1, 10, COLUMNS)


@dataclass(frozen=True)
class Order:
    """A fit that every rank is to take part in."""

    model: str
    """``"kmeans"`` or ``"logistic"``."""
    rows: int
    """Of each rank."""
    iterations: int
    pieces: int = 1
    """What the rows of each rank are made of; see `block`."""
    watched: bool = False
    """Whether memory is measured, and not time."""

    @property
    def nbytes(self) -> int:
        """Size of the block of each rank."""
        return self.rows * COLUMNS * np.dtype(np.float64).itemsize


@dataclass(frozen=True)
class Fit:
    """What one rank did."""

    seconds: float
    found: _Vector
    """Centers and inertia, or slopes and intercept, one after the other."""
    iterations: int
    setting: tuple[str | int | None, ...]
    """See `setting`."""
    growth: Growth | None
    """Of its memory, if that was ordered."""


def block(comm: Intracomm, rows: int, pieces: int = 1) -> _Block:
    """Return the block of a rank and its labels, 0 and 1: shapes (rows, columns) and (rows,).

    Notes
    -----
    All data are a row of pieces with separate random numbers. Each rank has the same number of pieces, so other numbers
    of ranks can share the same data.
    """
    X, y = np.empty((rows, COLUMNS)), np.empty(rows)
    for number, (piece, labels) in enumerate(zip(np.split(X, pieces), np.split(y, pieces), strict=True)):
        random = np.random.default_rng(comm.rank * pieces + number)
        piece[...] = _rows(random, len(piece))
        scores = piece @ (np.resize([0.5, -0.5], COLUMNS) / _SPREAD)
        labels[...] = random.logistic(size=len(labels)) < scores
    return X, y


def centers() -> _Vector:
    """Return the first centers, which are the first rows of rank 0: shape (clusters, columns)."""
    return _rows(np.random.default_rng(0), CLUSTERS)


def _rows(random: np.random.Generator, rows: int) -> _Vector:
    X = random.standard_normal((rows, COLUMNS))
    X *= _SPREAD
    return X


def setting(comm: Intracomm, X: _Vector) -> tuple[str | int | None, ...]:
    """Return what the speed depends on beside: ranks, number of threads, of cores, alignment of the block."""
    return comm.size, os.environ.get("OMP_NUM_THREADS"), len(os.sched_getaffinity(0)), X.ctypes.data % 64


def kmeans(comm: Intracomm, data: _Block, iterations: int) -> tuple[_Vector, int]:
    """Return centers and inertia, and how many of Lloyd's iterations were made."""
    part, now = KMeansPart(data[0], None, None, 0), centers()
    own, total = np.empty(now.size + CLUSTERS + 1), np.empty(now.size + CLUSTERS + 1)
    made, moved = 0, 1.0
    while made < iterations and moved:
        sums, counts, _, own[-1] = part.step(now, not made)
        own[: now.size], own[now.size : -1] = sums.ravel(), counts
        comm.Allreduce(own, total)
        now, moved = total[: now.size].reshape(now.shape) / total[now.size : -1, None], total[-1]
        made += 1
    inertia = np.empty(1)
    comm.Allreduce(np.array([part.spread()[-1] - part.assign(now)[1]]), inertia)
    return np.append(now, inertia), made


def logistic(comm: Intracomm, data: _Block, iterations: int) -> tuple[_Vector, int]:
    """Return slopes and intercept, and how many iterations of L-BFGS were made; the penalty is that of ``C=1``."""
    from scipy.optimize import minimize

    part, rows = LogisticPart(*data, None, 0), len(data[0]) * comm.size
    part.encode(np.array([0.0, 1.0]), None)
    own, total = np.empty(COLUMNS + 2), np.empty(COLUMNS + 2)

    def loss_and_gradient(weights: _Vector) -> tuple[float, _Vector]:
        own[0], own[1:] = part.loss_and_gradient(weights)
        comm.Allreduce(own, total)
        slopes = np.append(weights[:-1], 0.0)
        return (total[0] + slopes @ slopes / 2) / rows, (total[1:] + slopes) / rows

    options = {"maxiter": iterations, "gtol": 0.0, "ftol": 0.0}
    found = minimize(loss_and_gradient, np.zeros(COLUMNS + 1), jac=True, method="L-BFGS-B", options=options)
    return found.x, found.nit


MODELS: dict[str, Callable[[Intracomm, _Block, int], tuple[_Vector, int]]] = {"kmeans": kmeans, "logistic": logistic}
"""What can be fitted."""


class _Trainer:
    """One rank, and the data that it fits each model on."""

    def __init__(self, comm: Intracomm) -> None:
        self._comm = comm
        self._data: dict[str, tuple[tuple[int, int], _Block]] = {}

    def fit(self, order: Order) -> Fit:
        """Take part in a fit; all ranks begin simultaneously."""
        X, y = self._block(order)
        watch = Watch() if order.watched else None
        self._comm.Barrier()
        begin = time.perf_counter()
        found, made = MODELS[order.model](self._comm, (X, y), order.iterations)
        took = time.perf_counter() - begin
        _require_no_dask()
        return Fit(took, found, made, setting(self._comm, X), watch.end() if watch else None)

    def _block(self, order: Order) -> _Block:
        from workbench.placement.in_use import aligned

        wanted = order.rows, order.pieces
        before, data = self._data.pop(order.model, (None, None))
        if data is None or before != wanted:
            # What was there before is not kept beside it.
            data = None
            X, y = block(self._comm, *wanted)
            data = aligned(X), aligned(y)
        self._data[order.model] = wanted, data
        return data


def _require_no_dask() -> None:
    loaded = sorted({"dask", "distributed"} & set(sys.modules))
    if loaded:
        raise RuntimeError(f"the bare program has loaded {', '.join(loaded)}: then it is none without Dask")


def measure(address: str) -> Any:
    """Fit what is ordered at this address. Runs on every rank of a bare world."""
    from mpi4py import MPI

    turns.serve(address, MPI.COMM_WORLD.rank, _Trainer(MPI.COMM_WORLD).fit)
