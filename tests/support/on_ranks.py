"""What tests run on ranks. They import this file by its name, so it imports little itself."""

from __future__ import annotations

import threading

import numpy as np

import workbench.rank

_gate = threading.Event()


def holds_range(key, length, dask_worker):
    """Return whether a rank holds ``numpy.arange(float(length))``."""
    return np.array_equal(dask_worker.data[key], np.arange(float(length)))


def hold(rank):
    """Keep a rank from its part in the next broadcasts until it is let go."""
    if workbench.rank.current().rank == rank:
        from workbench.collective import broadcast_rank

        share = broadcast_rank.share
        _gate.clear()

        def wait(*args):
            _gate.wait()
            broadcast_rank.share = share
            return share(*args)

        broadcast_rank.share = wait


def let_go(rank):
    """End what `hold` began."""
    if workbench.rank.current().rank == rank:
        _gate.set()


def under_way(dask_worker):
    """Return whether this rank is in a broadcast."""
    calls = dask_worker.handlers["workbench_spmd_go"].__wrapped__.__self__.calls
    return any(call.running for call in calls.values())
