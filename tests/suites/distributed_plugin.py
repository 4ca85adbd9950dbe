"""A plugin of pytest for the tests of distributed: the protocol under test, and ranks as the workers of its clients.

``WORKBENCH_SUITE`` is ``PROTOCOL:PART:FIRST:END``, with the numbers of the tests to run. In part ``process`` every
connection that the tests make as tcp or tls is of the class of mpi:// if that is the protocol; outside of a world it
has to do what tcp does. In part ``ranks`` the fixture ``cluster_fixture`` is a cluster of two ranks with that protocol,
and only tests that use it are run.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import signal
import sys

import dask
import pytest
from distributed import Client, utils_test
from distributed.comm import tcp
from distributed.utils_test import *  # noqa: F403  (its fixtures)

from workbench import MPICluster
from workbench.comm.comm import MPIComm, MPITLSComm

PROTOCOL, PART, FIRST, END = os.environ["WORKBENCH_SUITE"].split(":")
FACTOR = float(os.environ.get("WORKBENCH_TEST_PATIENCE", "1"))
# Seconds for one test; distributed's own limit is 30 for most.
PATIENCE = int(60 * FACTOR)
RANKS = 2

if (PROTOCOL, PART) == ("mpi", "process"):
    tcp.TCPConnector.comm_class = tcp.TCPListener.comm_class = MPIComm
    tcp.TLSConnector.comm_class = tcp.TLSListener.comm_class = MPITLSComm


def patient(decorator):
    """Return a decorator of tests with a longer limit: on a busy machine the limit ends tests that do not hang."""
    own = inspect.signature(decorator).parameters["timeout"].default

    @functools.wraps(decorator)
    def longer(*args, timeout=own, **kwargs):
        return decorator(*args, timeout=timeout * FACTOR, **kwargs)

    return longer


utils_test.gen_test, utils_test.gen_cluster = patient(utils_test.gen_test), patient(utils_test.gen_cluster)


def pytest_configure(config):
    # The runner ends a run by this signal, which a program in the background of a shell ignores.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    utils_test.certs_dir = str(config.rootpath)
    # Other processes import the tests by their names.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(config.rootpath), os.environ.get("PYTHONPATH", "")])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    chosen = [item for item in items if PART == "process" or "cluster_fixture" in item.fixturenames]
    items[:] = [item for item in chosen if not item.get_closest_marker("slow")][int(FIRST) : int(END)]


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
    def cluster_fixture(ranks, loop, request):
        security = ranks.security
        # Clients are made of the address alone.
        tls = {
            "distributed.comm.tls.ca-file": security.tls_ca_file,
            "distributed.comm.tls.client.cert": security.tls_client_cert,
            "distributed.comm.tls.client.key": security.tls_client_key,
        }
        with dask.config.set(tls):
            with Client(ranks) as client:
                if len(client.scheduler_info()["workers"]) < RANKS:
                    ranks.restart()
                for name in client.list_datasets():
                    client.unpublish_dataset(name)
                client.run(sys.path.append, str(request.config.rootpath))
                workers = [{"address": address} for address in client.scheduler_info()["workers"]]
            yield {"address": ranks.scheduler_address}, workers
