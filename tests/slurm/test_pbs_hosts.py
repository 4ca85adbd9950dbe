"""Clusters in jobs of PBS whose nodes are separate hosts, and have neither ssh nor Slurm to reach each other."""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import closing

import dask
import numpy as np
import pytest
from distributed import Client, wait
from support.daemons import running
from support.folders import folders_of
from support.launchers import assert_closed_to_strangers
from support.nodes import numbers, remains
from support.pbs_sim import Pbs
from support.processes import DEADLINE, until
from support.training import received_by_mpi

from workbench import MPICluster
from workbench.deploy.folder import ClusterFolder
from workbench.errors import StartError
from workbench.host import node_dirs

pytestmark = pytest.mark.in_order

MEGABYTES = 8
# What a site's settings and a user have in front of the command: words with blanks, quotes and more than one line.
PROLOGUE = {
    "PYTHONPATH": os.environ["PYTHONPATH"],
    "DASK_WORKBENCH__IDLE_TIMEOUT": "10 minutes",
    "OF_THE_USER": "a b; 'c'\nd=$HOME",
    # This host has fewer cores than its nodes say.
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
TOLD = ("JUPYTER_DATA_DIR", "DASK_CONFIG", "OMP_NUM_THREADS", *PROLOGUE)


@pytest.fixture(scope="module")
def pbs(namespaces):
    prologue = [f"export {name}={shlex.quote(value)}" for name, value in PROLOGUE.items()]
    settings = {"jobqueue.pbs.job-script-prologue": prologue}
    with closing(Pbs()) as pbs, pbs.in_environment(), dask.config.set(settings):
        yield pbs


@pytest.fixture(scope="module")
def cluster(pbs):
    with MPICluster(4, nodes=2, scheduler="pbs", walltime="10 minutes", threads=2, quiet=True) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster) as client:
        yield client


@pytest.mark.mpi_flavor
def test_ranks_are_node_by_node_in_one_world(pbs, cluster, client):
    assert cluster.record.job == "1.pbshead"

    def where():
        import socket

        from mpi4py.MPI import COMM_WORLD

        return COMM_WORLD.rank, COMM_WORLD.size, socket.gethostname()

    told = client.run(where)
    assert [told[rank["address"]] for rank in cluster.ranks] == [(rank, 4, f"n{1 + rank // 2}") for rank in range(4)]
    assert [rank["name"] for rank in cluster.ranks] == list(range(4))
    for rank in cluster.ranks:
        assert rank["address"].startswith(f"mpi://{pbs.network.addresses[rank['host']]}:")


def test_ranks_on_all_nodes_have_the_variables_of_the_job(cluster, client):
    def variables(names):
        return {name: os.environ.get(name) for name in names}

    of_head = client.run_on_scheduler(variables, TOLD)
    assert {name: of_head[name] for name in PROLOGUE} == PROLOGUE
    expected = of_head | {"OMP_NUM_THREADS": "2"}
    assert list(client.run(variables, TOLD).values()) == [expected] * 4


def test_launcher_and_daemons_accept_each_other_and_neither_another_user_nor_another_host(pbs, cluster):
    assert assert_closed_to_strangers(cluster.record) == sorted(pbs.network.addresses[name] for name in ("n1", "n2"))
    assert cluster.refresh().state == "ready"


@pytest.mark.mpi_flavor
def test_blocks_go_from_node_to_node_by_mpi(cluster, client):
    last = cluster.ranks[3]["address"]
    before = client.run(received_by_mpi, 0, workers=[last])[last]
    block = client.submit(np.ones, MEGABYTES * 125_000, workers=[0])
    assert client.submit(np.sum, block, workers=[3]).result(DEADLINE) == MEGABYTES * 125_000
    assert client.run(received_by_mpi, 0, workers=[last])[last] - before >= MEGABYTES * 1_000_000


def test_results_move_to_more_ranks_in_a_second_job_and_back(pbs, cluster, client):
    block = client.submit(np.arange, 1000, workers=[3])
    wait(block)
    cluster.scale(6)
    assert [rank["name"] for rank in cluster.ranks] == list(range(6))
    assert {rank["host"] for rank in cluster.ranks} == {"n3", "n4", "n5"}
    assert client.submit(np.sum, block).result(DEADLINE) == 499_500
    assert sorted(pbs.jobs()) == ["1", "2"]
    cluster.scale(4)
    until("its job is over", lambda: pbs.jobs() == ["1"])
    assert [rank["host"] for rank in cluster.ranks] == ["n1", "n1", "n2", "n2"]
    assert client.submit(np.sum, block, workers=[0], pure=False).result(DEADLINE) == 499_500


@pytest.mark.mpi_flavor
def test_stop_leaves_nothing_on_any_host(pbs, cluster):
    jobs = numbers(cluster.record)
    cluster.close(shutdown=True)
    until("its job is over", lambda: pbs.jobs() == [])
    assert remains(pbs, cluster.record, jobs) == []
    assert pbs.files(f"workbench-{cluster.record.id[:8]}*") == []


def test_a_rank_that_fails_on_another_node_is_told_and_leaves_nothing(pbs, tmp_path):
    (tmp_path / "licenses.py").write_text(
        "import socket\n\nroutes = []\nif socket.gethostname() == 'n2':\n    raise RuntimeError('no license on n2')\n"
    )
    path = f"export PYTHONPATH={shlex.quote(str(tmp_path))}"
    settings = {"jobqueue.pbs.job-script-prologue": [path], "distributed.worker.http.routes": ["licenses"]}
    with dask.config.set(settings), pytest.raises(StartError) as caught:
        MPICluster(2, nodes=2, scheduler="pbs", name="failing", quiet=True)
    assert "RuntimeError: no license on n2" in str(caught.value)
    until("its job is over", lambda: pbs.jobs() == [])
    assert running("failing") == []


def test_a_job_that_is_cancelled_from_outside_leaves_nothing(pbs):
    with MPICluster(2, nodes=2, scheduler="pbs", name="cancelled", quiet=True) as cluster:
        subprocess.run(["qdel", cluster.record.job], check=True, timeout=DEADLINE)
        until("its record is gone", lambda: not ClusterFolder.of(cluster.record).path.exists())
        until("its job is over", lambda: pbs.jobs() == [])
    assert remains(pbs, cluster.record, numbers(cluster.record)) == []
    # PBS kills the ranks of the other nodes when the head has ended. The next cluster on a node removes what a rank
    # that was killed has left there.
    assert [path for path in pbs.files(f"workbench-{cluster.record.id[:8]}*") if path.startswith("n1:")] == []


def test_a_head_that_is_killed_takes_the_ranks_of_all_nodes_along(pbs, monkeypatch):
    cluster = MPICluster(2, nodes=2, scheduler="pbs", name="beheaded", quiet=True)
    # What the end of the cluster asks the head, it asks for that long.
    with dask.config.set({"workbench.connect-timeout": "1 s"}), cluster:
        (head,) = [process for process in running("beheaded") if "workbench.head" in process.cmdline()]
        head.kill()
        until("its job is over", lambda: pbs.jobs() == [])
        until("its ranks have ended", lambda: running("beheaded") == [])
    # PBS kills all processes of a job together, so the next cluster on the node removes their sockets. Without this
    # variable, which jobs of PBS do not have, these are in /tmp.
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    node_dirs.remove(cluster.record.id)
    assert folders_of(cluster.record) == []
