"""The launcher for PBS, with commands that answer as those of an OpenPBS did."""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import nullcontext
from dataclasses import replace

import dask
import pytest
from support.openpbs import Replay, recording, recordings
from support.patience import DEADLINE
from support.processes import until
from support.raised import raises

from workbench.deploy import job as deploy_job
from workbench.deploy import registry
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job import ClusterJob
from workbench.deploy.record import Record
from workbench.deploy.start import ClusterStart
from workbench.errors import InvalidRequest, JobRejected, LaunchError, SchedulerTimeout, StartError
from workbench.launch import command
from workbench.launch import launchers as room
from workbench.launch.interface import UNKNOWN, JobSpec, JobState, JobStatus, Resources
from workbench.launch.launchers import answers
from workbench.launch.pbs import PBSLauncher, available

GONE = JobStatus(JobState.UNKNOWN, unknown_to_scheduler=True)
JSON = "qstat -x -f -F json"
# Without a host PBS would copy the empty output to the host of qsub.
QSUB = "qsub -j oe -o localhost:/dev/null -r n"
QSUB_EMULATED = "qsub -j oe -o /dev/null -r n"
# The message for each refusal; of PBS's own text only the lines outside of its usage.
REFUSED = {
    "badserver-qsub": (SchedulerTimeout, "the PBS server does not answer"),
    "down-qsub": (SchedulerTimeout, "the PBS server does not answer"),
    "qsub-badsel-directive": (JobRejected, "a directive is not valid"),
    "qsub-crlf": (JobRejected, "script contains cr, lf"),
    "qsub-group-list-bad": (JobRejected, "you are not a member of a group in --extra"),
    "qsub-invalid-directive": (JobRejected, "a directive is not valid. Check --extra"),
    "qsub-invalid-directive2": (JobRejected, "directive error: -Z zzz"),
    "qsub-invalid-option": (JobRejected, "a directive is not valid"),
    "qsub-mem-bad": (JobRejected, "select.mem"),
    "qsub-name-long": (JobRejected, "Job name is too long"),
    "qsub-name-slash": (JobRejected, "illegal -N value"),
    "qsub-name-space": (JobRejected, "illegal -N value"),
    "qsub-ncpus-over-queue": (JobRejected, "more than queue nosuchq allows (ncpus up to 4, walltime up to 00:01:00)"),
    "qsub-nofile": (JobRejected, "No such file"),
    "qsub-place-bad": (JobRejected, "Resource_List.place"),
    "qsub-queue-acl": (JobRejected, "you may not use queue nosuchq. Choose another queue with --queue"),
    "qsub-queue-disabled": (JobRejected, "queue nosuchq is closed"),
    "qsub-select-and-ncpus": (JobRejected, 'cannot be used with "select"'),
    "qsub-select-and-nodes": (JobRejected, "Cannot be used with select"),
    "qsub-select-malformed": (JobRejected, "Resource_List.select"),
    "qsub-select-malformed2": (JobRejected, "Resource_List.select"),
    "qsub-select-malformed3": (JobRejected, "select.ncpus"),
    "qsub-select-negative": (JobRejected, "select.ncpus"),
    "qsub-select-unknown-res": (JobRejected, "PBS has no 'bogus'. Check --constraint"),
    "qsub-select-zero": (JobRejected, "Illegal attribute"),
    "qsub-slash-M-bad-mail": (JobRejected, "illegal -m value"),
    "qsub-unknown-queue": (JobRejected, "queue 'nosuchq' does not exist; allowed: workq, short, private, off, stopped"),
    "qsub-unknown-res": (JobRejected, "PBS has no 'bogusres'"),
    "qsub-unknown-server": (SchedulerTimeout, "the PBS server does not answer"),
    "qsub-walltime-bad": (JobRejected, "Resource_List.walltime"),
    "qsub-walltime-bad-directive": (JobRejected, "Resource_List.walltime"),
    "qsub-walltime-over": (JobRejected, "more than queue nosuchq allows (ncpus up to 4, walltime up to 00:01:00)"),
}
EMULATION_VERSION = "Unknown option: version\nUsage:\n    qstat [-f] ..."
EMULATION_REFUSED = """\
There was an error running the Slurm sbatch command.
The command was:
'/usr/bin/sbatch -o /dev/null job.sh 2>&1'
and the output was:
'sbatch: error: {words}
'
"""


@pytest.fixture
def pbs(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Replay(folder)


@pytest.fixture
def emulation(pbs):
    pbs.answer("qstat --version", code=2, err=EMULATION_VERSION)
    return pbs


@pytest.fixture
def spec(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    return JobSpec(
        name="mpi",
        ranks=4,
        threads=1,
        memory=None,
        command=("/bin/true",),
        log=folder / "head.log",
        script=folder / "job.sh",
        resources=Resources(queue="nosuchq", walltime=3600),
        directory=folder,
    )


def settle(ranks=4, threads=1, memory=None, **asked):
    return PBSLauncher().resolve(Resources(**asked), ranks=ranks, threads=threads, memory=memory)


# Submission


def test_a_job_that_is_taken_is_told_by_its_id_and_leaves_a_receipt(pbs, spec):
    pbs.replay(f"{QSUB} job.sh", "qsub-ok")
    assert PBSLauncher().submit(spec) == "1.pbshead"
    assert PBSLauncher().receipt(spec.receipt.read_text(encoding="utf-8")) == "1.pbshead"
    assert stat.S_IMODE(spec.script.stat().st_mode) == 0o700
    assert spec.script.read_text(encoding="utf-8") == PBSLauncher().script(spec)


def test_the_next_job_of_a_cluster_begins_after_the_present_one_also_where_directives_are_not_read(pbs, spec):
    pbs.replay(f"{QSUB.removesuffix('n')}y -W depend=afterany:17.pbshead job.sh", "qsub-ok")
    assert PBSLauncher().submit(replace(spec, after="17.pbshead", requeue=True)) == "1.pbshead"


def test_a_job_that_cannot_be_taken_back_hides_no_refusal(pbs, spec):
    pbs.answer(f"{QSUB} job.sh", code=1, out="1.pbshead\n", err="qsub: lost connection\n")
    pbs.replay("qdel 1.pbshead", "down-qdel")
    with pytest.raises(JobRejected):
        PBSLauncher().submit(spec)


def test_another_prefix_of_directives_does_not_reach_the_script(pbs, spec, monkeypatch):
    monkeypatch.setenv("PBS_DPREFIX", "#QSUB")
    pbs.answer(f"{QSUB} job.sh", instead='printf "${PBS_DPREFIX-8}"')
    assert PBSLauncher().submit(spec) == "8"


def test_a_job_inherits_no_identity_of_one_around_it(pbs, spec, monkeypatch):
    monkeypatch.setenv("PBS_JOBID", "7.pbshead")
    pbs.answer(f"{QSUB} job.sh", instead='printf "${PBS_JOBID-8}.pbshead"')
    assert PBSLauncher().submit(spec) == "8.pbshead"
    assert "PBS_JOBID" in spec.log.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REFUSED)
def test_every_recorded_refusal_is_told_in_one_sentence(pbs, spec, name):
    pbs.replay(f"{QSUB} job.sh", name)
    pbs.replay("qstat -Q", "qstat-Q")
    pbs.replay("qstat -Q -f nosuchq", "qstat-Qf")
    kind, words = REFUSED[name]
    with pytest.raises(kind) as refused:
        PBSLauncher().submit(spec)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "usage:" not in str(refused.value)


def test_no_recorded_refusal_is_left_out():
    names = {one.name for prefix in ("qsub-", "down-qsub", "badserver-qsub") for one in recordings(prefix) if one.code}
    assert names == REFUSED.keys()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("Batch job submission failed: Invalid partition name specified", "queue 'nosuchq' does not exist"),
        ("Batch job submission failed: Requested time limit is invalid", "the walltime of 01:00:00 is longer"),
        ("Batch job submission failed: Requested node configuration is not available", "the job requests 1 node"),
        ("Batch job submission failed: Invalid account or account/partition combination specified", "account None"),
        ("Batch job submission failed: Invalid feature specification", "no node has"),
        (
            "QOSMaxSubmitJobPerUserLimit\nsbatch: error: Job violates accounting/QOS policy (job submit limit)",
            "the limit of submitted jobs per user of the quality of service is reached. (QOSMaxSubmitJobPerUserLimit; ",
        ),
        ("something else", "see the message of PBS (something else)"),
    ],
)
def test_refusals_of_the_emulation_are_told_in_one_sentence(emulation, spec, words, told):
    emulation.answer(f"{QSUB_EMULATED} job.sh", code=1, out=EMULATION_REFUSED.format(words=words))
    emulation.answer("qstat -Q", out="Queue  Max\n-----  ---\ndebug    ?\n")
    with pytest.raises(JobRejected) as refused:
        PBSLauncher().submit(spec)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("qsub:\n No job class.\n See the rules at\n https://x\n", "(No job class.; See the rules at; https://x)"),
        (
            "64 nodes are above 32\nqsub: submit filter returned an error code.\n",
            "(64 nodes are above 32; submit filter",
        ),
        ("qsub: The account needs a project\n", "see the message of PBS (The account needs a project)"),
    ],
)
def test_all_lines_of_a_refusal_are_told(pbs, spec, text, told):
    pbs.answer(f"{QSUB} job.sh", code=1, err=text)
    with pytest.raises(JobRejected) as refused:
        PBSLauncher().submit(spec)
    assert told in str(refused.value)


def test_an_emulation_without_its_controller_is_silent(emulation, spec):
    words = "Batch job submission failed: Unable to contact slurm controller (connect failure)"
    emulation.answer(f"{QSUB_EMULATED} job.sh", code=1, out=EMULATION_REFUSED.format(words=words))
    with pytest.raises(SchedulerTimeout):
        PBSLauncher().submit(spec)


def test_a_submission_that_hangs_is_given_up_and_its_job_taken_back(pbs, spec, monkeypatch):
    monkeypatch.setattr("workbench.launch.command.submit_timeout", lambda: 1.0)
    pbs.answer(f"{QSUB} job.sh", instead="echo 1.pbshead; exec sleep 60")
    pbs.answer("qdel 1.pbshead")
    with pytest.raises(SchedulerTimeout):
        PBSLauncher().submit(spec)
    assert pbs.calls[-1] == "qdel 1.pbshead"


def test_a_submission_that_fails_but_gives_an_id_is_taken_back(pbs, spec):
    pbs.answer(f"{QSUB} job.sh", code=1, out="1.pbshead\n", err="qsub: lost connection\n")
    pbs.answer("qdel 1.pbshead")
    with pytest.raises(JobRejected):
        PBSLauncher().submit(spec)
    assert pbs.calls[-1] == "qdel 1.pbshead"


def test_a_script_that_cannot_be_written_is_no_job(pbs, spec):
    spec.script.mkdir()
    with pytest.raises(LaunchError):
        PBSLauncher().submit(spec)
    assert pbs.calls == []


def test_a_job_whose_id_was_never_heard_is_found_by_its_name(pbs):
    identity = "0123456789abcdef:job"
    pbs.answer("qselect -N training-01234567", out="17.pbshead\n")
    pbs.answer("qselect -N training-01234567-1-1", out="")
    assert PBSLauncher().find(identity, "training") == "17.pbshead"
    assert PBSLauncher().find("0123456789abcdef:world-1-1", "training") is None
    pbs.answer("qselect *", code=255, err="qselect: cannot connect to server pbshead (errno=111)\n")
    with pytest.raises(SchedulerTimeout):
        PBSLauncher().find(identity, "training")


def test_a_start_whose_submission_hangs_leaves_a_record_until_pbs_tells_of_its_job(pbs, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    pbs.answer("qsub *", instead="exec sleep 60")
    pbs.answer("qselect *", code=255, err="qselect: cannot connect to server pbshead (errno=111)\n")
    record = Record(name="training", ranks=2, scheduler="pbs", resources=Resources(walltime=3600))
    start = ClusterStart(record)
    monkeypatch.setattr("workbench.launch.command.submit_timeout", lambda: 0.5)
    with pytest.raises(SchedulerTimeout) as silent:
        start.submit()
    with pytest.raises(SchedulerTimeout, match=r"could not be canceled\. When the scheduler answers"):
        start.abandon(silent.value)
    assert registry.names() == ["training"]

    name = f"training-{record.id[:8]}"
    pbs.answer(f"qselect -N {name}", out="17.pbshead\n")
    jobs = {"17.pbshead": {"Job_Name": name, "job_state": "Q"}}
    pbs.answer(f"{JSON} 17.pbshead", out=json.dumps({"Jobs": jobs}))
    assert ClusterJob(record).ask_status().state is JobState.QUEUED
    pbs.answer("qdel 17.pbshead")
    ClusterJob(record).cancel()
    assert pbs.calls[-1] == "qdel 17.pbshead"


def test_a_job_that_can_never_start_is_refused_at_once_unless_nodes_are_made_on_demand(pbs, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    poller = room.Poller()
    monkeypatch.setattr(deploy_job, "poller", poller)
    record = Record(name="training", ranks=40, scheduler="pbs", resources=Resources(walltime=3600))
    registry.create(record.replace(deadline=time.time() + 1000))
    (ClusterFolder.of(record).path / "job.job").write_text("17.pbshead\n")
    told = {
        "Job_Name": f"training-{record.id[:8]}",
        "job_state": "Q",
        "comment": "Can Never Run: Not enough total nodes available",
    }
    pbs.answer(f"{JSON} 17.pbshead", out=json.dumps({"Jobs": {"17.pbshead": told}}))
    start = ClusterJob(registry.read("training"))
    with dask.config.set({"workbench.cancel-hopeless": False}):
        until("PBS has answered", lambda: start.poll() and start.status.hopeless)

    with raises(StartError, kind="StartError"):
        start.poll()
    poller.forget("pbs", "17.pbshead")


# Statuses


def test_one_command_asks_for_all_jobs(pbs):
    pbs.replay(f"{JSON} 22.pbshead 25.pbshead", "qstat-f-all-json")
    told = PBSLauncher().statuses(["22.pbshead", "25.pbshead"])
    assert {job: status.state for job, status in told.items()} == {
        "22.pbshead": JobState.QUEUED,
        "25.pbshead": JobState.RUNNING,
    }
    assert len(pbs.calls) == 1


def test_a_job_that_the_server_does_not_know_is_forgotten(pbs):
    pbs.replay(f"{JSON} 99999.pbshead", "qstat-unknown-x-f-json")
    assert PBSLauncher().statuses(["99999.pbshead"]) == {"99999.pbshead": GONE}


def test_jobs_that_an_unknown_one_hides_are_asked_for_alone(pbs):
    jobs = ["25.pbshead", "99999.pbshead", "26.pbshead"]
    pbs.replay(f"{JSON} {' '.join(jobs)}", "qstat-json-multi-mixed")
    pbs.replay(f"{JSON} 26.pbshead", "qstat-f-json-Q-insufficient")
    told = PBSLauncher().statuses(jobs)
    assert [told[job].state for job in jobs] == [JobState.RUNNING, JobState.UNKNOWN, JobState.QUEUED]
    assert told["99999.pbshead"].unknown_to_scheduler


def test_a_server_without_a_history_is_asked_without_it(pbs):
    pbs.answer("qstat -x*", code=2, err="qstat: PBS is not configured to maintain job history\n")
    pbs.replay("qstat -f 25.pbshead", "qstat-f-R")
    assert PBSLauncher().statuses(["25.pbshead"])["25.pbshead"].state is JobState.RUNNING
    pbs.replay("qstat -f 31.pbshead", "qstat-finished-no-x")
    assert PBSLauncher().statuses(["31.pbshead"])["31.pbshead"] == GONE
    # Only the first question tries what this server does not know.
    assert [call.startswith("qstat -x") for call in pbs.calls] == [True, True, False, False]


@pytest.mark.parametrize("name", ["down-qstat-job-json", "down-qstat", "badserver-qstat"])
def test_jobs_of_a_server_that_is_down_are_unknown_and_not_gone(pbs, name):
    pbs.replay("qstat *", name)
    pbs.answer("qstat --version", out="pbs_version = 23.06.06\n")
    status = PBSLauncher().statuses(["31.pbshead"])["31.pbshead"]
    assert (status.state, status.finished) == (JobState.UNKNOWN, False)
    assert status.reason.startswith("PBS does not answer (qstat: cannot connect to server ")
    assert len(pbs.calls) == 1


@pytest.mark.parametrize(
    "instead", ["echo nonsense", "exit 1", "head -c 3000 /dev/urandom", "exec sleep 60", "kill $$"]
)
def test_garbage_and_silence_are_unknown(pbs, instead):
    pbs.answer("qstat -*", instead=instead)
    pbs.answer("qstat --version", out="pbs_version = 23.06.06\n")
    with dask.config.set({"workbench.scheduler-timeout": "1 s"}):
        told = PBSLauncher().statuses(["31.pbshead", "x"])
    assert {(status.state, status.finished) for status in told.values()} == {(JobState.UNKNOWN, False)}


def test_without_a_pbs_every_job_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert PBSLauncher().statuses(["1"])["1"].reason.startswith("PBS does not answer (cannot run qstat: ")
    assert not available()


def test_the_emulation_hides_jobs_that_have_ended(emulation):
    emulation.answer("qstat -f 7", code=153)
    assert PBSLauncher().statuses(["7"]) == {"7": GONE}


def test_an_emulation_that_fails_hides_no_job(emulation):
    emulation.answer("qstat -f 7", code=153, err="Problem loading jobs.\n")
    assert PBSLauncher().statuses(["7"]) == {"7": UNKNOWN}


def test_nobody_asks_for_no_jobs(pbs):
    assert PBSLauncher().statuses([]) == {}
    # what is no id of a job is no option for qstat either
    assert PBSLauncher().statuses(["-B", "", "workq"]) == dict.fromkeys(["-B", "", "workq"], UNKNOWN)
    assert pbs.calls == []


def test_jobs_of_one_number_at_two_servers_are_told_apart(pbs):
    jobs = {"7.one": {"Job_Name": "a", "job_state": "Q"}, "7.two.org": {"Job_Name": "b", "job_state": "R"}}
    pbs.answer(f"{JSON} 7.one 7.two", out=json.dumps({"Jobs": jobs}))
    told = PBSLauncher().statuses(["7.one", "7.two"])
    assert [(told[job].state, told[job].label) for job in ("7.one", "7.two")] == [
        (JobState.QUEUED, "a"),
        (JobState.RUNNING, "b"),
    ]


@pytest.mark.parametrize(
    ("label", "cancelled"), [("1st-{id}", True), ("w1st", True), ("job.sh", True), ("1st-00000000", False)]
)
def test_a_job_is_cancelled_by_the_name_that_this_version_or_an_earlier_one_gave_it(pbs, label, cancelled):
    record = Record(name="1st", ranks=2, scheduler="pbs", job="7.one")
    jobs = {"7.one": {"Job_Name": label.format(id=record.id[:8]), "job_state": "R"}}
    pbs.answer(f"{JSON} 7.one", out=json.dumps({"Jobs": jobs}))
    pbs.answer("qdel 7.one")
    with nullcontext() if cancelled else raises(LaunchError, given="7.one"):
        ClusterJob(record).cancel()
    assert ("qdel 7.one" in pbs.calls) is cancelled


# Cancellation


@pytest.mark.parametrize(
    "name",
    [
        "qdel-exiting", "qdel-finished", "qdel-finished-x", "qdel-held", "qdel-multi-mixed", "qdel-notowner",
        "qdel-queued", "qdel-running", "qdel-running2", "qdel-stuck", "qdel-unknown",
    ],
)  # fmt: skip
def test_a_job_is_cancelled_whatever_state_it_is_in(pbs, name):
    pbs.replay("qdel 1.pbshead", name)
    PBSLauncher().cancel("1.pbshead")
    assert pbs.calls == ["qdel 1.pbshead"]


def test_a_site_that_takes_neither_jobs_nor_their_ends_from_nodes_is_told_as_such(pbs, spec):
    pbs.answer(f"{QSUB} job.sh", code=175, err="qsub: Bad UID for job execution\n")
    with pytest.raises(JobRejected):
        PBSLauncher().submit(spec)
    pbs.answer("qdel 8.pbshead", code=159, err="qdel: Unauthorized Request  8.pbshead\n")
    with raises(LaunchError, kind="LaunchError"):
        PBSLauncher().cancel("8.pbshead")


def test_a_job_whose_node_is_down_is_cancelled_by_force(pbs):
    pbs.replay("qdel 83.pbshead", "qdel-on-down-node")
    pbs.replay("qdel -W force 83.pbshead", "qdel-force-on-down-node")
    PBSLauncher().cancel("83.pbshead")
    assert pbs.calls == ["qdel 83.pbshead", "qdel -W force 83.pbshead"]


@pytest.mark.parametrize("name", ["down-qdel", "qdel-badid"])
def test_a_job_that_is_not_cancelled_is_told(pbs, name):
    pbs.replay("qdel 31", name)
    with raises(LaunchError, given="31"):
        PBSLauncher().cancel("31")


def test_the_emulation_says_nothing_of_a_job_that_has_ended(emulation):
    emulation.answer("qdel 7", code=1)
    PBSLauncher().cancel("7")
    emulation.answer("qdel 7", code=1, out="qdel: Kill job error on job id 7: Access/permission denied\n")
    with raises(LaunchError, given="7"):
        PBSLauncher().cancel("7")


# What is there


def test_a_pbs_is_available_if_its_server_answers(pbs):
    pbs.replay("qstat -Q", "qstat-Q")
    assert available()
    down = recording("down-qstat")
    pbs.answer("qstat -Q", code=down.code, err=down.err)
    assert not available()


def test_who_chooses_a_scheduler_waits_no_longer_than_a_subcommand(pbs, monkeypatch):
    pbs.answer("qstat -Q", instead="exec sleep 600")
    monkeypatch.setattr(command, "silence_limit", lambda: 0.1)
    with dask.config.set({"workbench.scheduler-timeout": f"{2 * DEADLINE} s"}):
        begin = time.monotonic()
        assert not answers("pbs")
    assert time.monotonic() - begin < DEADLINE


# Resources


def test_the_sites_settings_are_what_is_not_given(pbs):
    mine = {"queue": "workq", "account": "hpc", "walltime": "02:00:00", "job-extra-directives": ["-m n", "-N dask"]}
    with dask.config.set({"jobqueue.mine": mine}):
        settled = settle(nodes=2, preset="mine")
        assert settled == Resources(
            nodes=2, ranks_per_node=2, walltime=7200, queue="workq", account="hpc", extra=("-m n",), preset="mine"
        )
        # Another world's job is settled from what the first one's has come to.
        assert PBSLauncher().resolve(settled, ranks=4, threads=1, memory=None) == settled
        given = settle(queue="short", walltime=60, account="me", preset="mine", extra=("-M me@example.org",))
        assert (given.queue, given.walltime, given.account) == ("short", 60, "me")
        assert given.extra == ("-m n", "-M me@example.org")


def test_chunk_resources_of_the_site_are_kept(pbs):
    with dask.config.set({"jobqueue.mine": {"resource-spec": "select=1:ncpus=24:mem=100GB:model=bro:fast=yes"}}):
        assert settle(nodes=1, preset="mine").constraint == "model=bro:fast=yes"
        assert settle(nodes=1, preset="mine", constraint="model=has").constraint == "model=has"


def test_a_specification_of_resources_that_cannot_be_read_is_named(pbs):
    with (
        dask.config.set({"jobqueue.mine": {"resource-spec": "select=1:model='bro"}}),
        raises(InvalidRequest, option="jobqueue.mine.resource-spec"),
    ):
        settle(preset="mine")


def test_the_specification_of_resources_is_kept_as_a_whole(pbs, spec):
    text = "select=1:ncpus=64:mem=100gb:model=abc:bigmem+2:ncpus=1,place=scatter:excl,fs=home:work,ncpus=4"
    with dask.config.set({"jobqueue.mine": {"resource-spec": text, "memory": "8GB", "cores": 2}}):
        settled = settle(nodes=2, preset="mine")
        lines = PBSLauncher().script(replace(spec, resources=settled)).splitlines()
        told = PBSLauncher().notices(settled, None)
        assert PBSLauncher().resolve(settled, ranks=4, threads=1, memory=None) == settled
    assert (settled.constraint, settled.extra) == ("model=abc", ("-l place=scatter:excl", "-l fs=home:work"))
    assert "#PBS -l select=2:ncpus=2:mpiprocs=2:ompthreads=1:mem=102400mb:model=abc" in lines
    assert "#PBS -l place=scatter" not in lines
    assert [sentence.split()[2] for sentence in told] == ["-l", "bigmem", "+2:ncpus=1", "cores"]


def test_a_directive_of_the_site_replaces_its_other_settings_and_only_the_part_that_is_ours_is_left_out(pbs):
    lines = ["-l walltime=02:00:00 -q short", "-l software=abc,mem=4gb", "-W group_list=a,b", "-o /site/log -m n"]
    with dask.config.set({"jobqueue.mine": {"queue": "main", "header-skip": ["walltime"], "job-extra": lines}}):
        settled = settle(preset="mine")
        assert (settled.walltime, settled.queue) == (7200, "short")
        assert settled.extra == ("-l software=abc", "-W group_list=a,b", "-m n")
        assert settle(preset="mine", walltime=60, queue="x").walltime == 60
        assert PBSLauncher().notices(settled, None) == [
            "not used: -l mem=4gb of jobqueue.mine.job-extra-directives, because the options of the start set -l mem",
            "not used: -o /site/log of jobqueue.mine.job-extra-directives, because the workbench sets -o",
        ]


def test_the_account_of_a_variable_is_that_of_the_site_unless_the_site_skips_it(pbs, spec, monkeypatch):
    monkeypatch.setenv("PBS_ACCOUNT", "mine")
    assert settle().account == "mine"
    with dask.config.set({"jobqueue.odd": {"header-skip": ["-A"]}}):
        settled = settle(preset="odd")
        assert settled.account is None
        assert "#PBS -A" not in PBSLauncher().script(replace(spec, resources=settled))


def test_nodes_and_ranks_per_node_follow_from_each_other(pbs):
    assert (settle(10, nodes=3).nodes, settle(10, nodes=3).ranks_per_node) == (3, 4)
    assert (settle(10, ranks_per_node=4).nodes, settle(10, ranks_per_node=4).ranks_per_node) == (3, 4)
    assert (settle(10).nodes, settle(10).ranks_per_node) == (None, None)


def test_where_a_chunk_is_a_node_a_job_is_on_one_if_nothing_is_said(emulation):
    assert (settle(10).nodes, settle(10).ranks_per_node) == (1, 10)


def test_torque_is_refused_by_its_name(pbs):
    pbs.answer("qstat --version", err="Version: 6.1.2\nCommit: 661e092552de43a785c15d39a3634a541d86898e\n")
    with raises(LaunchError, option="scheduler"):
        settle(10)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"nodes": 5}, "each node needs at least one rank"),
        ({"nodes": 1, "ranks_per_node": 3}, "hold all ranks"),
        ({"reservation": "monday"}, "in the form R123"),
        ({"reservation": "R7", "queue": "workq"}, "Pass only one of these options"),
        ({"constraint": "bigmem"}, "model=milan"),
        ({"constraint": "ncpus=4"}, "have separate options"),
        ({"constraint": "a=1+1:ncpus=9"}, "constraint 'a=1+1:ncpus=9'"),
        ({"queue": "two words"}, "a name without blanks"),
        ({"account": "a\n#PBS -q x"}, "a name without blanks"),
        ({"extra": ("-N name",)}, "-N is not valid here"),
        ({"extra": ("-l select=1",)}, "-l select is not valid here"),
        ({"extra": ("-l mem=1gb",)}, "-l mem is not valid here"),
        ({"extra": ("-J 1-4",)}, "-J is not valid here"),
        ({"extra": ("-W block=true",)}, "-W block is not valid here"),
        ({"extra": ("-q short",)}, "use --queue instead"),
        ({"extra": ("-l walltime=1:00:00",)}, "use --walltime instead"),
        ({"extra": ("walltime=1",)}, "the text after #PBS"),
        ({"extra": ("-m n\n#PBS -q x",)}, "one line"),
        ({"extra": ('-m "n',)}, "cannot be read"),
    ],
)
def test_what_pbs_cannot_express_is_refused(pbs, asked, said):
    with pytest.raises(InvalidRequest) as refused:
        settle(**asked)
    assert said in str(refused.value)


def test_what_the_emulation_would_drop_is_refused(emulation):
    with raises(InvalidRequest, option="gpus_per_rank", given=1):
        settle(gpus_per_rank=1)
    with raises(InvalidRequest, option="reservation", given="R7"):
        settle(reservation="R7")


@pytest.mark.parametrize("skip", ["-l walltime", "walltime", "#PBS -l walltime"])
def test_what_the_site_skips_is_not_asked_for(pbs, skip):
    with dask.config.set({"jobqueue.mine": {"job-directives-skip": [skip, "-m"], "job-extra-directives": ["-m n"]}}):
        settled = settle(preset="mine", queue="walltime")
        # As in dask-jobqueue, additional directives are never skipped.
        assert (settled.walltime, settled.extra, settled.queue) == (None, ("-m n",), "walltime")
        with raises(InvalidRequest, option="walltime"):
            settle(preset="mine", walltime=60)


def test_a_walltime_is_read(pbs):
    assert settle(walltime="2 hours").walltime == 7200


def test_a_directive_of_the_site_that_makes_no_cluster_is_refused(pbs):
    with (
        dask.config.set({"jobqueue.mine": {"job-extra-directives": ["-J 1-4"]}}),
        raises(InvalidRequest, option="jobqueue.mine.job-extra-directives", given="-J 1-4"),
    ):
        settle(preset="mine")
