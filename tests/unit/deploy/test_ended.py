"""How clusters have ended: kept once, for some days, readable whatever was written, and listed."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import time

import pytest
from support.raised import raises

from workbench.commands import actions
from workbench.commands import format as commands_format
from workbench.commands.parse import parse
from workbench.commands.table import NOTEBOOK, TERMINAL
from workbench.deploy import connection, ended, job, registry, stop
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job import ClusterJob
from workbench.deploy.record import Record
from workbench.deploy.start import ClusterStart
from workbench.errors import ClusterNotFound, HeadUnreachable, LaunchError, RecordError, StartError
from workbench.hints import Command, Option
from workbench.host.processes import ProcessId
from workbench.launch.interface import JobState, JobStatus

HERE = ProcessId.here()
GONE = dataclasses.replace(HERE, started=HERE.started - 1)
HOUR_AGO = time.time() - 3600
ELSEWHERE = dataclasses.replace(GONE, host="login2", machine="another")


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))


def cluster(name="a", **facts) -> Record:
    record = Record(**{"name": name, "ranks": 2, "state": "ready", "process": GONE, **facts})
    registry.create(record)
    return record


def only() -> ended.EndReason:
    (its,) = ended.known()
    return its


def test_the_first_who_knows_why_is_believed():
    record = cluster()

    ClusterFolder.of(record).note(record, ended.STOPPED, "the user has stopped it\nand more")
    ClusterFolder.of(record).note(record, ended.FAILED, "its head is gone")

    its = only()
    assert (its.name, its.id, its.ranks, its.created) == ("a", record.id, 2, record.created)
    assert (its.state, its.reason) == (ended.STOPPED, "the user has stopped it")
    assert its.logs_folder == ClusterFolder.of(record).logs
    assert [stat.S_IMODE(path.stat().st_mode) for path in ended.folder().iterdir()] == [0o600]


def test_a_name_can_have_ended_more_than_once():
    first = cluster()
    ClusterFolder.of(first).note(first, ended.FAILED, "one", time.time() - 5)
    second = cluster()
    ClusterFolder.of(second).note(second, ended.FAILED, "two")

    assert [(its.id, its.reason) for its in ended.known()] == [(second.id, "two"), (first.id, "one")]
    assert ended.last("a").reason == "two"
    assert ended.last("b") is None


def test_an_end_is_forgotten_after_some_days_and_the_oldest_where_there_are_many(monkeypatch):
    records = [cluster(f"c{number}", process=HERE) for number in range(4)]
    monkeypatch.setattr(ended, "_MAX_FILES", 2)

    for age, record in zip((3600.0, 86400.0 * 8, 60.0), records[:3], strict=True):
        ClusterFolder.of(record).note(record, ended.ENDED, "idle", time.time() - age)
        os.utime(ended.folder() / f"{record.name}-{record.id[:8]}.json", (time.time() - age,) * 2)

    assert [its.name for its in ended.known()] == ["c2", "c0"]
    ClusterFolder.of(records[3]).note(records[3], ended.ENDED, "idle")
    assert [its.name for its in ended.known()] == ["c3", "c2"]
    assert len(list(ended.folder().iterdir())) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../etc/passwd"},
        {"state": "running"},
        {"when": "today"},
        {"when": -1.0},
        {"more": 1},
        {"id": "f" * 32},
        {"reason": "\ud800"},
        {"hint": 5},
        {"hint": [{"option": 5}]},
        {"hint": [{"subcommand": "start", "more": 1}]},
    ],
)
def test_what_cannot_be_read_is_left_out(change):
    record = cluster()
    ClusterFolder.of(record).note(record, ended.FAILED, "why")
    (path,) = ended.folder().iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    good = cluster("good", process=HERE)
    ClusterFolder.of(good).note(good, ended.ENDED, "idle")
    (ended.folder() / "bad-00000000.json").write_text("{")

    assert [its.name for its in ended.known()] == ["good"]


def test_a_hint_that_is_no_text_of_unicode_is_shown_with_its_escape():
    record = cluster()
    ClusterFolder.of(record).note(record, ended.FAILED, "why")
    (path,) = ended.folder().iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), "hint": ["\ud800"]}))
    (end,) = ended.known()
    assert end.words(NOTEBOOK) == r"why \ud800"


def test_ends_in_a_folder_that_is_open_to_others_are_refused():
    record = cluster()
    ClusterFolder.of(record).note(record, ended.FAILED, "why")
    ended.folder().chmod(0o755)

    with raises(RecordError, given="755", allowed="700"):
        ended.known()


def test_words_of_others_are_shown_as_text_and_not_as_orders_to_the_terminal():
    record = cluster()
    ClusterFolder.of(record).note(record, ended.FAILED, "\x1b[2J\udce9" + "x" * 3000)
    registry.clean()

    assert only().reason.startswith("\\x1b[2J\\udce9xxx")
    assert len(only().reason) < 1100
    with pytest.raises(ClusterNotFound) as caught:
        registry.running("a")
    assert "\\x1b[2J" in str(caught.value)
    assert "\x1b" not in str(caught.value) + commands_format.listing_text(actions.listing(everything=True))


def test_the_last_word_of_a_failed_head_is_shown_as_text():
    cluster(state="failed", message="\x1b[2J rank 1 died")

    with pytest.raises(ClusterNotFound, match=r"has ended \(\\x1b\[2J rank 1 died\)\. Its logs"):
        registry.running("a")


def test_a_cluster_ends_also_where_nothing_can_be_written():
    record = cluster()
    ended.folder().write_text("no folder")

    assert registry.clean() == ["a"]
    assert registry.names() == []
    assert not ClusterFolder.of(record).path.exists()


# who ended it


def test_a_head_that_is_killed_leaves_the_word_that_it_is_gone():
    record = cluster()

    registry.clean()

    its = only()
    assert (its.id, its.state) == (record.id, ended.FAILED)
    assert its.reason == f"its head, process {record.process.pid} on {record.process.host}, was killed or crashed"


def test_a_cluster_that_is_closed_after_its_head_was_killed_has_not_ended_by_its_user():
    record = cluster()

    stop.remove(ClusterJob(record))

    assert (only().state, only().reason.endswith("was killed or crashed")) == (ended.FAILED, True)
    assert registry.names() == []


@pytest.mark.parametrize(("state", "expected"), [("failed", ended.FAILED), ("closing", ended.ENDED)])
def test_the_last_word_of_a_head_counts_where_it_could_not_keep_it(state, expected):
    cluster(state=state, message="its world was lost 4 times")

    registry.clean()

    assert (only().state, only().reason) == (expected, "its world was lost 4 times")


def test_a_start_whose_process_was_killed_says_so():
    cluster(state="submitted", deadline=1.0)

    registry.clean()

    assert (only().state, only().reason) == (ended.FAILED, "its start was canceled")


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (JobStatus(JobState.TIMEOUT, end=HOUR_AGO), "its job 4711 has ended: TIMEOUT"),
        (JobStatus(JobState.CANCELLED, "by 1000"), "its job 4711 has ended: CANCELLED: by 1000"),
        (JobStatus(JobState.FAILED, "out of memory"), "its job 4711 has ended: FAILED: out of memory"),
        (
            JobStatus(JobState.UNKNOWN, unknown_to_scheduler=True),
            "its job 4711 has ended: gone: the scheduler no longer knows the job",
        ),
    ],
)
def test_what_the_scheduler_has_done_is_the_reason(monkeypatch, told, reason):
    record = cluster(scheduler="slurm", job="4711", process=ELSEWHERE)
    monkeypatch.setattr(ClusterJob, "cancel", lambda _: None)

    registry.clean({record.id: told})

    its = only()
    assert its.state == ended.FAILED
    assert its.reason.startswith(reason)
    assert its.when == (told.end or pytest.approx(time.time(), abs=60))


def test_a_cluster_whose_job_was_deleted_says_so_at_the_first_look(monkeypatch):
    cluster(scheduler="slurm", job="4711", process=ELSEWHERE, state="submitted")
    deleted = JobStatus(JobState.CANCELLED, "by alice")
    monkeypatch.setattr(ClusterJob, "cancel", lambda _: None)
    monkeypatch.setattr(ClusterJob, "ask_status", lambda _: deleted)
    monkeypatch.setattr(job, "ask_all", lambda jobs: {each.record.id: deleted for each in jobs})

    with pytest.raises(ClusterNotFound, match=r"has ended \(its job 4711 has ended: CANCELLED: by alice\)\. Its logs"):
        registry.running("a")


def no_answer(*_, **__):
    raise HeadUnreachable("no answer.")


def test_a_stop_is_the_users_even_if_the_head_does_not_answer(monkeypatch):
    record = cluster()
    monkeypatch.setattr(connection, "ask_once", no_answer)

    stop.stop(record)

    assert (only().state, only().reason) == (ended.STOPPED, "the user has stopped it")


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (
            LaunchError("there is no sbatch.", hint=("Try ", Command("doctor"), "."), log="/x.log:\n  word"),
            ended.FAILED,
            "there is no sbatch.",
        ),
        (KeyboardInterrupt(), ended.STOPPED, "its start was canceled"),
    ],
)
def test_a_start_that_fails_leaves_why(error, state, reason):
    record = cluster(state="submitted", process=HERE)

    with pytest.raises(type(error)):
        ClusterStart(record).abandon(error)

    assert (only().id, only().state) == (record.id, state)
    assert only().reason == reason
    assert only().words(TERMINAL) == f"{reason} Try `workbench doctor`." if state == ended.FAILED else reason


def test_a_start_that_was_refused_before_it_was_anything_leaves_nothing():
    with pytest.raises(LaunchError):
        ClusterStart(Record(name="a", ranks=2)).abandon(LaunchError("the name is taken"))

    assert ended.known() == []


# the list


def test_the_list_shows_what_has_ended_only_on_request():
    cluster("training", state="failed", message="rank 1 died", created=time.time() - 7200)
    running = cluster("running", process=HERE)
    # The head has kept the reason, and the record is still there.
    ClusterFolder.of(running).note(running, ended.STOPPED, "the user has stopped it")

    listing = actions.listing(everything=True)

    (gone,) = listing.ended
    assert (gone.name, gone.state, gone.reason, gone.ranks) == ("training", "failed", "rank 1 died", 2)
    assert json.loads(json.dumps(dataclasses.asdict(listing)))["ended"][0]["logs"] == gone.logs
    lines = commands_format.listing_text(listing).splitlines()
    assert lines[-2].split() == ["name", "state", "ended", "after", "ranks", "logs", "reason"]
    assert lines[-1].split() == ["training", "failed", time.strftime("%H:%M", time.localtime(gone.when)),
                                 "2", "h", "2", gone.logs, "rank", "1", "died"]  # fmt: skip
    assert '<td style="text-align:left">rank 1 died</td>' in commands_format.listing_html(listing)
    without = actions.listing()
    assert without.ended == []
    assert "rank 1 died" not in commands_format.listing_text(without) + commands_format.listing_html(without)


NO_MPI = StartError("there is no MPI.", hint=("Pass ", Option("mpi"), ", or run ", Command("doctor"), "."))


@pytest.mark.parametrize(
    ("place", "hint"),
    [(NOTEBOOK, "Pass --mpi, or run %mpicluster doctor."), (TERMINAL, "Pass --mpi, or run `workbench doctor`.")],
)
def test_the_hint_of_a_start_that_has_failed_is_that_of_the_place(place, hint):
    cluster(state="failed", message=NO_MPI.message, failure=NO_MPI.fields())

    listing = actions.listing(everything=True)

    assert f"there is no MPI. {hint}" in commands_format.listing_text(listing, place)
    assert (f"there is no MPI. {hint}" in commands_format.listing_html(listing)) == (place == NOTEBOOK)
    assert json.loads(json.dumps(dataclasses.asdict(listing)))["ended"][0]["hint"] == NO_MPI.fields()["hint"]


def test_the_reason_of_an_end_that_an_earlier_version_has_kept_can_be_read():
    record = cluster()
    ClusterFolder.of(record).note(record, ended.FAILED, NO_MPI.message, hint=NO_MPI.hint)
    (path,) = ended.folder().iterdir()
    values = json.loads(path.read_text())
    del values["hint"]
    path.write_text(json.dumps(values))

    assert only().words(TERMINAL) == "there is no MPI."


def test_the_list_tells_that_logs_have_been_removed():
    record = cluster()
    registry.clean()
    ClusterFolder.of(record).logs.rmdir()

    (gone,) = actions.listing(everything=True).ended

    assert gone.logs is None
    assert commands_format.listing_text(actions.listing(everything=True)).splitlines()[-1].split()[6] == "removed"


@pytest.mark.parametrize("place", [NOTEBOOK, TERMINAL])
def test_the_list_of_all_is_asked_for_alike_in_a_notebook_and_in_a_terminal(place):
    assert parse(["list", "--all"], place).options["all"] is True


def test_a_note_that_is_written_while_a_head_looks_for_an_old_one_stays(monkeypatch):
    record, read = cluster(), ended.read

    def read_before_it_is_written(path):
        found = read(path)
        ClusterFolder.of(record).note(record, ended.STOPPED, "the user has stopped it")
        return found

    monkeypatch.setattr(ended, "read", read_before_it_is_written)
    ClusterFolder.of(record).withdraw_note(age=300)
    assert ClusterFolder.of(record).end_note.exists()
