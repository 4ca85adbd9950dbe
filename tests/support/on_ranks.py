"""What tests run on ranks. They import this file by its name, so it imports little itself."""

from __future__ import annotations

import threading

import numpy as np

import workbench.rank

_gate = threading.Event()


def holds_range(key, length, dask_worker):
    """Tell whether a rank holds ``numpy.arange(float(length))``."""
    return np.array_equal(dask_worker.data[key], np.arange(float(length)))


def hold(rank):
    """Keep the MPI thread of a rank busy until it is let go."""
    context = workbench.rank.current()
    if context.rank == rank:
        _gate.clear()
        context.spmd_thread.submit(_gate.wait)


def let_go(rank):
    """End what `hold` began."""
    if workbench.rank.current().rank == rank:
        _gate.set()


def under_way(dask_worker):
    """Tell whether this rank is in a broadcast."""
    return bool(dask_worker.handlers["workbench_broadcast_go"].__wrapped__.__self__.calls)
