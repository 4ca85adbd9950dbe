"""A Jupyter server that all tests here share, records of clusters that do not run, and subcommands that do nothing."""

from __future__ import annotations

import sys
import threading

import pytest
from server.running import FAKE, end, log_in, start

from workbench.deploy import registry
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record
from workbench.host import node_dirs
from workbench.host.processes import ProcessId
from workbench.lab.server import actions, observer
from workbench.lab.server.process import Process


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
def own_registry(monkeypatch, tmp_path):
    """Have clusters in a folder that no other test uses, and to which a link leads."""
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(link))


@pytest.fixture
def threads():
    """Return a function that lists the new threads that look at files."""
    before = set(threading.enumerate())
    return lambda: [each for each in threading.enumerate() if each.name == "files" and each not in before]


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
        if ClusterFolder.of(record).path.exists():
            ClusterFolder.of(record).remove()
        node_dirs.remove(record.id)


@pytest.fixture
def dask_cluster(cluster):
    """Return the record of a cluster with both kinds of pages."""
    return cluster("with-dask")


@pytest.fixture
def fake(monkeypatch):
    """Have the observer that this process starts be `fake_observer`."""
    monkeypatch.setattr(observer, "MODULE", FAKE)


@pytest.fixture
async def subcommands(monkeypatch):
    """Have subcommands be processes that do nothing, of which all but a stop wait."""
    made = []

    class Subcommands:
        def run(self, subcommand, words):
            code = "print({})" if subcommand == "stop" else "import signal; signal.pause()"
            made.append(Process([sys.executable, "-c", code]))
            return made[-1]

    monkeypatch.setattr(actions, "ExecutionContext", Subcommands)
    yield made
    for process in made:
        await process.kill()
