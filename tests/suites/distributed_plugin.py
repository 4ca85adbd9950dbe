"""A plugin of pytest for the tests of distributed: the protocol under test, and ranks as the workers of its clients.

``WORKBENCH_SUITE`` is ``PROTOCOL:PART``. In part ``process`` every connection that the tests make as tcp or tls is of
the class of mpi:// if that is the protocol; outside of a world it has to do what tcp does. In part ``ranks`` the
fixture ``client`` is connected to a cluster of two ranks with that protocol, and only tests that use it are run.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from distributed import Client, utils_test
from distributed.comm import tcp
from distributed.utils_test import *  # noqa: F403  (its fixtures)

from workbench import MPICluster
from workbench.comm.comm import MPIComm, MPITLSComm

PROTOCOL, PART = os.environ["WORKBENCH_SUITE"].split(":")
# Seconds for one test; distributed's own limit is 30 for most.
PATIENCE = int(60 * float(os.environ.get("WORKBENCH_TEST_PATIENCE", "1")))
RANKS = 2

if (PROTOCOL, PART) == ("mpi", "process"):
    tcp.TCPConnector.comm_class = tcp.TCPListener.comm_class = MPIComm
    tcp.TLSConnector.comm_class = tcp.TLSListener.comm_class = MPITLSComm


def pytest_configure(config):
    utils_test.certs_dir = str(config.rootpath)
    # Other processes import the tests by their names.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(config.rootpath), os.environ.get("PYTHONPATH", "")])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    chosen = [item for item in items if PART == "process" or {"c", "client"} & {*item.fixturenames}]
    items[:] = [item for item in chosen if not item.get_closest_marker("slow")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    def end(*_):
        raise TimeoutError(f"after {PATIENCE} s")

    signal.signal(signal.SIGALRM, end)
    signal.alarm(PATIENCE)
    try:
        return (yield)
    finally:
        signal.alarm(0)


def pytest_runtest_logreport(report):
    if report.outcome != "passed" or report.when == "call":
        # The last line of a test counts: its end may fail after it has passed.
        with open(os.environ["WORKBENCH_SUITE_OUTCOMES"], "a", encoding="utf-8") as lines:
            lines.write(json.dumps([report.nodeid, report.outcome]) + "\n")


if PART == "ranks":

    @pytest.fixture(scope="session")
    def ranks():
        with MPICluster(RANKS, protocol=PROTOCOL, quiet=True) as cluster:
            yield cluster

    @pytest.fixture
    def cleanup():
        """Expect no end of everything after a test: the cluster is for all of them."""

    @pytest.fixture
    def loop(client):
        return client.loop

    @pytest.fixture
    def client(ranks, request):
        with Client(ranks) as client:
            if len(client.scheduler_info()["workers"]) < RANKS:
                ranks.restart()
            client.run(sys.path.append, str(request.config.rootpath))
            yield client
            if client.status == "running":
                for name in client.list_datasets():
                    client.unpublish_dataset(name)

    @pytest.fixture
    def c(client):
        return client

    @pytest.fixture
    def cluster_fixture(ranks, client):
        workers = client.scheduler_info()["workers"]
        return {"address": ranks.scheduler_address}, [{"address": address} for address in workers]

    @pytest.fixture
    def client_secondary(ranks):
        with Client(ranks) as client:
            yield client
