"""The subcommands on records of clusters that do not run: what they choose, list, show and refuse."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from unittest import mock

import dask
import pytest
from support.patience import DEADLINE
from support.raised import raises

from workbench.comm import certificates
from workbench.commands import actions
from workbench.commands import format as commands_format
from workbench.deploy import registry
from workbench.deploy import stop as deploy_stop
from workbench.deploy.connection import HeadConnection
from workbench.deploy.folder import RECORD, ClusterFolder, clusters_folder
from workbench.deploy.record import Record, World
from workbench.errors import ClusterNotFound, HeadUnreachable, InvalidRequest
from workbench.hints import TERMINAL
from workbench.host.processes import ProcessId
from workbench.launch import pbs
from workbench.launch.interface import Resources
from workbench.launch.pbs_script import Flavor

HERE = ProcessId.here()
GONE = dataclasses.replace(HERE, started=HERE.started - 1)


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))


def running(name, **facts) -> Record:
    its = {"world": World(0, 3, "degraded", 2), "next": World(1, 1, "starting", 0), "mpi": "Open MPI 5.0.11"}
    record = Record(name=name, ranks=2, state="ready", process=HERE, **its, **facts)
    registry.create(record)
    return record


def test_the_status_counts_the_ranks_and_those_that_are_to_replace_them():
    status = actions.status(running("a", message="world 0 is ready", created=time.time() - 125))

    assert (status.up, status.ranks) == (2, 3)
    text = commands_format.status_text(status)
    for fact in (
        "ranks       2 of 3, 1 thread each",
        "next ranks  0 of 1 starting",
        "last event  world 0 is ready",
        "age         2 min 5 s",
        "idle end    after 1 h without clients and tasks",
    ):
        assert fact in text.splitlines()
    assert commands_format.status_line(status) == "cluster 'a' is ready: 2 of 3 ranks"


@pytest.mark.parametrize("state", ["degraded", "restarting", "starting"])
def test_a_head_that_could_not_write_its_record_is_asked_for_its_state_once(monkeypatch, state):
    record = running("a", message="world 0 is ready", address="tls://127.0.0.1:1")
    certificates.make(ClusterFolder.of(record).path, record.name)
    now = record.replace(state=state)
    called = mock.create_autospec(HeadConnection.call, return_value=dataclasses.asdict(now))
    monkeypatch.setattr(HeadConnection, "call", called)
    assert actions.status(record).state == "ready"
    called.assert_not_called()

    (ClusterFolder.of(record).path / RECORD).chmod(0o1600)
    old = registry.read("a")
    assert actions.status(old).state == state
    called.assert_awaited_once()
    for error in (HeadUnreachable("no answer."), TimeoutError()):
        called.side_effect = error
        assert re.match(r"world 0 is ready; this was the state at .*, and its head", actions.status(old).message)
    called.reset_mock()
    actions.status(old.replace(address=None))
    called.assert_not_called()


def test_a_job_on_several_nodes_is_not_told_to_be_on_one():
    status = actions.status(running("a", resources=Resources(nodes=3)))

    assert f"on {HERE.host} and 2 other nodes, head is process" in commands_format.status_text(status)
    assert " other node" not in commands_format.status_text(actions.status(running("b", resources=Resources(nodes=1))))


def test_a_job_whose_nodes_the_scheduler_has_chosen_is_told_with_its_first():
    status = actions.status(running("a", scheduler="pbs", job="12.pbshead"))

    assert f"pbs job 12.pbshead, first node {HERE.host}, head is process" in commands_format.status_text(status)


def test_what_is_told_can_be_written_as_json():
    running("a")

    told = json.loads(json.dumps(dataclasses.asdict(actions.listing())))

    assert told["clusters"][0]["next"] == {
        "index": 1, "ranks": 1, "state": "starting", "up": 0, "starts": 1, "job": None, "gpus": "",
    }  # fmt: skip


def test_the_list_cleans_what_has_ended_and_shows_what_is_broken():
    running("good")
    running("damaged")
    (clusters_folder() / "damaged" / RECORD).write_text("{")
    running("ended")
    ClusterFolder.of(registry.read("ended")).write(registry.read("ended").replace(process=GONE))

    listing = actions.listing()

    assert [status.name for status in listing.clusters] == ["good"]
    assert [broken.name for broken in listing.broken] == ["damaged"]
    assert listing.cleaned == ["ended"]
    text = commands_format.listing_text(listing).splitlines()
    assert text[0].split() == ["name", "state", "ranks", "MPI", "job", "age", "last", "event"]
    assert text[1].startswith(f"good  ready  2 of 3  Open MPI 5.0.11  local on {HERE.host}")
    assert text[2] == "ended: the cluster has ended, and its record was removed"
    assert text[3].startswith("damaged: the record of cluster 'damaged' cannot be read")
    assert registry.names() == ["damaged", "good"]


def test_a_list_asks_a_scheduler_once_for_all_jobs_and_does_not_wait_long_for_its_answer(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    qstat = tmp_path / "qstat"
    qstat.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n'
        'test "$1" = --version && echo "pbs_version = 23.06.06" && exit\nexec sleep 600\n'
    )
    qstat.chmod(0o700)
    elsewhere = dataclasses.replace(HERE, host="login2", machine="another")
    for number in range(4):
        record = Record(name=f"a{number}", ranks=2, scheduler="pbs", process=elsewhere)
        registry.create(record)
        (ClusterFolder.of(record).path / "job.job").write_text(f"{number}.pbshead\n")
    assert pbs._flavor() is Flavor.PRO  # it is remembered
    begin = time.monotonic()

    with dask.config.set({"workbench.scheduler-timeout": "2 s"}):
        listing = actions.listing()

    assert time.monotonic() - begin < DEADLINE
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if line != "--version"]
    assert asked == ["-x -f -F json 0.pbshead 1.pbshead 2.pbshead 3.pbshead"]
    assert {status.state for status in listing.clusters} == {"submitted"}
    message = r"PBS does not answer \(qstat did not answer within 0\.5 s\), asked at .*; job 2.pbshead, submitted at .*"
    assert re.fullmatch(message, listing.clusters[2].message)


def test_the_table_in_a_notebook_shows_what_others_wrote_as_text():
    running("a", message="<script>alert(1)</script>")

    table = commands_format.listing_html(actions.listing())

    assert "<script>" not in table
    assert "&lt;script&gt;" in table


def test_an_empty_list_says_so():
    assert commands_format.listing_text(actions.listing()) == "no cluster runs"


def test_without_a_name_the_cluster_in_use_is_meant_then_the_only_one():
    only = running("only")
    assert actions.choose(None) == only

    other = running("other")
    assert actions.choose(None, other) == other
    assert actions.choose("only", other) == only


def test_a_name_is_asked_for_when_several_clusters_run():
    running("one")
    running("two")

    with raises(InvalidRequest, allowed=("one", "two")):
        actions.choose(None)


def test_without_any_cluster_it_is_told_how_to_start_one():
    with raises(ClusterNotFound, option="", given=None):
        actions.choose(None)


def test_a_cluster_in_use_is_not_taken_for_a_later_one_of_its_name():
    used = running("a")
    ClusterFolder.of(used).remove()
    later = running("a")

    with raises(ClusterNotFound, option="", given=None):
        actions.choose(None, used)
    assert actions.choose("a", used) == later


def test_a_cluster_that_has_ended_is_told_with_its_logs():
    record = running("a")
    ClusterFolder.of(record).remove()

    with pytest.raises(
        ClusterNotFound, match=f"^cluster 'a' has ended. Its logs are in {ClusterFolder.of(record).logs}. Start"
    ):
        actions.choose("a")


def test_logs_are_there_after_the_end():
    record = running("a")
    (ClusterFolder.of(record).logs / "head.log").write_text("it was started\n")
    (ClusterFolder.of(record).logs / "rank-1.log").write_text("hello from rank 1\n")
    ClusterFolder.of(record).remove()

    assert actions.logs("a", "1") == "hello from rank 1\n"
    assert actions.logs(None, "1", record) == "hello from rank 1\n"
    assert actions.logs("a", None) == "==> head <==\nit was started\n\n==> rank-1 <==\nhello from rank 1\n"
    with raises(InvalidRequest, option="rank", given="7", allowed=("1",)):
        actions.logs("a", "7")


def test_everything_is_either_all_or_a_name():
    with raises(InvalidRequest, option="name", given=None):
        actions.targets("a", everything=True)


def test_stopping_all_tells_which_records_it_could_not_use():
    running("damaged")
    (clusters_folder() / "damaged" / RECORD).write_text("{")

    stopped = actions.stop(actions.targets(None, everything=True))

    assert stopped.stopped == []
    assert commands_format.failed_text(stopped, TERMINAL).startswith(
        "cluster 'damaged' was not stopped: the record of cluster 'damaged'"
    )
    assert commands_format.stopped_text(stopped) == "no cluster has ended"


def test_stopping_all_of_no_clusters_says_that_none_runs():
    stopped = actions.stop(actions.targets(None, everything=True))

    assert commands_format.stopped_text(stopped) == "no cluster runs"


def test_clusters_are_stopped_at_the_same_time_and_each_failure_is_told(monkeypatch):
    records = [running(name) for name in ("a", "b", "c")]
    together = threading.Barrier(3)

    def end(record):
        together.wait(DEADLINE)
        if record.name == "b":
            raise HeadUnreachable("its node is down.")

    monkeypatch.setattr(deploy_stop, "stop", end)

    stopped = actions.stop(actions.Targets(records, []))

    assert stopped.stopped == ["a", "c"]
    assert [(failed.name, failed.error["message"]) for failed in stopped.failed] == [("b", "its node is down.")]


def test_what_nobody_foresaw_in_a_stop_is_raised(monkeypatch):
    monkeypatch.setattr(deploy_stop, "stop", lambda _: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        actions.stop(actions.Targets([running("a"), running("b")], []))
