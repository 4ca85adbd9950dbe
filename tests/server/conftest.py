"""A Jupyter server that all tests here share, and records of clusters that do not run."""

from __future__ import annotations

import pytest
from server.running import FAKE, end, log_in, start

from workbench import registry, scratch
from workbench.host import ProcessId
from workbench.registry import Record
from workbench.server import panels


@pytest.fixture(scope="session")
def started():
    server = start()
    yield server
    end(server.process)


@pytest.fixture
async def server(started):
    """Return the server for a browser that is logged in."""
    return await log_in(started)


@pytest.fixture
def cluster():
    """Return what makes the record of a cluster whose head is this process."""
    made = []

    def make(name, **facts) -> Record:
        known = {"state": "ready", "address": "tls://127.0.0.1:1", "process": ProcessId.here()}
        record = Record(name=name, ranks=2, **known | facts)
        registry.create(record)
        made.append(record)
        return record

    yield make
    for record in made:
        if record.folder.exists():
            registry.remove(record)
        scratch.remove(record.id)


@pytest.fixture
def dask_cluster(cluster):
    """Return the record of a cluster with both kinds of pages."""
    return cluster("with-dask")


@pytest.fixture
def fake(monkeypatch):
    """Have dashboards that this process starts be `fake_panel`."""
    monkeypatch.setattr(panels, "MODULE", FAKE)
