"""Jobs on this host: real ones that outlive the process that started them, and end on request."""

from __future__ import annotations

import dataclasses
import os
import signal
import stat
import subprocess
import sys
import time

import psutil
import pytest
from support.processes import until
from support.raised import raises

from workbench.errors import InvalidRequest, LaunchError
from workbench.host.processes import start_time
from workbench.launch import local
from workbench.launch.interface import JobSpec, JobState
from workbench.launch.launchers import launcher
from workbench.launch.local import HereLauncher, LocalLauncher
from workbench.launch.options import Resources

SLEEP = "import signal; print('ready', flush=True); signal.pause()"
OBSTINATE = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
SUBMIT = """
import os, signal, sys
from pathlib import Path
from workbench.launch.interface import JobSpec
from workbench.launch.local import HereLauncher, LocalLauncher
from workbench.launch.options import Resources
log, script, *command = sys.argv[1:]
spec = JobSpec(name="a", ranks=1, threads=1, memory=None, command=tuple(command), log=Path(log), script=Path(script))
print(LocalLauncher().submit(spec), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Recording(LocalLauncher):
    def __init__(self):
        self.submitted = []

    def submit(self, spec):
        self.submitted.append(super().submit(spec))
        return self.submitted[-1]


@pytest.fixture
def jobs():
    """Return a launcher whose jobs are ended after the test."""
    recording = Recording()
    yield recording
    for job in recording.submitted:
        if runs(recording, job):
            os.kill(pid_of(job), signal.SIGKILL)
        until_ended(recording, job)


def runs(jobs, job):
    """Return whether a job runs, and not that nothing is known of it."""
    status = jobs.statuses([job])[job]
    assert status.finished or status.state is JobState.RUNNING
    return not status.finished


def pid_of(job):
    return int(job.partition(":")[0])


@pytest.fixture
def spec(tmp_path):
    def make(program=SLEEP, *words, **fields):
        return JobSpec(
            **{
                "name": "a",
                "ranks": 2,
                "threads": 3,
                "memory": None,
                "command": (sys.executable, "-c", program, *words),
                "log": tmp_path / "head.log",
                "script": tmp_path / "job.sh",
                **fields,
            }
        )

    return make


def until_ready(spec):
    until("it is ready", lambda: spec.log.exists() and "ready\n" in spec.log.read_text())


def until_ended(jobs, job):
    until("it has ended", lambda: not runs(jobs, job))


# the script


def test_the_script_becomes_the_head(tmp_path, spec):
    made = spec(command=("/opt/my env/python", "-m", "workbench.head", "a"), environment=(("A", "x y"), ("B", "1")))
    assert LocalLauncher().script(made) == (
        "#!/bin/sh\n"
        "# Cluster a: 2 ranks of 3 threads each on this host\n"
        "export A='x y'\n"
        "export B=1\n"
        f"exec '/opt/my env/python' -m workbench.head a >>{tmp_path}/head.log 2>&1\n"
    )


def test_what_is_submitted_is_the_script_that_is_shown(jobs, spec):
    made = spec("print('done')")
    job = jobs.submit(made)
    assert made.script.read_text() == jobs.script(made)
    until_ended(jobs, job)
    # the head writes to the log itself: the script alone does the same
    assert made.log.read_text() == "done\n"
    subprocess.run(["/bin/sh", made.script], check=True)
    assert made.log.read_text() == "done\ndone\n"


def test_odd_values_reach_the_job_as_they_are(jobs, spec, tmp_path):
    odd = "a 'b' \"c\" $HOME `id` \\ \n;*é"
    made = spec(
        "import os, sys; print([os.environ['ODD'], *sys.argv[1:]])",
        odd,
        "",
        environment=(("ODD", odd),),
        log=tmp_path / "a 'log' $HOME",
    )
    until_ended(jobs, jobs.submit(made))
    assert made.log.read_text() == f"{[odd, odd, '']}\n"


# submitting


def test_a_job_runs_until_its_command_ends(jobs, spec):
    made = spec()
    job = jobs.submit(made)
    until_ready(made)
    assert runs(jobs, job)
    os.kill(pid_of(job), signal.SIGKILL)
    until_ended(jobs, job)


def test_a_job_is_no_child_of_the_process_that_started_it(jobs, spec):
    made = spec()
    job = jobs.submit(made)
    until_ready(made)
    assert pid_of(job) not in [child.pid for child in psutil.Process().children(recursive=True)]


def test_a_job_that_ended_at_once_has_ended(jobs, spec):
    for _ in range(5):
        until_ended(jobs, jobs.submit(spec(command=("/bin/true",))))


def test_output_and_errors_are_added_to_the_log(jobs, spec):
    made = spec("import sys; print('out', flush=True); print('err', file=sys.stderr)")
    made.log.write_text("before\n")
    until_ended(jobs, jobs.submit(made))
    assert made.log.read_text() == "before\nout\nerr\n"


def test_the_log_is_the_users_alone_whatever_the_umask(jobs, spec):
    made = spec("print('done')")
    before = os.umask(0)
    try:
        job = jobs.submit(made)
    finally:
        os.umask(before)
    until_ended(jobs, job)
    assert made.log.read_text() == "done\n"
    assert stat.S_IMODE(made.log.stat().st_mode) == 0o600


def test_a_command_that_is_not_there_is_told_in_the_log(jobs, spec):
    made = spec(command=("/no/such/python",))
    until_ended(jobs, jobs.submit(made))
    assert "/no/such/python: not found" in made.log.read_text()


def test_a_job_has_a_session_of_its_own_and_no_input(jobs, spec):
    made = spec("import os, sys; print(os.getsid(0), repr(sys.stdin.read()))")
    until_ended(jobs, jobs.submit(made))
    session, read = made.log.read_text().split()
    assert int(session) != os.getsid(0)
    assert read == "''"


def test_an_enclosing_job_is_left_out_and_the_log_says_so(jobs, spec, monkeypatch):
    for name in ("SLURM_JOB_ID", "PMI_RANK", "SLURM_CONF", "OMPI_MCA_btl"):
        monkeypatch.setenv(name, "7")
    made = spec(
        "import os; print([n for n in ('SLURM_JOB_ID', 'PMI_RANK', 'SLURM_CONF', 'OMPI_MCA_btl') if n in os.environ])"
    )
    until_ended(jobs, jobs.submit(made))
    said, names = made.log.read_text().splitlines()
    assert said.startswith("left out of the environment")
    assert "PMI_RANK" in said
    assert "SLURM_JOB_ID" in said
    assert names == "['SLURM_CONF', 'OMPI_MCA_btl']"


def test_a_folder_that_is_gone_is_a_launch_error_and_nothing_is_left(jobs, spec, tmp_path):
    made = spec(script=tmp_path / "gone" / "job.sh")
    with pytest.raises(LaunchError):
        jobs.submit(made)
    assert list(tmp_path.iterdir()) == []


def test_a_job_outlives_the_process_that_started_it(spec):
    made = spec()
    with subprocess.Popen(
        [sys.executable, "-c", SUBMIT, made.log, made.script, *made.command], stdout=subprocess.PIPE, text=True
    ) as submitter:
        job = submitter.stdout.readline().strip()
    assert submitter.returncode == -signal.SIGKILL
    until_ready(made)
    jobs = LocalLauncher()
    assert runs(jobs, job)
    jobs.cancel(job)
    assert not runs(jobs, job)
    assert start_time(pid_of(job)) is None


# state and cancel


def test_a_number_that_was_used_again_is_no_job(jobs):
    again = f"{os.getpid()}:{start_time(os.getpid()) - 1:.0f}"
    assert not runs(jobs, again)
    jobs.cancel(again)  # or this process would be gone


def test_a_job_that_never_was_has_ended(jobs):
    assert not runs(jobs, f"{2**30}:1")


def test_cancel_asks_first(jobs, spec):
    made = spec(
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: (print('in order', flush=True), sys.exit()));"
        "print('ready', flush=True); signal.pause()"
    )
    job = jobs.submit(made)
    until_ready(made)
    jobs.cancel(job)
    assert not runs(jobs, job)
    assert made.log.read_text() == "ready\nin order\n"


def test_cancel_ends_an_obstinate_job_after_some_seconds(jobs, spec, monkeypatch):
    made = spec(OBSTINATE)
    job = jobs.submit(made)
    until_ready(made)
    started = time.monotonic()
    monkeypatch.setattr(local, "_CLOSE", 0.2)
    jobs.cancel(job)
    assert time.monotonic() - started >= 0.2
    assert not runs(jobs, job)


def test_cancel_can_be_repeated_and_asked_for_what_has_ended(jobs, spec):
    job = jobs.submit(spec("pass"))
    jobs.cancel(job)
    jobs.cancel(job)
    assert not runs(jobs, job)


# the launcher of a name


@pytest.mark.parametrize("scheduler", ["local", "here", "slurm", "pbs"])
def test_a_launcher_is_found_by_its_name(scheduler):
    assert launcher(scheduler).name == scheduler


def test_an_unknown_scheduler_is_refused_with_the_closest_one():
    with raises(InvalidRequest, option="scheduler", given="locla"):
        launcher("locla")


def test_a_job_is_a_value(spec):
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec().ranks = 3


# GPUs


@pytest.mark.parametrize("visible", ["0,1", "2"])
def test_no_more_gpus_are_promised_than_this_host_has(monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    resources = Resources(gpus_per_rank=1)
    here = visible.count(",") + 1

    assert LocalLauncher().resolve(resources, ranks=here, threads=1, memory=None) == resources
    with raises(InvalidRequest, option="gpus_per_rank", given=1):
        LocalLauncher().resolve(resources, ranks=4, threads=1, memory=None)


def test_a_host_without_gpus_gives_none(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    with raises(InvalidRequest, option="gpus_per_rank", given=1, allowed="omitted") as refused:
        LocalLauncher().resolve(Resources(gpus_per_rank=1), ranks=1, threads=1, memory=None)
    assert (refused.value.option, refused.value.allowed) == ("gpus_per_rank", "omitted")


def test_in_an_allocation_the_ranks_count_the_gpus_of_their_nodes(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert HereLauncher().resolve(Resources(gpus_per_rank=2), ranks=8, threads=1, memory=None).gpus_per_rank == 2
