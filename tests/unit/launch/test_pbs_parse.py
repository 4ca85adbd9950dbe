"""What is made of the answers of PBS: those recorded of an OpenPBS, the emulation's, and garbage."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.openpbs import recording, recordings
from support.patience import DEADLINE

from workbench.launch import pbs_parse
from workbench.launch.interface import UNKNOWN, JobState, JobStatus

TOO_MANY_CORES = "will never start: processors: 100 requested, 16 exist"
NO_EXIT = "never ran: a job for which this job waited has failed"
NO_COMMAND = "exit code 127: a command was not found"
# What is said in every recording of `qstat -f`, by the job.
SAID = {
    "down-qstat-job-json": {},
    "job-env-2x2-qstat": {"44.pbshead": "done"},
    "job-env-2x2-scatter-qstat": {"45.pbshead": "done"},
    "job-joined-qstat": {"49.pbshead": "done"},
    "qstat-f-H-qsubh": {"27.pbshead": "held: held by the user"},
    "qstat-f-Q-cannever-22.pbshead": {"22.pbshead": f"queued: {TOO_MANY_CORES}"},
    "qstat-f-Q-cannever-23.pbshead": {"23.pbshead": "queued: will never start: fewer nodes exist"},
    "qstat-f-Q-estimated": {"73.pbshead": "queued: waiting for processors: 16 requested, 4 free of 16"},
    "qstat-f-Q-insufficient": {"26.pbshead": "queued: waiting for free nodes"},
    "qstat-f-Q-insufficient-ncpus": {"67.pbshead": "queued: waiting for processors"},
    "qstat-f-Q-stoppedqueue": {"24.pbshead": "queued: its queue is stopped"},
    "qstat-f-R": {"25.pbshead": "running"},
    "qstat-f-w-R": {"25.pbshead": "running"},
    "qstat-f-all-json": {
        "22.pbshead": f"queued: {TOO_MANY_CORES}",
        "23.pbshead": "queued: will never start: fewer nodes exist",
        "24.pbshead": "queued: its queue is stopped",
        "25.pbshead": "running",
        "26.pbshead": "queued: waiting for free nodes",
        "27.pbshead": "held: held by the user",
        "28.pbshead": "queued: waiting for its start time",
        "29.pbshead": "queued: waiting for another job",
        "30.pbshead": "held: held by the user",
    },
    "qstat-f-json-H-depend": {"29.pbshead": "queued: waiting for another job"},
    "qstat-f-json-H-qhold": {"30.pbshead": "held: held by the user"},
    "qstat-f-json-H-qsubh": {"27.pbshead": "held: held by the user"},
    "qstat-f-json-Q-cannever-22.pbshead": {"22.pbshead": f"queued: {TOO_MANY_CORES}"},
    "qstat-f-json-Q-cannever-23.pbshead": {"23.pbshead": "queued: will never start: fewer nodes exist"},
    "qstat-f-json-Q-estimated": {"73.pbshead": "queued: waiting for processors: 16 requested, 4 free of 16"},
    "qstat-f-json-Q-estimated2": {"74.pbshead": "queued: waiting for processors: 8 requested, 4 free of 16"},
    "qstat-f-json-Q-insufficient": {"26.pbshead": "queued: waiting for free nodes"},
    "qstat-f-json-Q-insufficient-ncpus": {"67.pbshead": "queued: waiting for processors"},
    "qstat-f-json-Q-mem": {"68.pbshead": "queued: will never start: memory: 500gb requested, 48210mb exist"},
    "qstat-f-json-Q-node-down": {"84.pbshead": "queued: waiting for host"},
    "qstat-f-json-Q-nohost": {
        "85.pbshead": "queued: will never start: no node has the requested host (node9 != node1,node2)"
    },
    "qstat-f-json-R": {"25.pbshead": "running"},
    "qstat-f-json-R-after-qdel-in-epilogue": {"65.pbshead": "completing: is being canceled"},
    "qstat-f-json-R-in-epilogue": {"64.pbshead": "running"},
    "qstat-f-json-R-node-down": {"83.pbshead": "running"},
    "qstat-f-json-S": {"72.pbshead": "suspended: suspended by the scheduler"},
    "qstat-f-json-W": {"28.pbshead": "queued: waiting for its start time"},
    "qstat-finished-no-x-f-json": {},
    "qstat-json-multi-mixed": {"25.pbshead": "running"},
    "qstat-mixed-finished-running-json": {"43.pbshead": "running"},
    "qstat-unknown-f-json": {},
    "qstat-unknown-x-f-json": {},
    "qstat-xf-F-exit0": {"31.pbshead": "done"},
    "qstat-xf-json-E-outdir-missing": {"41.pbshead": "completing"},
    "qstat-xf-json-F-badinterp": {"36.pbshead": f"failed: {NO_COMMAND}"},
    "qstat-xf-json-F-depend-failed": {"40.pbshead": f"failed: {NO_EXIT}"},
    "qstat-xf-json-F-depend-on-unknown": {"78.pbshead": f"failed: {NO_EXIT}"},
    "qstat-xf-json-F-exit0": {"31.pbshead": "done"},
    "qstat-xf-json-F-exit3": {"32.pbshead": "failed: exit code 3"},
    "qstat-xf-json-F-force-deleted": {"83.pbshead": "cancelled: canceled"},
    "qstat-xf-json-F-nocmd": {"35.pbshead": f"failed: {NO_COMMAND}"},
    "qstat-xf-json-F-numericname": {"38.pbshead": "done"},
    "qstat-xf-json-F-outdir-missing": {"41.pbshead": "done"},
    "qstat-xf-json-F-qdel-first": {"25.pbshead": "cancelled: canceled"},
    "qstat-xf-json-F-qdel-running": {"65.pbshead": "cancelled: canceled"},
    "qstat-xf-json-F-qdel-two-jobs": {"42.pbshead": "cancelled: canceled"},
    "qstat-xf-json-F-qdel-while-queued": {"37.pbshead": "cancelled: canceled"},
    "qstat-xf-json-F-queued-deleted": {"26.pbshead": "cancelled: canceled"},
    "qstat-xf-json-F-self9": {"34.pbshead": "failed: killed by SIGKILL"},
    "qstat-xf-json-F-sister-node-lost": {"128.pbshead": "failed: one of its nodes was lost"},
    "qstat-xf-json-F-tricky-env": {"39.pbshead": "done"},
    "qstat-xf-json-F-walltime-killed": {"33.pbshead": "timeout: its walltime has ended"},
    "qstat-xf-json-walltime-normalized": {"13.pbshead": "done"},
}
LOST = {
    "qstat-finished-no-x-f-json": {"31.pbshead"},
    "qstat-finished-no-x": {"31.pbshead"},
    "qstat-json-multi-mixed": {"99999.pbshead"},
    "qstat-mixed-finished-running-json": {"31.pbshead"},
    "qstat-multi-mixed": {"99999.pbshead"},
    "qstat-unknown": {"99999.pbshead"},
    "qstat-unknown-f-json": {"99999.pbshead"},
    "qstat-unknown-x-f-json": {"99999.pbshead"},
}
EMULATED = """\
Job Id:\t14
\tJob_Name = w
\tJob_Owner = root@localhost
\tjob_state = {state}
\tqueue = debug
\tqtime = Sat Nov 21 18:48:30 2026
\tmtime = Sat Nov 21 19:08:30 2026
\tctime = Sat Nov 21 19:28:30 2026
\texec_host = n1/2+n2/2
\tResource_List.walltime = 00:20:00
\tResource_List.nodect = 2

"""


def seconds(text: str) -> float:
    return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))


def words(status: JobStatus) -> str:
    return status.state.value + (f": {status.reason}" if status.reason else "")


@pytest.mark.parametrize("name", SAID)
def test_every_recorded_answer_is_understood(name):
    told = pbs_parse.statuses(recording(name).out)
    assert {job: words(status) for job, status in told.items()} == SAID[name]
    assert not any(status.unknown_to_scheduler for status in told.values())


def test_no_recorded_answer_about_jobs_is_left_out():
    asked = {one.name for one in recordings("") if re.search(r"qstat.* -f", one.command) and "-Q" not in one.command}
    assert asked == SAID.keys()


@pytest.mark.parametrize("name", LOST)
def test_jobs_that_are_not_known_any_more_are_named_by_the_errors(name):
    assert pbs_parse.lost(recording(name).err) == LOST[name]


def test_a_long_word_of_the_errors_takes_no_longer_than_a_short_one():
    begin = time.process_time()
    assert pbs_parse.lost("x" * 300_000 + "\nqstat: 7.one Job has finished") == {"7.one"}
    assert time.process_time() - begin < DEADLINE


@pytest.mark.parametrize("name", ["down-qstat", "badserver-qstat", "qstat-badid", "qstat-otherserver", "qstat-f-R"])
def test_other_errors_lose_no_job(name):
    assert pbs_parse.lost(recording(name).err) == set()


def test_a_running_job_ends_when_its_walltime_is_up():
    for name in ("qstat-f-json-R", "qstat-f-R", "qstat-f-w-R"):
        status = pbs_parse.statuses(recording(name).out)["25.pbshead"]
        assert status.start == seconds("Sat Nov 21 11:47:51 2026")
        assert status.end == status.start + 600
        assert status.nodes == "node1,node2"


def test_a_waiting_job_starts_when_the_scheduler_expects_it_to():
    for name in ("qstat-f-Q-estimated", "qstat-f-json-Q-estimated"):
        assert pbs_parse.statuses(recording(name).out)["73.pbshead"].start == seconds("Sat Nov 21 12:12:31 2026")
    later = pbs_parse.statuses(recording("qstat-f-json-W").out)["28.pbshead"]
    assert later.start == seconds("Sat Nov 21 13:47:00 2026")


def test_a_job_that_has_ended_tells_when():
    status = pbs_parse.statuses(recording("qstat-xf-json-F-walltime-killed").out)["33.pbshead"]
    assert (status.start, status.end) == (seconds("Sat Nov 21 11:48:51 2026"), seconds("Sat Nov 21 11:49:12 2026"))


def test_the_end_of_a_suspended_job_is_not_known():
    assert pbs_parse.statuses(recording("qstat-f-json-S").out)["72.pbshead"].end is None


def test_a_job_that_ended_without_an_exit_code_was_no_success():
    ended = recording("qstat-xf-json-F-exit0").out.replace('"Exit_status":\t0,', "").replace('"substate":\t92', '"a":1')
    assert pbs_parse.statuses(ended)["31.pbshead"].state is JobState.FAILED


@pytest.mark.parametrize(
    ("letter", "state", "reason"),
    [
        ("R", JobState.RUNNING, ""),
        ("Q", JobState.QUEUED, "waiting for the scheduler"),
        ("S", JobState.SUSPENDED, "suspended by the scheduler"),
        ("C", JobState.UNKNOWN, "has ended, but its scheduler does not report how"),
        ("U?", JobState.UNKNOWN, ""),
    ],
)
def test_states_of_the_emulation_are_understood(letter, state, reason):
    status = pbs_parse.statuses(EMULATED.format(state=letter))["14"]
    assert (status.state, status.reason) == (state, reason)
    # A job that is over stays over, though its outcome is unknown.
    assert status.finished is (letter == "C")


def test_times_of_the_emulation_are_where_it_puts_them():
    running = pbs_parse.statuses(EMULATED.format(state="R"))["14"]
    assert (running.start, running.end) == (seconds("Sat Nov 21 19:08:30 2026"), seconds("Sat Nov 21 19:28:30 2026"))
    assert running.nodes == "n1,n2"
    assert pbs_parse.statuses(EMULATED.format(state="Q"))["14"].start == seconds("Sat Nov 21 19:08:30 2026")
    assert pbs_parse.statuses(EMULATED.format(state="C"))["14"].end == seconds("Sat Nov 21 19:28:30 2026")


@pytest.mark.parametrize("code", [*range(-1, -29, -1), -30])
def test_exit_codes_of_pbs_itself_are_told_in_words(code):
    jobs = {"1.x": {"job_state": "F", "Exit_status": code}}
    status = pbs_parse.statuses(json.dumps({"Jobs": jobs}))["1.x"]
    assert status.state is JobState.FAILED
    assert re.fullmatch(r"[A-Za-z ,]+", status.reason)


@pytest.mark.parametrize(
    ("comment", "reason"),
    [
        ("job held, too many failed attempts to run", "held by the system: too many failed attempts to run"),
        ("Job held by user1 on Sat Nov 21 11:47:52 2026", "held by the system"),
        ("Not Running: Not enough free nodes available", "held by the system"),
    ],
)
def test_a_job_that_is_held_after_failed_starts_tells_so(comment, reason):
    jobs = {"1.x": {"job_state": "H", "Hold_Types": "s", "comment": comment}}
    assert pbs_parse.statuses(json.dumps({"Jobs": jobs}))["1.x"].reason == reason


def test_every_comment_of_the_scheduler_is_told_in_words():
    text = (Path(__file__).parents[2] / "data" / "pbs-comments.txt").read_text(encoding="utf-8")
    told = {
        comment: pbs_parse.waiting(f"Not Running: {comment.replace('%s', 'short')}") for comment in text.splitlines()
    }
    assert len(told) > 70
    for comment, reason in told.items():
        assert reason[:1].islower() or reason.startswith("PBS"), comment
        assert "Not Running" not in reason
        assert reason.rstrip(".") == reason
    limits = [comment for comment in told if " limit" in comment and "small" not in comment]
    assert [comment for comment in limits if not told[comment].startswith("the limit of ")] == []
    assert (
        told["Queue %s per-user limit reached on resource %s"]
        == "the limit of short per user of queue short is reached"
    )
    assert pbs_parse.waiting("Not Running: Server per-group limit reached on resource ncpus") == (
        "the limit of processors per group of the server is reached"
    )
    assert pbs_parse.waiting("Not Running: would exceed user ann's limit on resource mem in queue long") == (
        "the limit of memory per user of queue long is reached"
    )


def test_lines_that_go_on_are_put_together():
    text = recording("qstat-f-Q-cannever-22.pbshead").out
    assert "(R: 100 A: \n\t16 T: 16)" in text
    assert words(pbs_parse.statuses(text)["22.pbshead"]) == f"queued: {TOO_MANY_CORES}"


@pytest.mark.parametrize("one", [one for one in recordings("qsub-") if one.code == 0], ids=lambda one: one.name)
def test_the_id_of_every_job_that_was_taken_is_read(one):
    assert pbs_parse.job_id(one.out) == one.out.strip()


@pytest.mark.parametrize("one", [one for one in recordings("qsub-") if one.code], ids=lambda one: one.name)
def test_no_id_is_read_of_a_refusal(one):
    assert pbs_parse.job_id(one.out) is None
    assert pbs_parse.job_id(one.err) is None


def test_queues_and_their_limits_are_read():
    assert pbs_parse.queues(recording("qstat-Q").out) == ["workq", "short", "private", "off", "stopped"]
    assert pbs_parse.limits(recording("qstat-Qf").out) == {"ncpus": "4", "walltime": "00:01:00"}


ATTRIBUTES = st.sampled_from(
    ["job_state", "Exit_status", "stime", "Resource_List", "walltime", "exec_host", "comment", "estimated", "substate"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from("QRFECSBHWTXU"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | ATTRIBUTES, inner, max_size=3),
    max_leaves=12,
)


def check(told: dict[str, JobStatus]) -> None:
    for status in told.values():
        assert isinstance(status, JobStatus)
        assert status.start is None or status.start >= 0 or status.start < 0


@given(st.text())
def test_no_text_makes_the_parsers_fail(text):
    check(pbs_parse.statuses(text))
    for read in (pbs_parse.job_id, pbs_parse.lost, pbs_parse.queues, pbs_parse.limits):
        read(text)


@given(st.lists(st.tuples(ATTRIBUTES, st.text())), st.sampled_from(["Job Id: 1.x\n    ", "Job Id:\t1\n\t"]))
def test_no_attribute_makes_the_parsers_fail(attributes, start):
    separator = start.rpartition("\n")[2]
    text = start + f"\n{separator}".join(f"{name} = {value}" for name, value in attributes)
    check(pbs_parse.statuses(text))


@given(st.dictionaries(st.text(max_size=8), st.dictionaries(ATTRIBUTES, VALUES) | VALUES))
def test_no_json_makes_the_parsers_fail(jobs):
    check(pbs_parse.statuses(json.dumps({"Jobs": jobs})))


@given(st.sampled_from([recording(name).out for name in SAID]), st.data())
def test_an_answer_that_breaks_off_or_is_damaged_makes_the_parsers_not_fail(text, data):
    at = data.draw(st.integers(0, len(text)))
    check(pbs_parse.statuses(text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 40)) :]))


@pytest.mark.parametrize("text", ['{"Jobs": []}', '{"Jobs": {"1": 3}}', "[" * 100_000, "{", '{"Jobs":' * 100_000])
def test_json_of_another_form_tells_nothing(text):
    assert pbs_parse.statuses(text) == {}


def test_a_state_that_nobody_knows_is_unknown():
    for given_state in ("", "?", "M", "QQ", "7"):
        assert pbs_parse.statuses(f'{{"Jobs": {{"1.x": {{"job_state": "{given_state}"}}}}}}') == {"1.x": UNKNOWN}
