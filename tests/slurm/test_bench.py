"""What handing a job to Slurm costs, on a live one."""

from __future__ import annotations

import argparse
import os

import pytest

from workbench.bench import submit
from workbench.deploy import registry
from workbench.deploy.folder import logs_folder
from workbench.errors import LaunchError


@pytest.fixture(autouse=True)
def _own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))


def _run(*words):
    parser = argparse.ArgumentParser()
    submit.add_options(parser)
    return submit.run(parser.parse_args(words))


def test_submit_is_measured_over_a_bare_sbatch_and_leaves_nothing(slurm):
    before = list(logs_folder().glob("*"))

    report = _run("--pairs=2")

    arms = [row["arm"] for row in report.rows]
    assert [arms.count(arm) for arm in (*submit.ARMS, submit.POLL)] == [2, 2, 2, 2]
    assert report.summary["cpu"] > report.summary["warm_cpu"] > 0
    assert slurm.jobs() == []
    assert registry.names() == []
    assert list(logs_folder().glob("*")) == before


def test_a_job_that_slurm_does_not_take_ends_the_bench_with_a_reason_and_leaves_nothing(slurm):
    with pytest.raises(LaunchError, match="nowhere"):
        _run("--pairs=1", "--queue=nowhere")

    assert slurm.jobs() == []
    assert registry.names() == []


def test_without_a_slurm_that_answers_the_bench_says_where_to_run_it(slurm, monkeypatch):
    # Slurm looks for a file that is missing for a minute, and ends at an empty one.
    monkeypatch.setenv("SLURM_CONF", os.devnull)

    with pytest.raises(LaunchError, match="login node"):
        _run("--pairs=1")
