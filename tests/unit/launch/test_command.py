"""Commands of a scheduler have a deadline, and what one answers to a submission outlives who asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import dask
import pytest
from support.processes import DEADLINE, until
from support.raised import raises

from workbench.errors import LaunchError, SchedulerTimeout
from workbench.launch import command
from workbench.launch.command import Answer, ask, settled

ASK = """
import os, sys
from pathlib import Path
from workbench.launch import command
command.submit(["/bin/sh", "-c", sys.argv[2]], Path(sys.argv[1]), environment=os.environ, directory=Path("/"))
"""


def submit(receipt, program, **variables):
    environment = {**os.environ, **variables}
    return command.submit(["/bin/sh", "-c", program], receipt, environment=environment, directory=receipt.parent)


def test_an_answer_has_code_output_and_errors():
    assert ask(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"]) == Answer(3, "out\n", "err\n")


def test_times_and_words_are_in_the_form_that_can_be_read(monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    assert ask(["/bin/sh", "-c", "echo $LC_ALL $SLURM_TIME_FORMAT"]).out == "C %FT%T%z\n"


def test_bytes_that_are_no_text_are_an_answer_too():
    assert ask(["/bin/sh", "-c", r"printf '\377\n'"]).out == "\N{REPLACEMENT CHARACTER}\n"


def test_a_command_that_hangs_is_ended_and_told():
    with (
        dask.config.set({"workbench.scheduler-timeout": "0.2 s"}),
        pytest.raises(SchedulerTimeout),
    ):
        ask([sys.executable, "-c", "import signal; signal.pause()"])


def test_a_command_that_is_not_there_is_told():
    with raises(LaunchError, kind="LaunchError"):
        ask(["no-such-qsub"])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(1, "", "one\n  two  \n\n"), "two"),
        (Answer(1, "out\n", ""), "out"),
        (Answer(7, "\n", " \n"), "exit code 7 and no output"),
    ],
)
def test_an_answer_in_words_is_its_last_line(answer, words):
    assert answer.describe == words


def test_a_submission_runs_in_its_folder_and_leaves_what_it_said(tmp_path):
    receipt = tmp_path / "job.job"
    answer = submit(receipt, 'echo "$WB_X $PWD"; echo no >&2; exit 2', WB_X="17")
    assert (answer.code, answer.out, answer.err) == (2, f"17 {tmp_path}\n", "no\n")
    assert receipt.read_text() == answer.out
    assert receipt.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("program", ["exec sleep 600", "sleep 600; true"], ids=["a program", "a site's script"])
def test_a_submission_that_hangs_is_ended_and_told(tmp_path, program):
    with dask.config.set({"workbench.scheduler-timeout": "1 s"}), pytest.raises(SchedulerTimeout):
        submit(tmp_path / "job.job", f"echo 17; {program}")
    assert (tmp_path / "job.job").read_text() == "17\n"
    assert settled(tmp_path / "job.job")


def test_a_submission_goes_on_without_who_asked_and_is_not_settled_until_it_ends(tmp_path):
    receipt, gate = tmp_path / "job.job", tmp_path / "gate"
    os.mkfifo(gate)
    program = f"echo started; read line < '{gate}'; echo 17"
    asker = subprocess.Popen([sys.executable, "-c", ASK, str(receipt), program])
    until("the command runs", lambda: receipt.exists() and receipt.read_text() == "started\n")
    assert not settled(receipt)

    asker.send_signal(signal.SIGKILL)
    asker.wait(DEADLINE)
    assert not settled(receipt)
    gate.write_text("go\n")

    until("it has ended", lambda: settled(receipt))
    assert receipt.read_text() == "started\n17\n"


def test_what_was_never_submitted_is_settled(tmp_path):
    assert settled(tmp_path / "none.job")


def test_a_job_inherits_the_words_and_times_of_its_user(tmp_path):
    answer = submit(tmp_path / "job.job", 'echo "$LC_ALL,$SLURM_TIME_FORMAT"', LC_ALL="de_DE.UTF-8")
    assert answer.out == "de_DE.UTF-8,\n"


def test_a_user_waits_once_for_a_scheduler_that_is_silent_and_asks_others_and_later(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name, body in (("squeue", "exec sleep 600"), ("scontrol", "echo up"), ("qstat", "echo up")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o700)
    with dask.config.set({"workbench.scheduler-timeout": "0.8 s"}), command.answering_soon():
        with command.answering_soon(), pytest.raises(SchedulerTimeout):
            ask(["squeue"])
        with pytest.raises(SchedulerTimeout):
            ask(["scontrol"])
        assert ask(["qstat"]).out == "up\n"
    assert ask(["scontrol"]).out == "up\n"
    monkeypatch.setattr(command, "_RETRY_S", 0.0)
    with dask.config.set({"workbench.scheduler-timeout": "0.8 s"}), command.answering_soon():
        with pytest.raises(SchedulerTimeout):
            ask(["squeue"])
        assert ask(["scontrol"]).out == "up\n"


def test_a_user_who_waits_is_told_for_whom(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_SILENT_S", 0.05)
    told: list[str] = []

    def say(text):
        told.append(text)
        (tmp_path / str(len(told))).touch()

    late = f"until [ -e '{tmp_path}/%d' ]; do sleep 0.01; done; echo late"
    with command.answering_soon(say):
        assert ask(["sh", "-c", late % 1]).out == "late\n"
        assert submit(tmp_path / "job.job", late % 2).out == "late\n"
    assert told == ["waiting for Slurm: sh has 5 s to answer", "waiting for PBS: /bin/sh has 60 s to answer"]


def test_a_command_that_must_be_done_has_the_whole_time_and_a_submission_ends_the_memory_of_a_silence(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name, body in (("squeue", "exec sleep 600"), ("scancel", "sleep 0.2; echo done"), ("sbatch", "echo 17")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o700)
    with dask.config.set({"workbench.scheduler-timeout": "0.4 s"}), command.answering_soon():
        with pytest.raises(SchedulerTimeout):
            ask(["squeue"])
        with dask.config.set({"workbench.scheduler-timeout": "60 s"}), command.insisting():
            assert ask(["scancel"]).out == "done\n"
        with pytest.raises(SchedulerTimeout):
            ask(["squeue"])
        command.submit(["sbatch"], tmp_path / "job.job", environment=os.environ, directory=tmp_path)
        assert not command.found_silence()
        with command.insisting():
            for _ in range(2):
                with pytest.raises(SchedulerTimeout):
                    ask(["squeue"])
