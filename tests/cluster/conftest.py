"""Clusters that several tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client
from support.spmd import be_patient

from workbench import MPICluster
from workbench.verbs import actions

RANKS = 4


@pytest.fixture(autouse=True, scope="module")
def dead_records() -> Iterator[None]:
    """Records of heads that tests have killed go with the next listing: no later file is to see them go."""
    yield
    actions.listing()


@pytest.fixture(scope="session")
def cluster4() -> Iterator[MPICluster]:
    """A cluster of 4 ranks that no test may harm."""
    with MPICluster(RANKS, name="shared", quiet=True) as cluster:
        with Client(cluster, set_as_default=False) as client:
            client.run_on_scheduler(be_patient)
        yield cluster


@pytest.fixture
def client4(cluster4: MPICluster) -> Iterator[Client]:
    """A client of `cluster4`; a test that loses a rank fails with the logs, and those after it get a whole world."""
    with Client(cluster4) as client:
        yield client
        if client.scheduler_info()["n_workers"] == RANKS:
            return
    logs = cluster4.logs()
    cluster4.restart()
    pytest.fail(f"a rank was lost:\n{logs}")
