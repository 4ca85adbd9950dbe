"""What the tests on a scheduler may rely on: that theirs is one."""

from __future__ import annotations

import subprocess
from contextlib import closing

import pytest
from support.daemons import Trouble, running
from support.processes import DEADLINE, until
from support.slurm import NAMES, Slurm

WHERE = "srun sh -c 'echo $SLURMD_NODENAME'"


def ends(slurm, job, as_what="COMPLETED"):
    until(f"job {job} to be {as_what}", lambda: slurm.state(job) == as_what)


@pytest.fixture
def another(installed):
    with closing(Slurm(patience=2, min_job_age=2)) as slurm:
        yield slurm


def test_a_job_runs_on_four_nodes(slurm, tmp_path):
    ends(slurm, slurm.submit(WHERE, "--nodes=4", f"--output={tmp_path / 'out'}"))
    assert sorted((tmp_path / "out").read_text().split()) == sorted(NAMES)


def test_what_this_process_starts_reaches_it(slurm, tmp_path):
    (tmp_path / "script").write_text(f"#!/bin/sh\n{WHERE}\n")
    command = ["qsub", "-l", "nodes=2:ppn=2", "-o", tmp_path / "out", tmp_path / "script"]
    job = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=DEADLINE
    ).stdout.strip()
    ends(slurm, job)
    assert len((tmp_path / "out").read_text().split()) == 4


def test_a_partition_that_is_down_lets_jobs_wait(slurm):
    job = slurm.submit("true", "--partition=down")
    assert slurm.state(job) == "PENDING"
    assert job in slurm.jobs()
    slurm.run("scancel", job)
    until("the job to be gone", lambda: not slurm.jobs())


def test_gpus_are_counted(slurm):
    ends(slurm, slurm.submit("true", "--gres=gpu:2"))
    with pytest.raises(Trouble, match="Requested node configuration is not available"):
        slurm.submit("true", "--gres=gpu:3")


@pytest.mark.long
def test_what_a_killed_node_ran_ends_and_the_node_comes_back(another):
    job = another.submit("sleep 4711 & setsid sleep 4711 & wait", "--nodelist=n2", "--no-requeue")
    until("it to run", lambda: len(running("4711")) == 2)
    another.kill_node("n2")
    assert not running("4711")
    ends(another, job, "NODE_FAIL")
    assert another.states()["n2"] == "down*"
    another.start_node("n2")
    another.wait_up("n2")


def test_a_controller_that_is_away_forgets_nothing(slurm):
    job = slurm.submit("true", "--partition=down")
    slurm.stop_controller()
    with pytest.raises(Trouble, match="DOWN"):
        slurm.run("scontrol", "ping")
    slurm.start_controller()
    slurm.wait_up()
    assert slurm.jobs() == [job]
    slurm.freeze_controller()
    with pytest.raises(subprocess.TimeoutExpired):
        slurm.run("scontrol", "ping", within=0.5)
    slurm.start_controller()
    assert slurm.jobs() == [job]
    slurm.run("scancel", job)
    until("the job to be gone", lambda: not slurm.jobs())


@pytest.mark.long
def test_a_job_that_has_ended_is_forgotten_after_the_age_that_was_asked_for(another):
    job = another.submit("true")
    ends(another, job)

    until("it to be forgotten", lambda: another.state(job) is None)


def test_two_at_a_time_know_nothing_of_each_other_and_a_closed_one_leaves_nothing(slurm):
    another = Slurm()
    with closing(another):
        job = another.submit("sleep 4712", "--nodes=4")
        until("it to run", lambda: running("4712"))
        assert another.jobs() == [job]
        assert not slurm.jobs()
    assert not another.folder.exists()
    assert not running("4712")
