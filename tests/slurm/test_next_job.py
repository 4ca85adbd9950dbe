"""A cluster that outlives its job: its next job continues with what was kept."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from distributed import Client
from support.processes import until

import workbench
from workbench import MPICluster, place, spmd
from workbench.deploy import registry
from workbench.errors import HeadUnreachable, RankLost, WorkbenchError

X = np.arange(8.0)


@spmd(result="root")
def train(comm, X, last):
    """Add all numbers once in each step, from the last kept step on, as far as the job lasts."""
    step, total = workbench.kept(comm, "state", (0, 0.0))
    while step < last and not workbench.should_stop(comm):
        time.sleep(0.1)
        step, total = step + 1, total + comm.allreduce(float(X.sum()))
        workbench.keep(comm, state=(step, total))
    return step, total


@pytest.fixture
def cluster(slurm, tmp_path, monkeypatch):
    """A cluster of two ranks that three jobs may hold, one after another; the second job is in the queue."""
    monkeypatch.chdir(tmp_path)
    options = {"nodes": 1, "scheduler": "slurm", "walltime": "2 minutes", "every": "1s", "quiet": True}
    with MPICluster(2, resubmit=2, **options) as cluster:
        until("the next job is in the queue", lambda: len(slurm.jobs()) == 2)
        yield cluster


def trained(placed, last):
    """Train to the end; return the step and the sum."""
    while True:
        try:
            step, total = train(placed, last)
        except (HeadUnreachable, RankLost, WorkbenchError):
            time.sleep(0.2)  # the job has ended during the call
            continue
        if step >= last:
            return step, total


def ends_its_job(slurm, cluster, how):
    """End the job of a cluster while a call trains; the training must end in the next job as if nothing had happened."""
    with Client(cluster):
        placed = place(X)
        workbench.keep(X=placed)
        first = cluster.record
        until("some steps are in files", lambda: steps(placed) > 20)
        how(first)
        step, total = trained(placed, 150)
        assert (step, total) == (150, 150 * X.sum())
        now = registry.read(first.name)
        assert now.id == first.id
        return first, now


def steps(placed):
    """Train a little; return the steps that are in files."""
    train(placed, 1 + train(placed, 0)[0])
    try:
        return workbench.restore().state[0][0]
    except (WorkbenchError, AttributeError):
        return 0


def test_a_requeued_job_continues(slurm, cluster):
    first, now = ends_its_job(slurm, cluster, lambda record: slurm.run("scontrol", "requeue", record.job))
    print(now)


def test_a_killed_head(slurm, cluster):
    first, now = ends_its_job(slurm, cluster, lambda record: os.kill(record.process.pid, signal.SIGKILL))
    print(now)
    assert now.turn == 1
