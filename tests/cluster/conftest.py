"""Clusters that several tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client

from workbench import MPICluster


@pytest.fixture(scope="session")
def cluster4() -> Iterator[MPICluster]:
    """A cluster of 4 ranks that no test may harm."""
    with MPICluster(4, name="shared", quiet=True) as cluster:
        yield cluster


@pytest.fixture
def client4(cluster4: MPICluster) -> Iterator[Client]:
    """A client of `cluster4`."""
    with Client(cluster4) as client:
        yield client
