"""Jobs of a home that several systems share: jobs of another scheduler are neither used nor canceled."""

from __future__ import annotations

import dataclasses
import socket

import dask
import pytest
from support.raised import raises

from workbench.commands import actions
from workbench.deploy import connection, job, registry
from workbench.deploy import stop as stop_module
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job import ClusterJob
from workbench.deploy.record import Record, World
from workbench.deploy.stop import stop
from workbench.errors import ClusterExists, ClusterNotFound, HeadUnreachable, LaunchError, SchedulerTimeout, from_fields
from workbench.host.processes import ProcessId
from workbench.launch import command, slurm
from workbench.launch.interface import JobState
from workbench.launch.slurm_parse import SEPARATOR

ELSEWHERE = ProcessId(host="n17", machine="0" * 32, boot="x", namespace="pid:[1]", pid=4242, started=1.0)
UNKNOWN_JOB = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
A, B = "alpha on ctl-a", "beta on ctl-b"


class System:
    """A Slurm in a folder for PATH, whose commands note that they were called."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        self.answer("scancel", "exit 0")
        self.answer("sacct", "exit 0")
        self.be(B)

    def answer(self, name, body):
        program = self.folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.folder}/called\n{body}\n')
        program.chmod(0o755)

    def be(self, system):
        name, host = system.split(" on ")
        self.answer("scontrol", f"echo 'ClusterName             = {name}'; echo 'SlurmctldHost[0]        = {host}'")
        # The answer is remembered for each configuration.
        self.monkeypatch.setenv("SLURM_CONF", str(self.folder / name / host))

    def queue(self, state, name, comment):
        line = SEPARATOR.join(["4711", state, "None", "N/A", "N/A", "n1", name, comment])
        self.answer("squeue", f"echo '{line}'")

    @property
    def called(self):
        return [line.split()[0] for line in (self.folder / "called").read_text().splitlines()]


@pytest.fixture
def system(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    return System(folder, monkeypatch)


def training(**fields):
    facts = {"scheduler": "slurm", "state": "ready", "job": "4711", "process": ELSEWHERE, "spread": True, **fields}
    record = Record(name="training", ranks=64, **facts)
    registry.create(record)
    return record


@pytest.mark.parametrize("written", [A, ""], ids=["of another system", "of an earlier version"])
def test_a_job_that_the_scheduler_here_does_not_know_may_run_at_another(system, written):
    training(system=written)
    system.answer("squeue", UNKNOWN_JOB)

    assert registry.clean() == []
    assert registry.names() == ["training"]
    assert "scancel" not in system.called


def test_a_job_that_its_own_scheduler_does_not_know_is_gone(system):
    training(system=B)
    system.answer("squeue", UNKNOWN_JOB)

    assert registry.clean() == ["training"]
    assert "scancel" not in system.called


def test_a_job_that_its_own_scheduler_does_not_list_yet_is_kept_by_a_list_and_cancelled_by_a_stop(system):
    record = training(system=B, state="submitted", job=None)
    (ClusterFolder.of(record).path / "job.job").write_text("4711\n")
    system.answer("squeue", UNKNOWN_JOB)

    assert registry.clean() == []
    assert actions.status(record).state == "submitted"
    ClusterJob(record).cancel()
    assert "scancel" in system.called


@pytest.mark.parametrize("written", [A, B, ""])
def test_a_job_that_has_ended_is_believed_if_it_is_the_clusters(system, written):
    record = training(system=written)
    system.queue("COMPLETED", "training", "workbench:another:job")
    assert registry.clean() == []
    assert ClusterJob(record).ask_status().state is JobState.UNKNOWN
    system.queue("COMPLETED", "training", f"workbench:{record.id}:job")
    assert ClusterJob(record).ask_status().state is JobState.DONE


@pytest.mark.parametrize("written", [A, B, ""])
def test_no_job_of_the_same_number_is_cancelled(system, written):
    record = training(system=written)
    system.queue("RUNNING", "other-work", "(null)")

    assert ClusterJob(record).alive() is None
    with raises(LaunchError, kind="LaunchError"):
        ClusterJob(record).cancel()
    assert "scancel" not in system.called


def test_a_job_of_the_cluster_is_cancelled_by_comment_or_where_the_site_changes_that_by_name(system):
    record = training(system=B)
    system.queue("RUNNING", "training", f"workbench:{record.id}:job")
    ClusterJob(record).cancel()
    for comment in ("(null)", "billed to physics"):
        system.queue("RUNNING", "training", comment)
        ClusterJob(record).cancel()
    assert system.called.count("scancel") == 3


def test_a_running_job_of_an_earlier_version_is_believed_and_cancelled(system):
    record = training()
    system.queue("RUNNING", "training", f"workbench:{record.id}:job")
    assert ClusterJob(record).alive() is True
    ClusterJob(record).cancel()
    assert "scancel" in system.called


def test_nothing_is_cancelled_while_nobody_tells_whose_it_is(system):
    record = training(system=B)
    system.answer("squeue", "exit 1")
    with raises(SchedulerTimeout, given="4711"):
        ClusterJob(record).cancel()
    assert "scancel" not in system.called


def test_a_stop_of_a_cluster_of_another_system_names_it_and_leaves_the_record(system):
    record = training(system=A)
    system.answer("squeue", UNKNOWN_JOB)
    with raises(LaunchError, given=B):
        stop(record)
    assert registry.names() == ["training"]


@pytest.mark.parametrize("silent", ["squeue", "squeue and scontrol"])
@pytest.mark.parametrize("world", [World(0, 2), World(1, 2, job="4712")], ids=["one job", "two jobs"])
def test_a_stop_names_the_jobs_that_a_silent_scheduler_does_not_confirm(system, monkeypatch, silent, world):
    for program in silent.split(" and "):
        system.answer(program, "exec sleep 600")
    record = training(system=B, world=world)
    jobs_of_it = "job 4711 and job 4712" if world.job else "job 4711"

    def end(job, *_, **__):
        job.folder.remove()

    monkeypatch.setattr(connection, "ask_once", end)
    with dask.config.set({"workbench.scheduler-timeout": "0.4 s"}):
        failed = actions.stop(actions.targets("training", everything=False)).failed[0].error
    program = "scontrol" if "scontrol" in silent else "squeue"
    assert failed["message"] == (
        f"the ranks have ended, but the end of {jobs_of_it} is not confirmed, because Slurm does not answer "
        f"({program} did not answer within 0.4 s)."
    )
    assert "remove" not in str(from_fields(failed))
    assert ClusterFolder.of(record).logs.is_dir()


def test_who_waits_for_the_end_of_a_job_is_told_once(system, monkeypatch):
    record = training(system=B)
    system.queue("COMPLETING", "training", f"workbench:{record.id}:job")
    monkeypatch.setattr(job, "_QUIET_S", 0.0)
    told: list[str] = []
    with command.answering_soon(told.append):
        assert ClusterJob(record).wait_finished(0.5) == ["4711"]
    assert told == ["waiting for the end of job 4711, which the scheduler still shows"]


def test_a_head_that_keeps_its_record_for_a_silent_scheduler_has_ended_when_its_port_is_closed(system, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    record = training(system=B, address=f"tls://127.0.0.1:{port}")
    (ClusterFolder.of(record).path / "world-1-1.job").touch()
    system.answer("squeue", "exec sleep 600")
    monkeypatch.setattr(connection, "ask_once", lambda *_, **__: None)
    with dask.config.set({"workbench.scheduler-timeout": "0.4 s"}):
        failed = actions.stop(actions.targets("training", everything=False)).failed[0].error
    assert failed["message"].startswith("the ranks have ended, but the end of job 4711 is not confirmed, because the ")
    assert registry.names() == ["training"]


def test_a_silent_scheduler_is_named_in_list_and_status(system):
    record = training(system=B, message="world 0 is ready")
    system.answer("squeue", "exec sleep 600")
    with dask.config.set({"workbench.scheduler-timeout": "0.4 s"}), command.answering_soon():
        shown = [actions.status(record), *actions.listing().clusters]
    for status in shown:
        assert status.state == "ready"
        assert status.message == "world 0 is ready; Slurm does not answer (squeue did not answer within 0.1 s)"


@pytest.mark.parametrize("answer", ["exec sleep 600", None], ids=["silent", "without a comment"])
def test_of_a_head_that_runs_here_only_a_suspension_is_shown(system, answer):
    record = training(system=B, message="world 0 is ready", process=ProcessId.here())
    system.queue("RUNNING", "a name of the site", "a comment of the site")
    if answer:
        system.answer("squeue", answer)
    with dask.config.set({"workbench.scheduler-timeout": "0.4 s"}), command.answering_soon():
        shown = [actions.status(record), *actions.listing().clusters]
    assert [(each.state, each.message) for each in shown] == [("ready", "world 0 is ready")] * 2


def test_who_chooses_a_cluster_whose_head_runs_here_does_not_wait_for_a_scheduler(system):
    record = training(system=B, process=ProcessId.here())
    system.answer("squeue", "exec sleep 600")
    assert registry.clean() == []
    assert actions.choose(None) == record
    assert not (system.folder / "called").exists()


def test_a_stop_keeps_the_record_of_a_queued_job_while_the_scheduler_is_silent(system):
    training(system=B, state="submitted")
    system.answer("squeue", "exec sleep 600")
    system.answer("scontrol", "exec sleep 600")
    with dask.config.set({"workbench.scheduler-timeout": "0.4 s"}):
        failed = from_fields(actions.stop(actions.targets("training", everything=False)).failed[0].error)
    assert str(failed) == (
        f"the end of job 4711 is not confirmed, because the scheduler {B} does not answer here. When the scheduler "
        "answers, run %mpicluster stop training again. If the scheduler is another system's, stop the cluster there."
    )
    assert registry.names() == ["training"]


def test_the_end_of_a_head_without_later_jobs_does_not_wait_for_the_scheduler(system):
    record = training(system=B)
    (ClusterFolder.of(record).path / "job.job").write_text("4711\n")
    system.answer("scontrol", "exit 1")
    ClusterJob(record).cancel(later=True)
    assert not (system.folder / "called").exists()


@pytest.mark.parametrize("state", ["failed", "ready"])
def test_a_cluster_whose_job_is_still_completing_keeps_its_name_until_a_stop_has_ended_the_job(system, state):
    record = training(system=B, state=state)
    comment = f"workbench:{record.id}:job"
    system.queue("COMPLETING", "training", comment)
    with raises(ClusterExists, option="name", given="training"):
        training(system=B)
    if state == "failed":
        with pytest.raises(ClusterNotFound, match=r"has ended, but its jobs may not have ended.*stop training"):
            registry.running("training")
    chosen = actions.targets("training", everything=False)
    assert chosen.records == [record]

    line = SEPARATOR.join(["4711", "CANCELLED", "None", "N/A", "N/A", "n1", "training", comment])
    system.answer("scancel", f"printf '#!/bin/sh\necho \"{line}\"\n' > {system.folder}/squeue")
    assert actions.stop(chosen).stopped == ["training"]
    assert registry.names() == []


def test_a_cluster_whose_later_job_cannot_be_cancelled_yet_is_stopped_by_its_name(system):
    """Its job has ended, and the record remains because of the other one."""
    record = training(system=B, world=World(0, 2), next=World(1, 4, job="4712"))
    lines = [
        SEPARATOR.join([job, state, "None", "N/A", "N/A", "n1", "training", f"workbench:{record.id}:job"])
        for job, state in (("4711", "FAILED"), ("4712", "RUNNING"))
    ]
    system.answer("squeue", f"printf '{lines[0]}\n{lines[1]}\n'")
    system.answer("scancel", "echo 'scancel: error: Kill job error on job id 4712: Access denied' >&2; exit 1")
    chosen = actions.targets("training", everything=False)
    assert "does not cancel job 4712" in actions.stop(chosen).failed[0].error["message"]
    assert registry.names() == ["training"]


def test_the_scheduler_is_asked_which_it_is_once_and_not_by_those_who_poll(system):
    record = training(system=B)
    system.queue("RUNNING", "training", f"workbench:{record.id}:job")
    for _ in range(3):
        assert ClusterJob(record).ask_status().state is JobState.RUNNING
    assert system.called == ["squeue"] * 3
    system.answer("squeue", UNKNOWN_JOB)
    for _ in range(3):
        assert ClusterJob(record).ask_status().finished
    assert system.called.count("scontrol") == 1


def test_a_stop_that_waits_for_the_record_of_the_head_asks_the_scheduler_once_per_second(system, monkeypatch):
    record = training(system=B, state="submitted")
    system.queue("RUNNING", "training", f"workbench:{record.id}:job")
    monkeypatch.setattr(stop_module, "_STOP_TIMEOUT_S", 0.5)
    job = ClusterJob(record)
    stop_module._wait_for_head(job)
    assert job.record == record
    assert system.called == ["squeue"]


def no_answer(*_, **__):
    raise HeadUnreachable("no answer.")


def test_half_an_answer_about_the_scheduler_is_no_answer(system):
    """Slurm ends all processes of a job that is canceled, also the commands of its head."""
    system.answer("scontrol", "echo 'ClusterName             = beta'; kill -TERM $$")
    assert slurm.system() is None
    system.be(B)
    assert slurm.system() == B


@pytest.mark.parametrize("process", [ELSEWHERE, ProcessId.here()], ids=["elsewhere", "here"])
def test_status_and_list_do_not_show_a_suspended_job_as_ready(system, process):
    record = training(system=B, state="ready", process=process)
    system.queue("SUSPENDED", "training", f"workbench:{record.id}:job")
    shown = [actions.status(record), *actions.listing().clusters]
    assert [(each.state, each.message) for each in shown] == [("suspended", "SUSPENDED by the scheduler")] * 2


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (" DUE TO PREEMPTION", "ended for a job of higher priority"),
        (" DUE TO NODE FAILURE", "a node failed"),
        (" DUE TO TIME LIMIT", "its walltime has ended"),
        ("", ""),
    ],
)
def test_the_cause_of_the_end_of_a_job_is_the_one_that_slurm_has_written_to_its_output(system, cause, reason):
    record = training(system=B, job="4711")
    system.queue("COMPLETING", "training", f"workbench:{record.id}:job")
    (ClusterFolder.of(record).logs / "head.log").write_text(
        "slurmstepd: error: *** JOB 47 ON n1 CANCELLED AT 2026-11-27T15:24:20 DUE TO TIME LIMIT ***\n"
        f"slurmstepd-n1: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-27T15:24:21{cause} ***\n"
    )
    assert ClusterJob(record).end_reason() == reason


def test_without_a_message_in_its_output_the_scheduler_is_asked_why_a_job_ends(system):
    record = training(system=B, job="4711")
    system.queue("PREEMPTED", "training", f"workbench:{record.id}:job")
    assert ClusterJob(record).end_reason() == "ended for a job of higher priority"
    system.queue("RUNNING", "training", f"workbench:{record.id}:job")
    assert ClusterJob(record).end_reason() == ""


def _is_slow(system, name, seconds=0.2):
    """Have a command answer later than `list` waits, and earlier than the time limit."""
    text = (system.folder / name).read_text()
    system.answer(name, f"sleep {seconds}\n{text}")


def test_a_queued_cluster_is_stopped_by_a_busy_scheduler_that_a_list_does_not_wait_for(system):
    record = training(system=B, state="submitted")
    comment = f"workbench:{record.id}:job"
    system.queue("PENDING", "training", comment)
    line = SEPARATOR.join(["4711", "CANCELLED", "None", "N/A", "N/A", "n1", "training", comment])
    system.answer("scancel", f"printf '#!/bin/sh\necho \"{line}\"\n' > {system.folder}/squeue")
    for name in ("squeue", "scontrol", "scancel"):
        _is_slow(system, name)
    with dask.config.set({"workbench.scheduler-timeout": "0.4 s"}), command.answering_soon():
        assert "squeue did not answer within 0.1 s" in actions.listing().clusters[0].message
        with dask.config.set({"workbench.scheduler-timeout": "60 s"}):
            assert actions.stop(actions.targets("training", everything=False)).stopped == ["training"]
    assert "scancel" in system.called
    assert registry.names() == []


def test_a_stop_waits_once_for_a_scheduler_that_is_silent(system):
    training(system=B, state="submitted")
    for name in ("squeue", "scontrol", "scancel"):
        system.answer(name, "exec sleep 600")
    with dask.config.set({"workbench.scheduler-timeout": "0.4 s"}), command.answering_soon():
        assert actions.stop(actions.targets("training", everything=False)).failed
    assert len(system.called) == 1


def test_a_stop_that_cannot_cancel_leaves_no_note_that_the_cluster_has_ended(system, monkeypatch):
    record = training(system=B)
    system.queue("RUNNING", "training", f"workbench:{record.id}:job")
    system.answer("scancel", "echo 'scancel: error: Kill job error on job id 4711: Access denied' >&2; exit 1")
    monkeypatch.setattr(connection, "ask_once", no_answer)
    with raises(LaunchError, given="4711"):
        stop(record)
    assert ClusterFolder.of(record).end() is None


# -- the next job ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "state", "resubmit", "job", "left"),
    [
        # The job itself, before its head has written the record.
        (0, "submitted", 2, 0, 2),
        (1, "submitted", 1, 1, 1),
        (0, "submitted", 0, 0, 0),
        # The next job, though the one before has ended without a word.
        (0, "ready", 2, 1, 1),
        (0, "submitted", 1, 1, 0),
        # The job was put back into its queue: it has the cluster again.
        (0, "ready", 2, 0, 2),
        (1, "ready", 0, 1, None),
        (1, "ready", 1, 1, 1),
        # The job was put back, and the record is that of its next job, which waits.
        (1, "submitted", 1, 0, 2),
        (1, "submitted", 0, 0, 1),
        # No further job, or a job that is not next to the one of the record.
        (0, "ready", 0, 1, None),
        (0, "ready", 0, 0, None),
        (0, "ready", 2, 2, None),
        (2, "ready", 1, 0, None),
    ],
)
def test_a_job_continues_the_cluster_of_a_record_or_not(turn, state, resubmit, job, left):
    record = Record("a", 2, scheduler="slurm", turn=turn, state=state, resubmit=resubmit, job="4711", address="tls://a")
    found = record.in_job(job)
    assert (found and found.resubmit) == left
    if found is not None and found is not record:
        assert (found.turn, found.state, found.job, found.address) == (job, "submitted", None, None)
        assert (found.id, found.kept_in) == (record.id, record.kept_in)


def test_the_next_job_begins_after_the_present_one_and_is_submitted_once(system):
    record = training(system=B, resubmit=2)
    path = ClusterFolder.of(record).path
    (path / "job.job").write_text("4711\n")
    system.answer("sbatch", f"cp job-1.sh {system.folder}/script 2>/dev/null; echo 4712")
    system.queue("PENDING", "training", f"workbench:{record.id}:job-1")
    assert ClusterJob(record).following().job_id() is None

    assert ClusterJob(record).submit_following() == "4712"

    script = (path / "job-1.sh").read_text()
    assert "#SBATCH --dependency=afterany:4711\n" in script
    assert "#SBATCH --requeue\n" in script
    assert ClusterJob(record).following().job_id() == "4712"
    line = SEPARATOR.join(["4712", "PENDING", "None", "N/A", "N/A", "", "training", f"workbench:{record.id}:job-1"])
    system.answer("squeue", f"echo '{line}'")
    assert ClusterJob(record).submit_following() == "4712"
    assert system.called.count("sbatch") == 1
    # A stop ends both.
    assert ClusterJob(record).all_jobs() == ["4711", "4712"]


def test_a_cluster_has_moved_when_its_record_is_that_of_another_job(system):
    record = training(system=B, resubmit=1)
    job, folder = ClusterJob(record), ClusterFolder.of(record)
    assert not job.has_moved()
    folder.write(record.replace(message="another message"))
    assert not job.has_moved()
    folder.write(record.in_job(1))
    assert job.has_moved()
    assert job.is_continued()
    # The same job runs again, after it was put back into its queue.
    folder.write(record.replace(process=dataclasses.replace(record.process, pid=record.process.pid + 1)))
    assert job.has_moved()
    # An object of a cluster without further jobs does not read the record.
    assert not ClusterJob(record.replace(resubmit=0)).has_moved()


@pytest.mark.parametrize("state", ["PENDING", "CANCELLED"])
def test_a_cluster_whose_head_was_killed_lives_as_long_as_its_next_job_may_begin(system, state):
    record = training(system=B, resubmit=1)
    path = ClusterFolder.of(record).path
    (path / "job.job").write_text("4711\n")
    (path / "job-1.job").write_text("4712\n")
    lines = [
        SEPARATOR.join([job, each, "None", "N/A", "N/A", "n1", "training", f"workbench:{record.id}:{stem}"])
        for job, each, stem in (("4711", "FAILED", "job"), ("4712", state, "job-1"))
    ]
    system.answer("squeue", f"printf '{lines[0]}\n{lines[1]}\n'")

    assert ClusterJob(record).alive() is (state == "PENDING")
    assert ClusterJob(record).is_continued() is (state == "PENDING")
    assert registry.clean() == ([] if state == "PENDING" else ["training"])
