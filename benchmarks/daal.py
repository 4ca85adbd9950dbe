"""K-means of daal4py on all ranks of a bare world, by its own calls of MPI; with no Dask in the process."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import peer_data
from workbench.bench import turns
from workbench.bench.bare_fits import setting

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Order:
    """A fit that every rank is to take part in."""

    rows: int
    """Of each rank."""
    iterations: int


@dataclass(frozen=True)
class Fit:
    """What one rank did."""

    seconds: float
    centers: NDArray[np.float64]
    """Shape (clusters, columns)."""
    iterations: int
    setting: tuple[str | int | None, ...]
    """See `workbench.bench.bare_fits.setting`."""


def measure(address: str) -> Any:
    """Fit what is ordered at this address. Runs on every rank of a bare world."""
    import daal4py
    from mpi4py import MPI

    from workbench.placement.in_use import aligned

    comm = MPI.COMM_WORLD
    daal4py.daalinit(int(os.environ["OMP_NUM_THREADS"]))
    if daal4py.num_procs() != comm.size:
        raise RuntimeError(f"daal4py sees {daal4py.num_procs()} ranks of {comm.size}: it has loaded another MPI")
    blocks: dict[int, NDArray[np.float64]] = {}

    def fit(order: Order) -> Fit:
        if order.rows not in blocks:
            blocks[order.rows] = aligned(peer_data.points(comm, order.rows))
        X, first = blocks[order.rows], peer_data.centers()
        comm.Barrier()
        begin = time.perf_counter()
        algorithm = daal4py.kmeans(
            len(first), maxIterations=order.iterations, accuracyThreshold=0.0, assignFlag=False, distributed=True
        )
        found = algorithm.compute(X, first)
        took = time.perf_counter() - begin
        return Fit(took, np.asarray(found.centroids), int(np.asarray(found.nIterations).item()), setting(comm, X))

    turns.serve(address, comm.rank, fit)
