"""Whatever becomes of who has started it: a job of ours is always known, and can be ended."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
from support.batch import Doing, command, no_room, nothing_is_left, one_job, processes_of
from support.processes import DEADLINE, kill, until
from support.raised import raises
from support.slurm import Slurm

from workbench import MPICluster
from workbench.commands import actions
from workbench.deploy import registry
from workbench.deploy.folder import ClusterFolder, clusters_folder
from workbench.deploy.job import ClusterJob
from workbench.errors import StartError
from workbench.launch.launchers import poller

# The whole of it takes two minutes: `make test-long`.
CYCLES = int(os.environ.get("WORKBENCH_CYCLES", "2"))


@pytest.fixture(scope="module")
def slurm(installed):
    with closing(Slurm(min_job_age=2)) as slurm, slurm.in_environment():
        yield slurm


@pytest.fixture(autouse=True)
def _own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))


def starting(name, *options):
    """Return the process of a start, which has a separate process group."""
    words = [sys.executable, "-m", "workbench", "start", "2", "--name", name, "--scheduler", "slurm", "--nodes", "1"]
    return subprocess.Popen(
        [*words, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def killed(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(DEADLINE)


def listed():
    """Return the jobs of all clusters that `list` shows."""
    return {job for cluster in actions.listing().clusters for job in cluster.jobs}


def submitting(name):
    """Return whether an sbatch of a cluster runs."""
    script = str(clusters_folder() / name / "job.sh")
    return bool(processes_of(script))


def stop_all():
    stopped = actions.stop(actions.targets(None, everything=True))
    assert stopped.failed == []
    return stopped.stopped


def queued_without_a_starter(slurm, name):
    """Return the job of a cluster that waits, and whose starter was killed."""
    process = starting(name, "--extra", "--hold")
    job = one_job(slurm, "PENDING")
    # Another scheduler may have had a job of this number, a minute ago.
    poller.forget("slurm", job)
    killed(process)
    return job


def test_a_start_that_is_killed_at_any_moment_leaves_no_job_that_is_not_listed(slurm):
    moments = random.Random(4)
    begin = time.monotonic()
    with starting("whole") as process:
        assert process.wait(DEADLINE) == 0
    whole = time.monotonic() - begin
    assert stop_all() == ["whole"]
    for cycle in range(CYCLES):
        name = f"cycle-{cycle}"
        process = starting(name)
        try:
            # One after the other through the whole of a start, from before there is a job until after it is ready.
            process.wait(1.1 * whole * (cycle + moments.random()) / CYCLES)
        except subprocess.TimeoutExpired:
            killed(process)
        until("its sbatch to end", lambda name=name: not submitting(name))
        jobs = set(slurm.jobs())
        assert jobs <= listed()
        stop_all()
        nothing_is_left(slurm, name)


def test_a_queued_job_without_a_starter_is_listed_attached_to_and_comes_up(slurm):
    job = queued_without_a_starter(slurm, "queued")
    [status] = actions.listing().clusters
    assert (status.name, status.state, status.jobs) == ("queued", "held", [job])
    assert status.message == "HELD by the user: scontrol release ends the hold"

    attached = Doing(lambda: MPICluster.attach("queued"))
    slurm.run("scontrol", "release", job)
    with attached.result() as cluster:
        assert cluster.record.job == job
    assert stop_all() == ["queued"]
    nothing_is_left(slurm, "queued")


def test_who_attaches_to_a_queued_job_learns_that_it_is_cancelled(slurm):
    job = queued_without_a_starter(slurm, "queued")
    attached = Doing(lambda: MPICluster.attach("queued"))
    until("it to wait", lambda: ("slurm", job) in poller._jobs)
    assert stop_all() == ["queued"]
    with raises(StartError, kind="StartError"):
        attached.result()
    nothing_is_left(slurm, "queued")


def test_the_record_of_a_job_that_the_scheduler_has_forgotten_is_cleaned(slurm):
    job = queued_without_a_starter(slurm, "forgotten")
    slurm.run("scancel", job)
    until("it to be forgotten", lambda: slurm.state(job) is None)
    os.utime(
        ClusterFolder.of(registry.read("forgotten")).path / "job.job", (0, 0)
    )  # else the job may be too new to be listed
    assert actions.listing().cleaned == ["forgotten"]
    nothing_is_left(slurm, "forgotten")


@pytest.mark.parametrize("end", ["scancel", "SIGKILL"])
def test_a_world_with_a_job_of_its_own_does_not_outlive_the_head(slurm, end):
    cluster = MPICluster(2, name="moving", scheduler="slurm", nodes=1, quiet=True)
    cluster.scale(4)
    jobs = set(slurm.jobs())
    assert len(jobs) == 2
    assert listed() == jobs
    if end == "scancel":
        slurm.run("scancel", cluster.record.job)
    else:
        kill(cluster.record.process.pid)
    until("its jobs to end", lambda: not slurm.jobs())
    cluster.close()
    actions.listing()
    nothing_is_left(slurm, "moving")


def test_a_world_that_still_waits_in_its_queue_does_not_outlive_the_head(slurm):
    cluster = MPICluster(2, name="moving", scheduler="slurm", nodes=1, quiet=True)
    with no_room(slurm):
        scaling = Doing(lambda: cluster.scale(4))
        until("the second job", lambda: len(slurm.jobs()) == 2)
        kill(cluster.record.process.pid)
        until("the first job to end", lambda: len(slurm.jobs()) == 1)
        assert actions.listing().cleaned == ["moving"]
        nothing_is_left(slurm, "moving")
    with pytest.raises(OSError):  # noqa: PT011  (the connection is lost, in many words)
        scaling.result()
    cluster.close()


@pytest.mark.parametrize("alive", [True, False], ids=["starter lives", "starter was killed"])
def test_a_stop_while_the_job_is_being_submitted_leaves_nothing(slurm, tmp_path, monkeypatch, alive):
    asked, ask = threading.Event(), ClusterJob.is_being_submitted
    monkeypatch.setattr(ClusterJob, "is_being_submitted", lambda job: asked.set() or ask(job))
    go = tmp_path / "go"
    slow = f'touch {tmp_path}/came; while test ! -e {go}; do sleep 0.05; done; exec $REAL "$@"'
    with command(tmp_path, "sbatch", slow):
        process = starting("slow")
        until("sbatch to be called", (tmp_path / "came").exists)
        if not alive:
            killed(process)
        stopping = Doing(stop_all)
        assert asked.wait(DEADLINE)
        go.touch()
        assert stopping.result() == ["slow"]
    process.wait(DEADLINE)
    nothing_is_left(slurm, "slow")
