"""The registry as browsers see it: the state of jobs among it, and no file read twice."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

import pytest
from server.unreadable import unreadable
from support.processes import DEADLINE, until
from support.raised import raises

from workbench.deploy import ended, registry
from workbench.deploy.folder import RECORD, ClusterFolder, clusters_folder
from workbench.deploy.record import World
from workbench.errors import RecordError, StartError
from workbench.hints import Command, Option
from workbench.host.processes import ProcessId
from workbench.lab.server import survey as survey_module
from workbench.lab.server.survey import RegistryScanner
from workbench.launch.interface import UNKNOWN, JobState, JobStatus, Resources

ELSEWHERE = dataclasses.replace(ProcessId.here(), host="n17", machine="another")

pytestmark = pytest.mark.usefixtures("own_registry")


class Asked:
    """Stands for the poller of schedulers."""

    def __init__(self):
        self.status = UNKNOWN
        self.questions = []

    def __call__(self, scheduler, job):
        self.questions.append((scheduler, job))
        return self.status


@pytest.fixture
def asked():
    return Asked()


def test_a_job_that_waits_tells_why_and_until_when(cluster, asked):
    record = cluster("waits", scheduler="slurm", state="submitted", address=None, resources=Resources(nodes=2))
    survey = RegistryScanner(asked)
    before = survey.scan().clusters["waits"]
    (ClusterFolder.of(record).path / "job.job").write_text("4711\n")

    asked.status = JobStatus(JobState.QUEUED, "waiting for resources", start=2e9, label=f"workbench:{record.id}:job")
    seen = survey.scan()

    assert (before["state"], before["jobs"], before["reason"]) == ("submitted", [], None)
    its = seen.clusters["waits"]
    assert asked.questions == [("slurm", "4711")]
    assert (its["state"], its["reason"], its["expected"]) == ("queued", "waiting for resources", 2e9)
    assert its["message"].startswith("QUEUED: waiting for resources, start expected")
    assert (its["jobs"], its["nodes"]) == (["4711"], 2)
    assert seen.headed == frozenset()
    assert seen.starters == {record.process.pid: "waits"}


def test_a_job_of_another_system_says_nothing_of_a_cluster(cluster, asked, monkeypatch):
    record = cluster("training", scheduler="slurm", state="ready", process=ELSEWHERE, job="4711")
    asked.status = JobStatus(JobState.DONE, label="workbench:another:job")

    cleaned = threading.Event()
    monkeypatch.setattr(survey_module, "_READ", -1.0)
    monkeypatch.setattr(survey_module, "_clean", cleaned.set)
    survey = RegistryScanner(asked)

    assert survey.scan().clusters["training"]["state"] == "ready"
    assert not cleaned.is_set()
    asked.status = JobStatus(JobState.TIMEOUT, label=f"workbench:{record.id}:job")
    its = survey.scan().clusters["training"]
    assert (its["state"], its["up"], its["message"]) == ("failed", 0, "its job 4711 has ended: TIMEOUT")
    survey.scan()
    until("the record is removed", cleaned.is_set)


@pytest.mark.parametrize("process", [ELSEWHERE, ProcessId.here()], ids=["elsewhere", "here"])
def test_a_cluster_whose_job_is_suspended_is_not_shown_as_ready(cluster, asked, process):
    record = cluster("training", scheduler="slurm", state="ready", process=process, job="4711")
    asked.status = JobStatus(JobState.SUSPENDED, "suspended by the scheduler", label=f"workbench:{record.id}:job")
    its = RegistryScanner(asked).scan().clusters["training"]
    assert (its["state"], its["message"]) == ("suspended", "SUSPENDED by the scheduler")


def test_a_head_that_was_killed_is_reported_until_its_record_is_removed(cluster, asked):
    gone = dataclasses.replace(ProcessId.here(), started=0.0)
    cluster("killed", process=gone, world=World(0, 2, "ready", 2))
    cluster("closing", process=gone, state="closing", message="the user has stopped it")

    seen = RegistryScanner(asked).scan().clusters

    its = seen["killed"]
    assert (its["state"], its["up"]) == ("failed", 0)
    assert its["message"] == f"its head, process {gone.pid} on {gone.host}, was killed or crashed"
    assert (seen["closing"]["state"], seen["closing"]["message"]) == ("closing", "the user has stopped it")


def test_the_hint_of_a_start_that_has_failed_is_that_of_the_panel(cluster, asked):
    survey = RegistryScanner(asked)
    error = StartError("there is no MPI.", hint=("Pass ", Option("mpi"), ", or see ", Command("logs"), "."))
    record = cluster("a", state="failed", message=error.message, failure=error.fields())
    expected = 'there is no MPI. Pass "MPI", or see the button "Show the logs".'

    assert survey.scan().clusters["a"]["message"] == expected
    ClusterFolder.of(record).note(record, ended.FAILED, error.message, hint=error.hint)
    ClusterFolder.of(record).remove()
    assert [told["reason"] for told in survey.scan().ended] == [expected]


def test_the_clusters_that_have_ended_are_reported_and_read_only_when_there_is_another(cluster, asked, monkeypatch):
    survey = RegistryScanner(asked)
    assert survey.scan().ended == []
    first, second, there = cluster("first"), cluster("second"), cluster("there")
    ClusterFolder.of(there).note(there, ended.STOPPED, "the user has stopped it")  # its record is not removed yet
    ClusterFolder.of(first).note(first, ended.FAILED, "rank 1 died", when=time.time() - 5)
    ClusterFolder.of(first).remove()
    (told,) = survey.scan().ended
    assert (told["id"], told["state"], told["reason"]) == (first.id, "failed", "rank 1 died")
    assert told["logs"] == str(ClusterFolder.of(first).logs)
    reads = []
    known = ended.known
    monkeypatch.setattr(ended, "known", lambda: reads.append(1) or known())

    assert survey.scan().ended == [told]
    assert reads == []
    ClusterFolder.of(second).note(second, ended.ENDED, "idle")
    ClusterFolder.of(second).remove()
    assert [its["name"] for its in survey.scan().ended] == ["second", "first"]
    assert reads == [1]
    monkeypatch.setattr(survey_module, "_SHOWN", 1)
    assert [its["name"] for its in survey.scan().ended] == ["second"]
    ended.folder().chmod(0o755)
    assert [its["name"] for its in survey.scan().ended] == ["second"]


def test_while_a_scheduler_says_nothing_a_cluster_is_submitted(cluster, asked):
    record = cluster("silent", scheduler="slurm", state="submitted", address=None, message="submitted")
    (ClusterFolder.of(record).path / "job.job").write_text("4711\n")

    its = RegistryScanner(asked).scan().clusters["silent"]

    assert (its["state"], its["message"], its["reason"]) == ("submitted", "submitted", None)


def test_a_head_that_can_be_seen_has_not_ended_although_its_scheduler_has_forgotten_the_job(
    cluster, asked, monkeypatch
):
    cluster("here", scheduler="slurm", job="4711", state="ready", world=World(0, 2, "ready", 2))
    asked.status = JobStatus(JobState.UNKNOWN, unknown_to_scheduler=True)
    monkeypatch.setattr(survey_module, "_READ", -1.0)
    monkeypatch.setattr(registry, "clean", lambda: pytest.fail("a record is removed"))

    seen = RegistryScanner(asked).scan()

    assert seen.clusters["here"]["state"] == "ready"
    assert seen.headed == {"here"}
    assert (seen.clusters["here"]["up"], seen.clusters["here"]["ranks"]) == (2, 2)


def test_a_record_is_read_again_only_when_it_has_changed(cluster, asked, monkeypatch):
    record, read = cluster("once"), []
    survey, original = RegistryScanner(asked), registry.read
    monkeypatch.setattr(registry, "read", lambda name: read.append(name) or original(name))

    survey.scan(), survey.scan()
    assert read == ["once"]

    ClusterFolder.of(record).write(record.replace(message="changed"))
    assert survey.scan().clusters["once"]["message"] == "changed"
    assert read == ["once", "once"]


def test_a_record_that_could_not_be_read_is_read_again_though_it_has_not_changed(cluster, asked, monkeypatch):
    cluster("away")
    survey = RegistryScanner(asked)

    def fail(path):
        raise OSError("its file server is away")

    with monkeypatch.context() as away:
        away.setattr(Path, "read_bytes", fail)
        before = survey.scan()

    assert ([its["name"] for its in before.broken], before.clusters) == (["away"], {})
    assert set(survey.scan().clusters) == {"away"}


def test_a_record_that_others_can_read_is_told_as_soon_as_it_is(cluster, asked):
    record = cluster("open")
    survey = RegistryScanner(asked)
    assert set(survey.scan().clusters) == {"open"}

    (ClusterFolder.of(record).path / RECORD).chmod(0o644)
    seen = survey.scan()

    assert (seen.clusters, [its["name"] for its in seen.broken]) == ({}, ["open"])
    (ClusterFolder.of(record).path / RECORD).chmod(0o600)
    assert set(survey.scan().clusters) == {"open"}


def test_what_has_ended_is_removed_when_its_starter_could_read_why(cluster, asked, monkeypatch):
    cluster("ended", process=ProcessId(**{**vars(ProcessId.here()), "pid": 2**22 + 1}), state="failed", message="why")
    survey = RegistryScanner(asked)

    assert survey.scan().clusters["ended"]["message"] == "why"

    monkeypatch.setattr(survey_module, "_READ", 0.0)
    until("it is removed", lambda: survey.scan().clusters == {})
    assert registry.names() == []


def test_nobody_waits_for_schedulers_that_are_asked_before_what_has_ended_is_removed(cluster, asked, monkeypatch):
    asking, answered, waited = threading.Event(), threading.Event(), []
    monkeypatch.setattr(registry, "clean", lambda: asking.set() or waited.append(answered.wait(DEADLINE)))
    monkeypatch.setattr(survey_module, "_READ", 0.0)
    cluster("ended", process=ProcessId(**{**vars(ProcessId.here()), "pid": 2**22 + 1}))
    survey = RegistryScanner(asked)

    until("they are asked", lambda: survey.scan() and asking.is_set())
    assert set(survey.scan().clusters) == {"ended"}

    answered.set()
    until("they have answered in time", lambda: waited == [True])


def test_a_cluster_of_a_scheduler_that_this_version_does_not_know_hides_no_other(cluster, asked):
    cluster("known")
    cluster("later", scheduler="lsf")

    seen = RegistryScanner(asked).scan()

    assert set(seen.clusters) == {"known"}
    assert [its["name"] for its in seen.broken] == ["later"]
    assert "scheduler is 'lsf'" in seen.broken[0]["error"]


def test_a_registry_that_cannot_be_read_is_not_taken_for_an_empty_one(cluster, asked):
    cluster("hidden")
    survey = RegistryScanner(asked)

    with unreadable(), raises(RecordError, given=str(clusters_folder())):
        survey.scan()

    assert set(survey.scan().clusters) == {"hidden"}
