"""Whatever goes wrong with a job is one clear sentence, and leaves neither job nor process nor record."""

from __future__ import annotations

import subprocess
import sys

import dask
import pytest
from support.batch import command, nothing_is_left, one_job, starting
from support.daemons import Trouble
from support.processes import DEADLINE, until

from workbench import MPICluster
from workbench.commands import actions
from workbench.deploy import registry
from workbench.deploy.stop import stop
from workbench.errors import HeadUnreachable, InvalidRequest, JobRejected, SchedulerTimeout, StartError

NAME = "troubled"
HELD = ["--hold"]
NONSENSE = "printf '\\377\\000 Guru Meditation #8200\\n'"
ACCOUNT = "may not use partition closed, or there is no such account"


@pytest.fixture(autouse=True)
def _own_registry(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    # What runs without a record ends by itself after this time.
    monkeypatch.setenv("DASK_WORKBENCH__RECORD_TIMEOUT", "1 s")
    yield
    nothing_is_left(slurm, NAME)


def refused(kind, **options):
    """Return the sentence in which a start is refused."""
    with pytest.raises(kind) as caught:
        MPICluster(2, **{"name": NAME, "scheduler": "slurm", "nodes": 1, "quiet": True, **options})
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def failure(start):
    """Return in which words a start has failed, without the end of the log."""
    with pytest.raises(StartError) as caught:
        start.result()
    return str(caught.value).partition("\n")[0]


def stuck(folder):
    """Let rank 1 hang just before its worker registers."""
    file = folder / "preload.py"
    file.write_text("import time\n\ndef dask_setup(worker):\n    if worker.name == 1:\n        time.sleep(600)\n")
    return dask.config.set({"distributed.worker.preload": [str(file)]})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queue": "debgu"}, "--queue 'debgu' is not a partition; did you mean 'debug'?"),
        (
            {"queue": "closed"},
            "partition closed accepts only jobs of certain accounts; pass your account with --account",
        ),
        ({"queue": "closed", "account": "phisics"}, "--account 'phisics' " + ACCOUNT),
        ({"queue": "short", "walltime": "01:00:00"}, "partition short allows at most 00:05:00"),
        ({"nodes": 5, "ranks": 5}, "5 nodes cannot be allocated: partition debug has 4 nodes"),
        ({"nodes": 17, "ranks": 17}, "17 ranks (1 thread each) on 17 nodes do not fit: partition debug has 4 nodes"),
        ({"memory": "100 GiB"}, "2 ranks (1 thread, 100.00 GiB each) on 1 node do not fit: partition debug has"),
        ({"constraint": "od"}, "--constraint 'od' is not valid; did you mean 'odd'?"),
        ({"reservation": "nix"}, "you cannot use --reservation 'nix'"),
        ({"gpus_per_rank": 5}, "no nodes have room for 2 ranks (1 thread, 5 GPUs each) on 1 node"),
        ({"extra": ["--no-such-option"]}, "a directive of --extra or of jobqueue.yaml is wrong"),
    ],
)
def test_what_the_scheduler_cannot_give(options, sentence):
    options = {"ranks": 2, "name": NAME, "scheduler": "slurm", "nodes": 1, "quiet": True, **options}
    with pytest.raises(JobRejected) as caught:
        MPICluster(**options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"walltime": "soon"}, "walltime 'soon' is not valid. Choose a time above zero as HH:MM:SS"),
        ({"walltime": "90"}, "Slurm would read minutes and PBS seconds"),
        ({"memory": "much"}, "memory 'much' is not valid. Choose a size above zero"),
        ({"nodes": "some"}, "nodes 'some' is not valid. Choose a whole number"),
        ({"nodes": 3}, "--nodes 3"),
        ({"queue": "debug\nrm"}, "queue 'debug\\nrm' is not valid. Choose a text on one line"),
        ({"preset": "nix"}, "preset 'nix' is not valid. Allowed"),
    ],
)
def test_what_is_malformed_reaches_no_scheduler(options, sentence, tmp_path):
    with command(tmp_path, "sbatch", "exit 99"):
        assert sentence in refused(InvalidRequest, **options)


def test_a_scheduler_that_is_down(slurm):
    slurm.stop_controller()
    try:
        sentence = refused(SchedulerTimeout)
    finally:
        slurm.start_controller()
    slurm.wait_up()
    assert sentence.startswith("Slurm does not answer (Unable to contact slurm controller")


def test_a_job_is_known_though_its_number_gets_lost_on_the_way(slurm, tmp_path):
    with command(tmp_path, "sbatch", '"$REAL" "$@" >/dev/null; echo accepted'):
        start = starting(NAME, extra=HELD)
        job = one_job(slurm, "PENDING", start)
        assert [cluster.jobs for cluster in actions.listing().clusters] == [[job]]
        assert actions.stop(actions.targets(NAME, everything=False)).stopped == [NAME]
    with pytest.raises(StartError):
        start.result()


def test_a_scheduler_that_is_frozen_may_take_a_job_that_nobody_hears_of(slurm, monkeypatch):
    monkeypatch.setattr("workbench.launch.command.submit_timeout", lambda: 1.0)
    slurm.freeze_controller()
    try:
        with dask.config.set({"workbench.scheduler-timeout": "1 s"}):
            sentence = refused(SchedulerTimeout, extra=HELD)
    finally:
        slurm.start_controller()
    assert sentence.startswith(
        "sbatch did not answer within 1 s. The job of the cluster may have been submitted, and could not be canceled."
    )
    assert f"%mpicluster stop {NAME}" in sentence

    # Now it sees what was sent to it meanwhile, and the job is known by its comment.
    slurm.wait_up()
    until("the job to be taken", slurm.jobs)
    assert [(cluster.name, cluster.state) for cluster in actions.listing().clusters] == [(NAME, "held")]
    assert actions.stop(actions.targets(NAME, everything=False)).stopped == [NAME]


def test_while_the_scheduler_is_away_a_job_is_neither_forgotten_nor_given_up(slurm):
    start = starting(NAME, extra=HELD)
    job = one_job(slurm, "PENDING", start)
    slurm.stop_controller()
    try:
        with dask.config.set({"workbench.scheduler-timeout": "1 s"}):
            assert [cluster.name for cluster in actions.listing().clusters] == [NAME]
            with pytest.raises(SchedulerTimeout):
                stop(registry.read(NAME))
        assert registry.names() == [NAME]
    finally:
        slurm.start_controller()
    slurm.wait_up()
    slurm.run("scancel", job)
    assert failure(start) == f"cluster '{NAME}' did not start: its job {job} has ended: CANCELLED"


def test_sbatch_answers_garbage(tmp_path):
    with command(tmp_path, "sbatch", NONSENSE):
        assert "Guru Meditation #8200" in refused(JobRejected)


def test_a_cluster_comes_up_although_squeue_answers_garbage_and_its_job_is_killed(slurm, tmp_path):
    with command(tmp_path, "squeue", NONSENSE):
        cluster = MPICluster(2, name=NAME, scheduler="slurm", nodes=1, quiet=True)
        status = actions.status(cluster.record)
    assert (status.state, status.up) == ("ready", 2)
    slurm.run("scancel", "--full", "--signal=KILL", cluster.record.job)
    has_ended(slurm, cluster)


def test_a_job_that_somebody_cancels_in_the_queue(slurm):
    start = starting(NAME, extra=HELD)
    job = one_job(slurm, "PENDING", start)
    slurm.run("scancel", job)
    assert failure(start) == f"cluster '{NAME}' did not start: its job {job} has ended: CANCELLED"


def test_a_job_that_is_held_says_so_and_comes_when_it_is_released(slurm):
    start = starting(NAME, extra=HELD)
    job = one_job(slurm, "PENDING", start)
    status = actions.status(registry.read(NAME))
    assert (status.state, status.jobs) == ("held", [job])
    assert status.message == "HELD by the user: scontrol release ends the hold"
    slurm.run("scontrol", "release", job)
    cluster = start.result()
    assert cluster.record.job == job
    slurm.run("scancel", "--full", "--signal=TERM", job)
    has_ended(slurm, cluster)


def test_a_job_that_is_suspended_is_shown_so_until_it_is_resumed(slurm):
    with MPICluster(2, name=NAME, scheduler="slurm", nodes=1, quiet=True):
        record = registry.read(NAME)
        slurm.run("scontrol", "suspend", record.job)
        try:
            until("it is suspended", lambda: actions.status(record).state == "suspended")
            assert [cluster.state for cluster in actions.listing().clusters] == ["suspended"]
        finally:
            slurm.run("scontrol", "resume", record.job)
        until("it runs again", lambda: actions.status(record).state == "ready")


@pytest.mark.long
def test_a_job_whose_time_is_up_while_it_runs(slurm):
    cluster = MPICluster(2, name=NAME, scheduler="slurm", nodes=1, quiet=True)
    slurm.run("scontrol", "update", f"JobId={cluster.record.job}", "EndTime=now")
    has_ended(slurm, cluster)


def has_ended(slurm, cluster):
    """Wait until a job has ended, and see that nothing of its cluster is known."""
    until("the job to end", lambda: not slurm.jobs())
    with pytest.raises(HeadUnreachable):
        cluster.refresh()
    actions.listing()
    assert registry.names() == []
    cluster.close()


def test_a_job_that_is_killed_while_it_starts(slurm, tmp_path):
    with stuck(tmp_path):
        start = starting(NAME)
        job = one_job(slurm, "RUNNING", start)
        until("the world to start", lambda: registry.read(NAME).state == "starting")
        slurm.run("scancel", "--full", "--signal=KILL", job)
        assert f"its job {job} has ended: " in failure(start)


@pytest.mark.long
def test_a_job_whose_node_fails_while_it_starts(slurm, tmp_path):
    with stuck(tmp_path):
        start = starting(NAME, extra=["--nodelist=n2"])
        job = one_job(slurm, "RUNNING", start)
        until("the world to start", lambda: registry.read(NAME).state == "starting")
        slurm.kill_node("n2")
        try:
            assert failure(start).endswith(f"its job {job} has ended: FAILED: a node failed")
        finally:
            slurm.start_node("n2")
            slurm.wait_up("n2")


def test_a_job_that_is_put_back_into_the_queue_ends_by_itself(slurm):
    cluster = MPICluster(2, name=NAME, scheduler="slurm", nodes=1, quiet=True)
    job = cluster.record.job
    with pytest.raises(Trouble, match="disabled"):
        slurm.run("scontrol", "requeue", job)
    # Only who runs the site can do this.
    slurm.run("scontrol", "update", f"JobId={job}", "Requeue=1")
    slurm.run("scontrol", "requeue", job)
    until("the job to wait again", lambda: slurm.state(job) == "PENDING")
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    until("the job to have ended again", lambda: not slurm.jobs())
    with pytest.raises(HeadUnreachable):
        cluster.refresh()
    cluster.close()


def test_a_working_directory_that_the_node_does_not_have(slurm, tmp_path, monkeypatch):
    folder = tmp_path / "it's gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    start = starting(NAME, extra=HELD)
    job = one_job(slurm, "PENDING", start)
    folder.rmdir()
    slurm.run("scontrol", "release", job)
    with pytest.raises(StartError, match=f"workbench: {folder} does not exist on .*: the job's folder must be on a"):
        start.result()


def test_a_python_that_the_node_does_not_have(slurm, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    start = starting(NAME, extra=HELD)
    job = one_job(slurm, "PENDING", start)
    python.unlink()
    slurm.run("scontrol", "release", job)
    with pytest.raises(StartError, match=f"workbench: {python} does not exist on .*: the Python of the cluster must"):
        start.result()


def test_a_home_that_the_node_does_not_have(slurm, tmp_path):
    start = starting(NAME, extra=HELD)
    job = one_job(slurm, "PENDING", start)
    (tmp_path / "jupyter").rename(tmp_path / "elsewhere")
    slurm.run("scontrol", "release", job)
    assert "its first node may have no access to the folder of the output" in failure(start)


def test_a_file_system_without_room():
    start = f"{sys.executable} -m workbench start 2 --name {NAME} --scheduler slurm --nodes 1"
    line = f"ulimit -f 0; exec {start}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "must be a folder that you can write to, with free space" in done.stderr
    assert "Traceback" not in done.stderr
