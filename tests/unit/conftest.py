"""Four ranks of a Dask cluster without MPI, in this process, with the head's rules for pinned blocks."""

from __future__ import annotations

import sys
import threading

import dask
import pytest
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, settings
from support.processes import until

from workbench.placement.head import protect_pinned

# A machine that has other work needs longer for an example than Hypothesis allows.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

SETTINGS = {
    # run by hand, so that tests know when
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.active-memory-manager.policies": [{"class": "workbench.placement.head.KeepPinned"}],
    # the memory of the process is that of all ranks, and says nothing of one
    "distributed.worker.memory.rebalance.measure": "managed",
    "distributed.worker.memory.rebalance.sender-min": 0.0,
    "distributed.worker.memory.rebalance.sender-recipient-gap": 0.0,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": 0.99,
    "distributed.worker.memory.pause": False,
}


@pytest.fixture(scope="module")
def local_cluster():
    with (
        dask.config.set(SETTINGS),
        LocalCluster(
            n_workers=4,
            threads_per_worker=1,
            processes=False,
            # between real sockets, so that data is serialized
            protocol="tcp://",
            memory_limit="4GB",
            dashboard_address=":0",
        ) as cluster,
    ):
        protect_pinned(cluster.scheduler)
        yield cluster


@pytest.fixture(scope="module")
def client(local_cluster):
    with Client(local_cluster) as client:
        yield client


def polls():
    """Return whether a thread asks schedulers for jobs."""
    return any(thread.name == "job-poller" for thread in threading.enumerate())


@pytest.fixture(scope="module", autouse=True)
def nobody_polls():
    """End the polls for jobs of earlier tests, which last for a minute, also by the fake commands of later tests."""
    if (module := sys.modules.get("workbench.launch.launchers")) is not None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_FORGET", 0.0)
            module.poller.status("local", "none")  # wakes the thread
            until("the end of the polls", lambda: not polls())
