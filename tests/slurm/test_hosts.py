"""Clusters through a live Slurm, whose four nodes are separate hosts."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys

import dask
import numpy as np
import pytest
from distributed import Client
from support.daemons import running
from support.launchers import assert_closed_to_strangers, hosts_folder
from support.nodes import numbers, places, remains, two_on_each
from support.processes import DEADLINE, until
from support.slurm import NAMES
from support.training import listening, received_by_mpi

from workbench import MPICluster
from workbench.commands import actions
from workbench.deploy.folder import ClusterFolder
from workbench.host.network import has_fabric

pytestmark = pytest.mark.in_order

MEGABYTES = 8


@pytest.fixture(scope="module")
def slurm(slurm_hosts):
    return slurm_hosts


@pytest.fixture(scope="module")
def cluster(slurm):
    with MPICluster(8, nodes=4, scheduler="slurm", quiet=True) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster) as client:
        yield client


def files_on_nodes(slurm, record):
    """Return what is left of a cluster on nodes in memory and in folders for temporary files, which are their own."""
    line = f'find /dev/shm "$TMPDIR" -name "workbench-{record.id[:8]}*" | sed "s/^/$(hostname):/"'
    return slurm.run("srun", "--nodes=4", "--ntasks-per-node=1", "sh", "-c", line).split()


def test_each_rank_is_on_the_node_that_its_number_tells(cluster, client):
    assert places(cluster, client) == two_on_each(8)
    assert [rank["host"] for rank in cluster.ranks] == [NAMES[rank // 2] for rank in range(8)]


def test_head_and_ranks_bind_the_addresses_of_their_nodes(slurm, cluster, client):
    its = slurm.network.addresses
    head = cluster.record.process.host
    assert head == "n1"
    assert cluster.record.address.startswith(f"tls://{its[head]}:")
    assert client.run_on_scheduler(listening) == [its[head]]
    bound = client.run(listening)
    for rank in cluster.ranks:
        assert rank["address"].startswith(f"mpi://{its[rank['host']]}:")
        assert its[rank["host"]] in bound[rank["address"]]


def test_launcher_and_daemons_accept_each_other_and_neither_another_user_nor_another_host(slurm, cluster):
    addresses = sorted(slurm.network.addresses.values())
    assert assert_closed_to_strangers(cluster.record) == addresses
    assert {path.name for path in hosts_folder(cluster.record).iterdir()} >= set(addresses)
    assert cluster.refresh().state == "ready"


def test_the_host_of_the_controller_attaches_and_tells_where_the_head_is(cluster):
    assert cluster.record.process.host != socket.gethostname()
    command = [sys.executable, "-m", "workbench", "status", cluster.name, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert json.loads(done.stdout)["host"] == "n1"
    with MPICluster.attach(cluster.name) as other, Client(other, set_as_default=False) as client:
        assert client.submit(sum, [1, 2]).result(DEADLINE) == 3


def test_blocks_go_from_node_to_node_by_mpi(cluster, client):
    last = cluster.ranks[7]["address"]
    before = client.run(received_by_mpi, 0, workers=[last])[last]
    block = client.submit(np.ones, MEGABYTES * 125_000, workers=[0])
    assert client.submit(np.sum, block, workers=[7]).result(DEADLINE) == MEGABYTES * 125_000
    assert client.run(received_by_mpi, 0, workers=[last])[last] - before >= MEGABYTES * 1_000_000


def test_stop_leaves_nothing_on_any_host(slurm, cluster):
    jobs = numbers(cluster.record)
    assert actions.stop(actions.targets(cluster.name, everything=False)).stopped == [cluster.name]
    assert remains(slurm, cluster.record, jobs) == []
    assert files_on_nodes(slurm, cluster.record) == []


@pytest.mark.parametrize("noticed", ["by the user who runs Slurm", pytest.param("by Slurm", marks=pytest.mark.long)])
def test_a_node_that_dies_or_is_cut_off_ends_its_cluster_in_words_and_leaves_nothing(slurm, noticed):
    clusters = [
        MPICluster(2, nodes=2, scheduler="slurm", extra=[f"--nodelist={nodes}"], name=name, quiet=True)
        for name, nodes in (("dying", "n1,n2"), ("cut-off", "n3,n4"))
    ]
    slurm.kill_node("n2")
    slurm.network.cut_off("n4")
    try:
        if noticed != "by Slurm":  # which takes three times as long as its parts wait for each other
            slurm.run("scontrol", "update", "NodeName=n2,n4", "State=DOWN", "Reason=test")
        # Whichever comes first: srun waits for Slurm to find the node dead, mpiexec finds its own daemon dead.
        lost = r"rank 1 \(pid \d+ on n2\) was lost; its world ends|the world was lost"
        until("the loss is told", lambda: re.search(lost, clusters[0].logs()))
        for cluster in clusters:
            until(
                "it is not listed", lambda name=cluster.name: name not in [c.name for c in actions.listing().clusters]
            )
            until("its job is over", lambda job=cluster.record.job: slurm.state(job) == "NODE_FAIL")
            assert "DUE TO NODE FAILURE" in cluster.logs()
    finally:
        slurm.start_node("n2")
        slurm.network.mend("n4")
        slurm.wait_up()
    for cluster in clusters:
        cluster.close()
        until("its processes have ended", lambda name=cluster.name: not running(name))
        assert remains(slurm, cluster.record, {cluster.record.job}) == []
        # The node that was cut off removes its files once the network is there again.
        until("its files are removed", lambda its=cluster.record: files_on_nodes(slurm, its) == [])


@pytest.mark.parametrize("template", [True, False])
def test_a_job_that_is_cancelled_from_outside_leaves_nothing_however_its_ranks_were_started(slurm, template):
    with dask.config.set({"workbench.template": template}):
        started = MPICluster(2, nodes=2, scheduler="slurm", name="cancelled", quiet=True)
    with started as cluster:
        assert ("ranks are forked" in cluster.logs()) == template
        assert "starts without the template" not in cluster.logs()
        with Client(cluster) as client:
            # Whatever opens the components for other networks sleeps for a second.
            told = client.run(lambda: os.environ.get("OMPI_MCA_btl"))  # noqa: SIM112
        assert set(told.values()) == {None if has_fabric() else "^ofi"}
        slurm.run("scancel", cluster.record.job)
        until("its record is gone", lambda: not ClusterFolder.of(cluster.record).path.exists())
        until("its job is over", lambda: slurm.state(cluster.record.job) == "CANCELLED")
    assert remains(slurm, cluster.record, {cluster.record.job}) == []
    assert files_on_nodes(slurm, cluster.record) == []
