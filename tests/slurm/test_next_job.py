"""A cluster that outlives its job: its next job continues with what was kept."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from support import keeping
from support.last_word import end_of
from support.nodes import remains
from support.processes import DEADLINE, until
from support.shell import ipython
from support.spmd import total

import workbench
from workbench import MPICluster, place, run_on_ranks
from workbench.checkpoint import folder, kept
from workbench.deploy import ended, registry
from workbench.errors import HeadUnreachable, WorkbenchError

X = np.arange(8.0)
STEPS = 20
# What the two ranks keep after these steps.
STATE = [(STEPS, STEPS * X.sum())] * 2


@pytest.fixture
def start(slurm, tmp_path, monkeypatch):
    """Return a function that starts a cluster of two ranks with a job in the queue that continues the cluster."""
    monkeypatch.chdir(tmp_path)

    def started(**options):
        cluster = MPICluster(2, nodes=1, scheduler="slurm", every="1 s", quiet=True, **options)
        until("the next job is in the queue", lambda: len(slurm.jobs()) == 2)
        return cluster

    return started


def saved_state(cluster):
    """Return the state of the training that each rank has in files."""
    version = folder.read(Path(cluster.record.kept_in))
    return kept.read(version, "state") if "state" in version.entries else []


def begun(cluster):
    """Train on placed data until the state is in files; return the data."""
    placed = place(X)
    workbench.keep(X=placed)
    assert keeping.train(placed, STEPS) == (STEPS, STEPS * X.sum())
    until("the state is in files", lambda: saved_state(cluster) == STATE)
    return placed


def first_answer(function, *args):
    """Return the result of a function, which the end of a job may interrupt."""
    found = []

    def answered():
        with suppress(WorkbenchError):
            found.append(function(*args))
        return found

    until("an answer in the next job", answered, within=2 * DEADLINE)
    return found[0]


def continues(cluster, placed):
    """Require that the next job has the state and the data; return its record."""
    assert first_answer(run_on_ranks, keeping.kept, "state") == STATE
    assert keeping.train(placed, STEPS + 5) == (STEPS + 5, (STEPS + 5) * X.sum())
    client = cluster.get_client()
    assert client.submit(sum, [1, 2]).result(DEADLINE) == 3
    record = registry.read(cluster.record.name)
    assert (record.id, record.state) == (cluster.record.id, "ready")
    return record


def test_a_training_that_takes_longer_than_a_job_ends_by_itself_in_the_next_one(slurm, start):
    with start(walltime="1 minute", resubmit=3) as cluster:
        cluster.get_client()
        first, last = cluster.record, 300
        placed = place(X)
        workbench.keep(X=placed)
        found, calls = (0, 0.0), 0
        while found[0] < last:
            found, calls = keeping.train(placed, last), calls + 1
        assert found == (last, last * X.sum())
        assert calls > 1
        now = registry.read(first.name)
        assert (now.id, now.turn > 0, now.job != first.job) == (first.id, True, True)
        assert cluster.get_client().submit(sum, [1, 2]).result(DEADLINE) == 3
        assert run_on_ranks(total, placed) == [X.sum()] * 2
        np.testing.assert_array_equal(workbench.restore().X.compute(), X)
        until("a further job is in the queue", lambda: len(slurm.jobs()) == 2)
        jobs = set(slurm.jobs())
    until("nothing is left", lambda: remains(slurm, now, jobs) == [])
    assert slurm.jobs() == []


def test_a_job_that_is_put_back_into_its_queue_continues_the_cluster(slurm, start):
    with start(walltime="10 minutes", resubmit=2) as cluster:
        cluster.get_client()
        placed = begun(cluster)
        job = cluster.record.job
        slurm.run("scontrol", "requeue", job)
        until("the job waits again", lambda: slurm.state(job) == "PENDING")
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")  # by default two minutes later
        record = continues(cluster, placed)
        assert (record.job, record.turn, record.resubmit) == (job, 0, 2)
        jobs = set(slurm.jobs())
    until("nothing is left", lambda: remains(slurm, record, jobs) == [])
    assert slurm.jobs() == []


def test_a_cluster_whose_head_is_killed_continues_in_its_next_job(slurm, start):
    with start(walltime="10 minutes", resubmit=1) as cluster:
        cluster.get_client()
        placed = begun(cluster)
        first = cluster.record
        os.kill(first.process.pid, signal.SIGKILL)
        record = continues(cluster, placed)
        assert (record.turn, record.resubmit, record.job != first.job) == (1, 0, True)
        jobs = {first.job, record.job}
    until("nothing is left", lambda: remains(slurm, record, jobs) == [])
    assert slurm.jobs() == []


def test_a_job_that_its_user_cancels_ends_the_cluster_with_its_next_job(slurm, start):
    with start(walltime="10 minutes", resubmit=1) as cluster:
        record, jobs = cluster.record, set(slurm.jobs())
        slurm.run("scancel", record.job)
        until("nothing is left", lambda: remains(slurm, record, jobs) == [])
        assert slurm.jobs() == []
        assert end_of(record)[0] == ended.ENDED
        until("the notebook knows", lambda: cluster.status.name == "closed")
        with pytest.raises(HeadUnreachable):
            cluster.get_client()


def test_a_notebook_follows_its_cluster_to_the_next_job(slurm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with ipython() as shell:
        names, printed = shell.user_ns, []
        shell.run_line_magic("mpicluster", "start 2 --nodes 1 --scheduler slurm --walltime 10m --resubmit 1 --every 1s")
        shell.run_cell(
            "import numpy as np, workbench\n"
            "X, y = workbench.place(np.arange(8.0)), workbench.place(np.arange(4.0))\n"
            "alias, epoch = X, 3\n"
            "version = workbench.keep(X=X, epoch=epoch)"
        ).raise_error()
        former, record = names["cluster"], names["cluster"].record
        until("the next job is in the queue", lambda: len(slurm.jobs()) == 2)
        os.kill(record.process.pid, signal.SIGKILL)

        def follows():
            printed.append(capsys.readouterr().out)
            return "continues the cluster; restored" in "".join(printed)

        until("the notebook follows", follows, within=2 * DEADLINE)
        assert re.search(r"job \d+ continues the cluster; restored: X; lost, since not kept: y", "".join(printed))
        assert names["X"] is names["alias"]
        assert (names["cluster"].record.turn, names["cluster"].record.id) == (1, record.id)
        assert names["client"].cluster is names["cluster"] is not former
        shell.run_cell("result = float(X.sum().compute()), workbench.restore().epoch").raise_error()
        assert names["result"] == (X.sum(), 3)
        shell.run_line_magic("mpicluster", "stop")
    assert slurm.jobs() == []
