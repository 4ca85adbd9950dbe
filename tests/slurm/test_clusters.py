"""Clusters through a live Slurm, whose four nodes are this host under four names."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import dask.array as da
import nbformat
import numpy as np
import psutil
import pytest
from distributed import Client
from nbclient import NotebookClient
from sklearn.linear_model import LogisticRegression
from support.batch import no_room
from support.daemons import running
from support.nodes import numbers, places, remains, two_on_each
from support.processes import DEADLINE, gone, until
from support.slurm import NAMES
from support.spmd import place_of, total
from support.training import place, weights_by_ranks

from workbench import MPICluster, cli, run_on_ranks
from workbench import place as spread_out
from workbench.deploy import registry

pytestmark = pytest.mark.in_order

CLI = [sys.executable, "-m", "workbench"]


@pytest.fixture(scope="module")
def ending(slurm):
    """A cluster whose job has the shortest walltime that Slurm knows."""
    with MPICluster(1, nodes=1, scheduler="slurm", walltime="1 minute", quiet=True) as cluster:
        yield cluster


def end(slurm, job):
    """Return when Slurm ends a job, or has seen it end, in seconds since the epoch."""
    text = slurm.run("squeue", "--noheader", "--states=all", "--format=%e", f"--jobs={job}").strip()
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def test_a_job_says_when_it_ends(slurm, ending):
    record = ending.refresh()
    until("the end is known", lambda: ending.refresh().ends is not None)
    assert ending.record.ends == end(slurm, record.job)
    until("it is said", lambda: " left, the job ends at " in ending.logs())


def test_a_cluster_lives_on_four_nodes_from_start_to_stop(slurm, capsys):
    cluster = MPICluster(4, nodes=4, scheduler="slurm", quiet=True)
    with cluster, Client(cluster) as client:
        assert cluster.record.state == "ready"
        assert [rank["name"] for rank in cluster.ranks] == list(range(4))
        assert places(cluster, client) == [(rank, rank, 4, NAMES[rank]) for rank in range(4)]

        generator = np.random.default_rng(4)
        X = generator.normal(size=(800, 3))
        y = np.where(X @ [1.0, -2.0, 0.5] + generator.normal(size=800) > 0, 1.0, -1.0)
        weights = weights_by_ranks(client, *spread_out(da.from_array(X, chunks=(100, 3)), da.from_array(y, chunks=100)))
        alone = LogisticRegression(fit_intercept=False, tol=1e-8).fit(X, y)
        np.testing.assert_allclose(weights, alone.coef_[0], atol=1e-4)

        batch = slurm.run("scontrol", "write", "batch_script", *numbers(cluster.record), "-")
        assert batch.rstrip("\n") == cluster.script().rstrip("\n")

        # Dask's own client would try to come back.
        client.close()
        assert cli.main(["stop", cluster.name]) == 0
        assert cluster.name in capsys.readouterr().out
        assert remains(slurm, cluster.record, {cluster.record.job}) == []


def test_results_move_to_the_ranks_of_another_job_and_back(slurm):
    with MPICluster(4, nodes=2, scheduler="slurm", quiet=True) as cluster, Client(cluster) as client:
        data = np.arange(4000.0).reshape(1000, 4)
        blocks = spread_out(data)
        lazy = blocks.sum(axis=0)
        future = client.submit(place, workers=[3], pure=False)
        placed_on = future.result(DEADLINE)

        def assert_valid():
            np.testing.assert_array_equal(blocks.compute(), data)
            np.testing.assert_array_equal(lazy.compute(), data.sum(axis=0))
            assert future.result(DEADLINE) == client.submit(tuple, future).result(DEADLINE) == placed_on

        assert_valid()
        first, former = cluster.record.job, [psutil.Process(rank["pid"]) for rank in cluster.ranks]
        assert (cluster.record.world.job, cluster.record.next) == (None, None)
        cluster.scale(6)
        (second,) = numbers(cluster.record) - {first}
        assert set(slurm.jobs()) >= {first, second}
        assert (cluster.record.world.job, cluster.record.next) == (second, None)
        assert [rank["name"] for rank in cluster.ranks] == list(range(6))
        until("the former ranks to have ended", lambda: all(map(gone, former)))
        assert run_on_ranks(place_of) == [(rank, 6, rank) for rank in range(6)]
        assert run_on_ranks(total, spread_out(blocks)) == [data.sum()] * 6
        assert_valid()

        new = [psutil.Process(rank["pid"]) for rank in cluster.ranks]
        cluster.scale(4)
        assert (cluster.record.world.job, cluster.record.next) == (None, None)
        until("the other job to have ended", lambda: second not in slurm.jobs())
        until("it to be known", lambda: numbers(cluster.refresh()) == {first})
        until("the former ranks to have ended", lambda: all(map(gone, new)))
        assert places(cluster, client) == two_on_each(4)
        assert run_on_ranks(place_of) == [(rank, 4, rank) for rank in range(4)]
        assert run_on_ranks(total, spread_out(blocks)) == [data.sum()] * 4
        assert_valid()
    assert remains(slurm, cluster.record, {first, second}) == []


def test_a_world_whose_job_is_cancelled_starts_again_in_a_new_job_and_moves_into_another_one(slurm):
    with MPICluster(2, nodes=1, scheduler="slurm", quiet=True) as cluster, Client(cluster) as client:
        cluster.scale(3)
        first, lost = cluster.record.job, cluster.record.world.job
        slurm.run("scancel", lost)
        until("it to start again", lambda: cluster.refresh().world.starts == 2)
        until("it to be ready", lambda: cluster.refresh().state == "ready")
        # A job that has ended is not shown any more.
        assert numbers(cluster.record) == {first, cluster.record.world.job}
        assert cluster.record.world.job != lost
        assert [rank["name"] for rank in cluster.ranks] == [0, 1, 2]
        kept = client.submit(place, workers=[2], pure=False)
        assert kept.result(DEADLINE)[:3] == (2, 2, 3)
        again = cluster.record.world.job
        cluster.scale(4)
        until("the former job to have ended", lambda: again not in slurm.jobs())
        jobs = numbers(cluster.refresh())
        assert jobs == {first, cluster.record.world.job}
        assert run_on_ranks(place_of) == [(rank, 4, rank) for rank in range(4)]
        cluster.scale(2)
        assert kept.result(DEADLINE)[:3] == (2, 2, 3)
    until("all of it to be gone", lambda: remains(slurm, cluster.record, jobs) == [])


@pytest.mark.parametrize("end", ["scale", "Ctrl-C", "scancel"])
def test_while_more_ranks_wait_in_the_queue_the_present_ones_work_until_they_are_withdrawn(slurm, end):
    with MPICluster(2, nodes=1, scheduler="slurm", name="waiting", quiet=True) as cluster, Client(cluster) as client:
        first, ranks = cluster.record.job, cluster.ranks
        future = client.submit(place, workers=[1], pure=False)
        with no_room(slurm):
            command = [*CLI, "scale", "3", cluster.name]
            scaling = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            until(
                "the other job to wait", lambda: (following := cluster.refresh().next) and following.state == "queued"
            )
            (second,) = numbers(cluster.record) - {first}
            assert slurm.state(second) == "PENDING"
            following, world = cluster.record.next, cluster.record.world
            assert (following.ranks, following.up, following.job) == (3, 0, second)
            assert (world.ranks, world.up, world.job, cluster.record.state) == (2, 2, None, "ready")
            assert run_on_ranks(place_of) == [(0, 2, 0), (1, 2, 1)]
            assert future.result(DEADLINE)[:3] == (1, 1, 2)

            if end == "scale":
                cluster.scale(2)
            elif end == "Ctrl-C":
                scaling.send_signal(signal.SIGINT)
            else:
                slurm.run("scancel", second)
            _, errors = scaling.communicate(timeout=DEADLINE)
            assert scaling.returncode == (130 if end == "Ctrl-C" else 1)
            assert {
                "scale": "scale(3) was withdrawn, because scale(2) was requested",
                "Ctrl-C": "interrupted",
                "scancel": f"its job {second} has ended: CANCELLED",
            }[end] in errors
            until("the other job to have ended", lambda: second not in slurm.jobs())
            until("it to be known", lambda: numbers(cluster.refresh()) == {first})
        assert cluster.record.next is None
        assert cluster.ranks == ranks
        assert run_on_ranks(place_of) == [(0, 2, 0), (1, 2, 1)]
        assert client.submit(tuple, future).result(DEADLINE)[:3] == (1, 1, 2)
    assert remains(slurm, cluster.record, {first, second}) == []


def visible_gpus():
    """Return the GPUs of this rank, and its node."""
    return os.environ["SLURMD_NODENAME"], os.environ["CUDA_VISIBLE_DEVICES"], os.environ["ROCR_VISIBLE_DEVICES"]


@pytest.mark.mpi_flavor
def test_each_rank_has_gpus_of_its_own_on_every_node(slurm):
    with (
        MPICluster(4, nodes=2, ranks_per_node=2, gpus_per_rank=1, scheduler="slurm", quiet=True) as cluster,
        Client(cluster) as client,
    ):
        assert "#SBATCH --gpus-per-task=1\n" in cluster.script()
        job = slurm.run("scontrol", "show", "job", *numbers(cluster.record))
        assert "TresPerTask=gres:gpu:1" in job
        assert sorted(client.run(visible_gpus).values()) == [(node, gpu, gpu) for node in NAMES[:2] for gpu in "01"]


def test_a_cluster_of_pbs_jobs_starts_grows_and_ends(slurm):
    with MPICluster(4, nodes=2, scheduler="pbs", quiet=True) as cluster, Client(cluster) as client:
        assert places(cluster, client) == two_on_each(4)
        cluster.scale(6)
        assert [rank["name"] for rank in cluster.ranks] == list(range(6))
        jobs = numbers(cluster.record)
        assert len(jobs) == 2
    until("all of it to be gone", lambda: remains(slurm, cluster.record, jobs) == [])


@pytest.fixture
def script_in_a_job(slurm):
    """Run a line of shell on this host in an allocation of two nodes, until its standard input is closed."""
    with ExitStack() as ends:

        def run(line):
            command = ["salloc", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "sh", "-c", line]
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            process = subprocess.Popen(command, text=True, **pipes)
            ends.callback(process.communicate, timeout=DEADLINE)
            return process

        yield run


def test_inside_a_job_a_cluster_takes_its_nodes(slurm, script_in_a_job):
    before = set(slurm.jobs())
    holder = script_in_a_job(f"{shlex.join(CLI)} start --scheduler here --name held; cat")
    assert holder.stdout.readline().startswith("cluster 'held' is ready: 4 of 4 ranks")
    (job,) = set(slurm.jobs()) - before
    with MPICluster.attach("held") as cluster, Client(cluster) as client:
        assert places(cluster, client) == two_on_each(4)
        assert set(slurm.jobs()) - before == {job}
        cluster.close(shutdown=True)
    assert remains(slurm, cluster.record, set()) == []
    assert set(slurm.jobs()) - before == {job}


@pytest.fixture
def partition_down(slurm):
    """A partition that takes jobs, and starts them once it is let."""
    yield lambda: slurm.run("scontrol", "update", "PartitionName=down", "State=UP")
    slurm.run("scontrol", "update", "PartitionName=down", "State=DOWN")


@pytest.mark.mpi_flavor
def test_a_start_waits_in_the_queue_and_a_lost_world_is_started_again_in_the_same_job(slurm, partition_down, tmp_path):
    told = tmp_path / "told"
    with told.open("w") as errors:
        command = [*CLI, "start", "4", "--nodes", "2", "--scheduler", "slurm", "--queue", "down", "--name", "queued"]
        start = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        until("it says why it waits", lambda: "QUEUED: " in told.read_text())
        assert registry.read("queued").state == "submitted"
        assert cli.main(["list"]) == 0
        partition_down()
        assert start.wait(DEADLINE) == 0
    lines = told.read_text()
    assert "QUEUED: the partition is down" in lines
    assert "RUNNING on n[1-2]" in lines
    with MPICluster.attach("queued") as cluster, Client(cluster) as client:
        job = cluster.record.job
        assert places(cluster, client) == two_on_each(4)
        os.kill(cluster.ranks[3]["pid"], signal.SIGKILL)
        until("the world is lost", lambda: cluster.refresh().world.starts == 2)
        until("the world is there again", lambda: cluster.refresh().state == "ready")
        assert places(cluster, client) == two_on_each(4)
        assert numbers(cluster.record) == {job}
        cluster.close(shutdown=True)
    assert remains(slurm, cluster.record, {job}) == []


def test_ctrl_c_in_the_queue_leaves_nothing_and_auto_has_told_of_the_job_around(slurm, script_in_a_job):
    before = set(slurm.jobs())
    options = "2 --nodes 2 --queue down --scheduler auto --name given-up"
    starter = script_in_a_job(f"exec {shlex.join(CLI)} start {options}")
    told = []
    while not told or "QUEUED: " not in told[-1]:
        told.append(starter.stderr.readline())
    assert "To start the cluster in that job, use --scheduler here" in "".join(told)
    record = registry.read("given-up")
    jobs = numbers(record)
    assert jobs < set(slurm.jobs()) - before
    (process,) = [process for process in running("given-up") if process.name().startswith("python")]
    process.send_signal(signal.SIGINT)
    starter.communicate(timeout=DEADLINE)
    assert starter.returncode == 130
    assert remains(slurm, record, jobs) == []


def test_a_dry_run_shows_the_script_and_what_slurm_says_and_starts_nothing(slurm, capsys):
    before = slurm.jobs()
    assert cli.main(["start", "8", "--nodes", "4", "--scheduler", "slurm", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "#SBATCH --nodes=4\n#SBATCH --ntasks=8\n" in shown
    assert "# slurm reports: would start at" in shown
    assert slurm.jobs() == before


CELLS = (
    "%load_ext workbench\nfrom support.training import place",
    "%mpicluster start 4 --nodes 2 --scheduler slurm --name noted",
    "sorted(client.run(place).values())",
    "%mpicluster stop",
)


def test_a_notebook_starts_and_stops_one(slurm):
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=round(DEADLINE), kernel_name="python3").execute(env=dict(os.environ))
    _, started, told, stopped = [str(cell.outputs) for cell in cells]
    assert re.search(r"job \d+ RUNNING on n\[1-2\] · ready · 4 of 4 ranks", started)
    assert str(two_on_each(4)) in told.replace("\\n", "")
    assert "cluster 'noted' has ended" in stopped
    assert not running("noted")


def test_it_ends_in_order_before_the_scheduler_ends_it(slurm, ending):
    record = ending.record
    until("its job has ended", lambda: record.job not in slurm.jobs(), within=2 * DEADLINE)
    assert slurm.state(record.job) == "COMPLETED"
    assert end(slurm, record.job) < record.ends
    assert "ending the cluster: its walltime is up" in ending.logs()
    assert remains(slurm, record, {record.job}) == []
