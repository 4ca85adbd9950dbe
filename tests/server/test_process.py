"""Processes that the server runs, and what the subcommands that run in them answer."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict

import psutil
import pytest
from support.processes import gone, line_of, until
from support.raised import raises
from tornado.web import HTTPError

from workbench.commands.actions import Broken, Stopped
from workbench.errors import (
    ClusterExists,
    ClusterNotFound,
    HeadUnreachable,
    InvalidRequest,
    LaunchError,
    RecordError,
    SchedulerTimeout,
    StartError,
    StartTimeout,
    WorkbenchError,
)
from workbench.hints import Command, Option
from workbench.lab.server.actions import AlreadyPending, answer
from workbench.lab.server.api import error_response
from workbench.lab.server.process import Process, ProcessResult, run

# It starts one more, says which, and waits.
WAITS = "import subprocess, sys; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True); p.wait()"
TRACE = "Traceback (most recent call last):"


def python(code):
    return [sys.executable, "-c", code]


def children_of(process):
    return psutil.Process(process.pid).children(recursive=True)


async def started(process):
    await asyncio.to_thread(until, "it has started another one", lambda: children_of(process))
    return [psutil.Process(process.pid), *children_of(process)]


async def test_its_end_and_all_that_it_has_printed_are_told(tmp_path):
    code = "import os, sys; print(os.getcwd(), os.environ['A']); sys.stderr.write('é'); sys.exit(3)"

    ended = await run(python(code), 60, directory=tmp_path, environment={"A": "b"})

    assert ended == ProcessResult(3, f"{tmp_path} b\n", "é")


@pytest.fixture
def asleep(tmp_path):
    """Return a program whose file hangs, as on a file server that does not answer, and what has it answer."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    program = tmp_path / "program"
    shutil.copy("/bin/true", program)
    with open(program, "rb") as lease:
        # Who opens the file of a lease waits until that is given back: for 45 s, if the system has its default.
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield str(program), lambda: fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    signal.signal(signal.SIGIO, before)


async def test_nobody_waits_for_a_program_whose_file_server_hangs(asleep):
    program, answer = asleep

    process = Process([program])

    assert not gone(psutil.Process(process.pid)), "it was waited for"
    answer()
    assert await process.ended(60) == ProcessResult(0, "", "")


async def test_a_program_whose_file_server_hangs_is_given_up(asleep):
    program, answer = asleep
    process = Process([program])

    with pytest.raises(TimeoutError):
        await process.ended(0.1)
    answer()


async def test_one_that_cannot_be_run_says_so(tmp_path):
    closed = tmp_path / "closed"
    closed.touch(0o600)

    for argv, directory in (["none-of-that-name"], None), ([str(closed)], None), (python(""), tmp_path / "none"):
        with pytest.raises(LaunchError, match=rf"cannot run {argv[0]}: .*\. Choose another kernel or folder"):
            await run(argv, 60, directory=directory)


async def test_a_program_whose_path_looks_like_a_variable_is_run(tmp_path):
    program = tmp_path / "a=b"
    shutil.copy("/bin/true", program)

    assert (await run([str(program)], 60)).code == 0


async def test_the_log_of_a_process_goes_to_the_server_and_is_no_word_of_an_error(capfd, monkeypatch):
    monkeypatch.setenv("WORKBENCH_LOG", "debug")
    code = "from workbench.host import debug_log as log; log.set_up(); log.started(17, 'x'); raise SystemExit('no MPI')"

    assert await run(python(code), 60) == ProcessResult(1, "", "no MPI\n")

    assert capfd.readouterr().err.endswith("workbench.process DEBUG started: x, process 17\n")


async def test_the_start_and_the_end_of_a_process_are_logged(caplog):
    caplog.set_level("DEBUG", logger="workbench")

    await run(python("raise SystemExit(3)"), 60)

    its = f"{sys.executable} -c 'raise SystemExit(3)'"
    started, ended = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(rf"started: {re.escape(its)}, process \d+", started)
    assert re.fullmatch(rf"ended: {sys.executable}, process \d+, exit code 3", ended)


async def test_a_process_of_a_server_that_ignores_sigint_can_be_interrupted():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = Process(python(WAITS))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        whole = await started(process)
        process.interrupt()
        ended = await process.ended(60)
    finally:
        signal.signal(signal.SIGINT, before)
        whole[-1].kill()

    assert TRACE in ended.errors
    assert ended.code == -signal.SIGINT


async def test_variables_that_a_shell_would_not_hand_on_are_there():
    code = "import os; print(os.environ['BASH_FUNC_module%%'])"

    assert (await run(python(code), 60, environment={"BASH_FUNC_module%%": "() { :; }"})).out == "() { :; }\n"


async def test_one_that_is_late_is_ended_with_all_that_it_has_started():
    process = Process(python(WAITS))
    running = await started(process)

    with pytest.raises(TimeoutError, match="did not end within 0 s, and was killed"):
        await process.ended(0.1)

    await asyncio.to_thread(until, "all are gone", lambda: all(map(gone, running)))


async def test_one_that_nobody_waits_for_any_more_is_ended():
    waiting = asyncio.create_task(run(python(WAITS), 1000))

    def found():
        return [its for its in psutil.Process().children() if WAITS in line_of(its)]

    await asyncio.to_thread(until, "it is started", found)
    running = found()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert all(map(gone, running))


def test_variables_that_cannot_be_are_told():
    for name, value in (("a", "b\0c"), ("a=b", "c")):
        with pytest.raises(LaunchError):
            Process(python(""), environment={name: value})


def test_where_no_file_can_be_opened_that_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))

    with pytest.raises(LaunchError):
        Process(python(""))


def test_where_no_file_can_be_opened_for_the_log_that_is_told(monkeypatch):
    def dup(_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "dup", dup)

    with pytest.raises(LaunchError):
        Process(python(""), environment={"WORKBENCH_LOG": "debug"})


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest(option="ranks", given="0", allowed="a whole number"),
        StartTimeout("no start.", hint=("See ", Command("logs", "a"), "."), log=f"world-0.log:\n    {TRACE}"),
    ],
)
def test_the_error_of_a_subcommand_comes_with_its_fields(error):
    with pytest.raises(WorkbenchError) as raised:
        answer(ProcessResult(1, json.dumps({"error": error.fields()}), "a warning"), "workbench start")

    assert type(raised.value) is type(error)
    assert raised.value.fields() == error.fields()


def test_the_error_of_a_cluster_that_could_not_be_stopped_comes_with_its_fields():
    error = SchedulerTimeout("Slurm does not answer.", hint=("Then: ", Command("stop", "a"), "."))
    stopped = Stopped([], [Broken("a", error.fields())])

    with pytest.raises(SchedulerTimeout) as raised:
        answer(
            ProcessResult(1, json.dumps(asdict(stopped)), "cluster 'a' was not stopped: Slurm does not answer."),
            "workbench stop",
        )

    assert raised.value.fields() == error.fields()


@pytest.mark.parametrize("field", [{"hint": None}, {"hint": [{"url": "/"}]}, {"hint": [{}]}, {"allowed": 3}])
def test_of_an_error_whose_fields_are_of_another_version_the_message_is_told(field):
    with raises(WorkbenchError, message="no MPI."):
        answer(
            ProcessResult(1, json.dumps({"error": {"kind": "MPINotFound", "message": "no MPI."} | field}), ""),
            "workbench start",
        )


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (
            ProcessResult(1, "", f"a warning\n{TRACE}\n  secret"),
            r"^`workbench start` failed .exit code 1.\. See the log of the server",
        ),
        (ProcessResult(1, "", ""), "failed .exit code 1."),
        (ProcessResult(2, '{"name": "a"}', ""), "failed .exit code 2."),
        (ProcessResult(-9, "", "anything"), "failed .exit code -9."),
        (ProcessResult(0, "no JSON", ""), "no JSON"),
    ],
)
def test_a_subcommand_that_breaks_off_is_told_in_words(ended, words):
    with pytest.raises(WorkbenchError, match=words) as raised:
        answer(ended, "workbench start")

    assert type(raised.value) is WorkbenchError
    assert "secret" not in str(raised.value)


def test_a_subcommand_that_answers_is_understood():
    assert answer(ProcessResult(0, '{"a": 1}\n', "a warning"), "workbench start", "a") == {"a": 1}


@pytest.mark.parametrize("out", ['{"b": 1}', "[]", "null", "3", ""])
def test_a_subcommand_of_another_version_is_told(out):
    with pytest.raises(WorkbenchError, match=r"^this version cannot read the answer of `workbench start`\."):
        answer(ProcessResult(0, out, ""), "workbench start", "a")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ClusterNotFound("a"), 404),
        (AlreadyPending("a"), 409),
        (InvalidRequest("a"), 400),
        (ClusterExists("a"), 400),
        (StartTimeout("a"), 504),
        (TimeoutError("a"), 504),
        (HeadUnreachable("a"), 502),
        (RecordError("a"), 502),
        (LaunchError("a"), 502),
    ],
)
def test_each_error_has_its_status(error, status):
    assert error_response(error, 500) == (status, "a", "")


def test_trouble_is_told_for_the_panel_with_its_log_apart():
    error = StartError("no start.", hint=("Use ", Option("timeout"), " or ", Command("stop", "a"), "."), log="the end")

    assert error_response(error, 500) == (502, 'no start. Use "Timeout" or the button "Stop".', "the end")


def test_a_fault_of_this_server_is_answered_with_500_and_its_words_are_nobodys_business():
    for error in (ValueError("secret"), OSError("secret"), HTTPError(500, "secret"), None):
        status, words, _ = error_response(error, 500)
        assert status == 500
        assert "secret" not in words
    assert error_response(HTTPError(403, "not you"), 403) == (403, "not you", "")
    assert error_response(HTTPError(405), 405) == (405, "Method Not Allowed", "")
