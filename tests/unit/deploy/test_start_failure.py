"""What the starter of a cluster reads of a start that has failed: fields, never words."""

from __future__ import annotations

import errno
import os
import time
from types import SimpleNamespace

import pytest
from support.patience import DEADLINE
from support.processes import until
from support.raised import raises

from workbench.deploy import ended, logs, registry
from workbench.deploy import job as job_module
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record
from workbench.deploy.start import ClusterStart
from workbench.errors import StartError, StartTimeout
from workbench.hints import Option
from workbench.host import files
from workbench.launch import launchers
from workbench.launch.interface import JobState, JobStatus

UNEXPECTED = r"its head ended unexpectedly\n.*head\.log:\n    the reason"
LATE = StartTimeout("any words.", hint=("Allow more with ", Option("timeout"), "."))


@pytest.fixture
def failed(monkeypatch, tmp_path):
    """Return what makes the job of a cluster whose head has failed."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))

    def make(**how):
        record = Record(name="a", ranks=2, state="failed", **how)
        registry.create(record)
        (ClusterFolder.of(record).logs / "head.log").write_text("the reason\n")
        return ClusterStart(record)

    return make


def test_the_error_of_a_head_comes_with_its_class_and_its_hint(failed):
    job = failed(message=str(LATE), failure=LATE.fields())

    with pytest.raises(StartTimeout) as raised:
        job.poll()

    assert (raised.value.hint, raised.value.log) == (LATE.hint, "")


def test_the_log_of_a_world_tells_more_than_its_head(failed):
    job = failed(message="words")
    (ClusterFolder.of(job.record).logs / "world-0.log").write_text(f"{logs.FAILURE}rank 1: no disk\nmore\n")

    with pytest.raises(StartError) as raised:
        job.poll()

    assert (type(raised.value), raised.value.message) == (StartError, "cluster 'a' did not start: words")
    assert raised.value.log.splitlines()[1:] == ["    rank 1: no disk"]


def test_a_file_server_that_fails_does_not_end_the_start_of_a_job_that_may_have_waited_for_days(failed, monkeypatch):
    job = failed(scheduler="slurm")
    before = job.record = job.record.replace(state="submitted", deadline=time.time() + DEADLINE)

    def fail(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(files, "read", fail)
    assert job.poll() == before


def test_a_world_that_starts_is_called_so(failed):
    job = failed()
    job.record = job.record.replace(state="starting")

    assert job.description() == "world starting"


@pytest.mark.parametrize(
    ("noted", "words"),
    [
        ({}, UNEXPECTED),
        ({"state": ended.STOPPED, "reason": "the user has stopped it"}, r"the user has stopped it\."),
        ({"state": ended.FAILED, "reason": "a disk is full"}, UNEXPECTED),
    ],
)
def test_a_cluster_that_was_stopped_while_it_started_has_not_ended_unexpectedly(failed, noted, words):
    job = failed()
    job.record = job.record.replace(state="starting")
    ClusterFolder.of(job.record).write(job.record)
    job._id = "0:0"  # of a process that is not there
    if noted:
        ClusterFolder.of(job.record).note(job.record, **noted)

    with pytest.raises(StartError, match=rf"^cluster 'a' did not start: {words}$"):
        job.poll()


def test_of_a_job_its_scheduler_tells_how_it_has_ended(failed, monkeypatch):
    job = failed(scheduler="slurm")
    job.record = job.record.replace(state="submitted")
    ClusterFolder.of(job.record).write(job.record)
    (ClusterFolder.of(job.record).path / "job.job").write_text("17\n")
    ClusterFolder.of(job.record).note(job.record, ended.STOPPED, "somebody has tried to stop it")
    monkeypatch.setattr(job, "verified", lambda *_: JobStatus(JobState.CANCELLED))

    with pytest.raises(StartError, match=r"^cluster 'a' did not start: its job 17 has ended: CANCELLED"):
        job.poll()


@pytest.fixture
def new_job(failed, monkeypatch):
    """Return the starter of a queued cluster, and its receipt; the scheduler says twice that it knows no such job."""
    starter = failed(scheduler="slurm")
    starter.record = starter.record.replace(state="submitted", deadline=time.time() + DEADLINE)
    ClusterFolder.of(starter.record).write(starter.record)
    receipt = ClusterFolder.of(starter.record).path / "job.job"
    receipt.write_text("17")
    answers = [JobStatus(JobState.UNKNOWN, unknown_to_scheduler=True)] * 2 + [JobStatus(JobState.QUEUED)]
    scheduler = SimpleNamespace(
        batch=True,
        receipt=str,
        system=str,
        statuses=lambda ids: dict.fromkeys(ids, answers[0] if len(answers) == 1 else answers.pop(0)),
    )
    starter.launcher = scheduler
    monkeypatch.setattr(launchers, "launcher", lambda _: scheduler)
    own = launchers.Poller()
    monkeypatch.setattr(job_module, "poller", own)
    yield starter, receipt
    own.forget("slurm", "17")


def test_a_job_that_its_scheduler_does_not_list_yet_has_not_ended(new_job):
    starter, _ = new_job

    def is_queued():
        starter.poll()
        return starter.status.state is JobState.QUEUED

    until("the scheduler lists the job", is_queued)


def test_a_job_that_its_scheduler_does_not_list_after_some_seconds_is_gone(new_job):
    starter, receipt = new_job
    os.utime(receipt, (time.time() - 60,) * 2)

    def look():
        starter.poll()

    with raises(StartError, kind="StartError"):
        until("the end", look)
