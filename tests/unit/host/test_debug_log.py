"""The log at level debug: a line for each kind of event, none when the log is off, and never a secret."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from support.patience import DEADLINE
from support.raised import raises

from workbench import bench, cli
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job_spec import job_spec
from workbench.deploy.record import Record
from workbench.deploy.ssh_tunnel import Tunnel
from workbench.errors import HeadUnreachable, LaunchError
from workbench.head import scheduler
from workbench.host import debug_log
from workbench.host.debug_log import redacted
from workbench.launch import command
from workbench.launch.allocation import scrub
from workbench.launch.multinode import exports

# As `qstat -f` prints a job, and as JSON: with the variables of who has submitted it.
QSTAT = """\
Job Id: 17.pbs
    Job_Name = mpi
    Variable_List = PBS_O_HOME=/home/user,LICENSE=hunter2,
\tCONTINUED=hunter2,
TEXT=hunter2
    comment = Not Running
"""
QSTAT_JSON = json.dumps(
    {"Jobs": {"17": {"Variable_List": {"LICENSE": 'hunter2}"', "A": "hunter2"}, "comment": "Not Running"}}}
)


@pytest.fixture
def lines(caplog):
    """Return a function that returns the lines of the log, which is on, and forgets them."""
    caplog.set_level(logging.DEBUG, logger="workbench")

    def told():
        messages = [f"{record.name} {record.getMessage()}" for record in caplog.records]
        caplog.clear()
        return [re.sub(r"\d+\.\d{3} s", "T s", message) for message in messages]

    return told


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Return a program of Slurm that answers with what follows its options."""
    program = tmp_path / "sbatch"
    program.write_text('#!/bin/sh\necho "$2"\necho "$3" >&2\nexit 3\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return "sbatch"


# each kind of line


def test_a_question_to_a_scheduler_is_logged_with_its_answer(lines, sbatch):
    command.ask([sbatch, "--test-only", "17\n18", "it is\x1b[2J busy"])
    (line,) = lines()
    assert line == (
        r"workbench.scheduler sbatch --test-only '17\n18' 'it is\x1b[2J busy': exit code 3 after T s; "
        r"err: it is\x1b[2J busy; out: 17\n18"
    )


def test_a_submission_is_logged_with_its_answer(lines, sbatch, tmp_path):
    command.submit([sbatch, "--parsable", "17"], tmp_path / "job.job", environment=os.environ, directory=tmp_path)
    assert lines() == ["workbench.scheduler sbatch --parsable 17: exit code 3 after T s; out: 17"]


def test_a_command_that_is_not_there_is_logged(lines):
    with pytest.raises(LaunchError):
        command.ask(["no-such-qsub"])
    (line,) = lines()
    assert line.startswith("workbench.scheduler no-such-qsub: failed after T s: cannot run no-such-qsub: ")


def test_a_long_answer_is_cut(lines):
    command.ask([sys.executable, "-c", "print('ab' * 10_000)"])
    (line,) = lines()
    assert len(line) < 2100
    assert re.search(r"(ab){900}a? \[\.\.\. 1\d+ more characters\]$", line)


def test_the_start_and_the_end_of_a_process_are_logged_once(lines):
    debug_log.started(17, "%s of world %d", "mpiexec", 0)
    for code in (None, -9, -9):
        debug_log.ended(17, code, "%s of world %d", "mpiexec", 0)
    assert lines() == [
        "workbench.process started: mpiexec of world 0, process 17",
        "workbench.process ended: mpiexec of world 0, process 17, signal 9 (SIGKILL)",
    ]


class Comm:
    """Stands for the connection of a client."""

    peer_address = "tls://127.0.0.1:17"


async def test_a_request_that_changes_something_is_logged_with_who_has_asked_and_how_it_ended(lines):
    async def scale(n, contents):
        if n < 0:
            raise ValueError("too few")
        return n

    handler = scheduler.logged({"workbench_scale": scale})["workbench_scale"]
    assert await handler(Comm(), n=3, contents=b"the user's own") == 3
    with raises(ValueError, args=("too few",)):
        await handler(Comm(), n=-1, contents=b"")

    assert lines() == [
        "workbench.request workbench_scale: from tls://127.0.0.1:17: n=3",
        "workbench.request workbench_scale: done for tls://127.0.0.1:17 after T s",
        "workbench.request workbench_scale: from tls://127.0.0.1:17: n=-1",
        "workbench.request workbench_scale: failed for tls://127.0.0.1:17 after T s: ValueError('too few')",
    ]


async def test_a_request_of_dask_that_takes_the_connection_gets_it(lines):
    handler = scheduler.logged({"terminate": lambda comm, reason: (comm, reason)})["terminate"]
    comm = Comm()
    assert await handler(comm, reason="over") == (comm, "over")
    assert lines()[0] == "workbench.request terminate: from tls://127.0.0.1:17: reason='over'"


def test_a_request_that_only_looks_is_not_logged(lines):
    handlers = {"workbench_status": len, "workbench_pulse": len}
    assert scheduler.logged(handlers) == handlers
    assert lines() == []


async def test_an_ssh_is_logged(lines, tmp_path, monkeypatch):
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nexec cat\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    tunnel = Tunnel("gate")

    with pytest.raises(HeadUnreachable):
        await tunnel.open(["tls://127.0.0.1:17"], 0.1)
    await tunnel.close()

    # a process of an earlier test may end meanwhile
    started, ended = (line for line in lines() if "ssh to gate" in line)
    number = started.removeprefix("workbench.process started: ssh to gate, process ")
    assert ended == f"workbench.process ended: ssh to gate, process {number}, signal 15 (SIGTERM)"


# off


def test_without_being_asked_for_nothing_is_logged_or_formatted(caplog, sbatch, monkeypatch):
    monkeypatch.delattr(debug_log, "plain")
    handlers = {"workbench_scale": len}

    assert command.ask([sbatch, "--parsable", "17"]).out == "17\n"
    debug_log.started(17, "%s", "mpiexec")
    debug_log.ended(17, 0, "%s", "mpiexec")
    scheduler.graph("Client-1", 3)

    assert scheduler.logged(handlers) == handlers
    assert caplog.records == []


# secrets


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("sbatch --export=ALL,MY_API_KEY=hunter2 job.sh", "job.sh"),
        ("qsub -v DB_PASSWORD='hunter2 hunter2' job.sh", "job.sh"),
        ("qsub --token hunter2 job.sh", "job.sh"),
        ("WORKBENCH_DASHBOARD_PREFIX=/hunter2/", ""),
        ('{"api_token": "hunter2 \\" hunter2", "b": 1}', '"b": 1'),
        ("Authorization: Bearer hunter2", ""),
        ("https://user:hunter2@host/a?token=hunter2&b=1", "@host/a"),
        ("-----BEGIN EC PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY-----\nrest", "rest"),
        (QSTAT, "    comment = Not Running"),
        (QSTAT_JSON, '"comment": "Not Running"'),
        (QSTAT_JSON[:60], "Variable_List"),
    ],
)
def test_a_secret_is_hidden_and_the_rest_is_there(text, rest):
    hidden = redacted(text)
    assert "hunter2" not in hidden
    assert rest in hidden


def test_no_secret_of_a_question_or_an_answer_is_in_the_log(lines, sbatch, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "correct-horse")
    command.ask([sbatch, "--comment=SECRET_KEY=hunter2", "invalid option correct-horse", QSTAT])
    debug_log.started(17, "%s", "workbench start --extra=--export=TOKEN=hunter2")
    debug_log.ended(17, 0, "%s", "a start")

    told = "\n".join(lines())
    assert "hunter2" not in told
    assert "correct-horse" not in told
    assert "comment = Not Running" in told


class Shrinking(dict):
    """Variables of which another thread removes one while they are read."""

    def __iter__(self):
        return iter([*self.keys(), "GONE_TOKEN"])

    def items(self):
        return [(name, self[name]) for name in self]


def test_a_variable_that_is_removed_meanwhile_does_not_disturb(monkeypatch):
    monkeypatch.setattr(os, "environ", Shrinking({"MY_TOKEN": "correct-horse"}))
    assert redacted("a correct-horse") == "a ***"


# who writes the log


def test_lines_have_time_and_process_and_go_to_standard_error_of_the_one_command():
    code = (
        "import os; from workbench.host import debug_log as log\n"
        "with log.shown(verbose=True): log.started(7, 'one'); print(os.environ['WORKBENCH_LOG'])\n"
        "with log.shown(): log.started(8, 'two'); print(os.environ.get('WORKBENCH_LOG'))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        out, err = process.communicate(timeout=DEADLINE)

    assert out == "debug\nNone\n"
    number = process.pid
    pattern = rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d,\d{{3}} {number} workbench\.process DEBUG started: one, process 7\n"
    assert re.fullmatch(pattern, err)


def test_a_bench_takes_the_option_as_every_subcommand_does(monkeypatch):
    told = []

    def main(words):
        told.append((words, os.environ.get("WORKBENCH_LOG")))
        return 0

    monkeypatch.setattr(bench, "SUBCOMMAND", replace(bench.SUBCOMMAND, run=main))
    assert cli.main(["bench", "idle", "--verbose"]) == 0
    assert told == [(["idle"], "debug")]


def test_a_value_of_the_variable_that_is_not_allowed_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("WORKBENCH_LOG", "loud")
    assert cli.main(["list"]) == 2
    assert capsys.readouterr().err == (
        "The variable WORKBENCH_LOG='loud' is not valid. Set it to 'debug', or unset it to turn the log off.\n"
    )


def test_a_job_gets_the_variable_wherever_it_runs(monkeypatch):
    record = Record(name="a", ranks=2)
    assert "WORKBENCH_LOG" not in dict(job_spec(record, ClusterFolder.of(record)).environment)

    monkeypatch.setenv("WORKBENCH_LOG", "debug")

    assert dict(job_spec(record, ClusterFolder.of(record)).environment)["WORKBENCH_LOG"] == "debug"
    assert scrub({"WORKBENCH_LOG": "debug"})[1] == []
    assert exports(["WORKBENCH_LOG"]) == ["-x", "WORKBENCH_LOG"]
