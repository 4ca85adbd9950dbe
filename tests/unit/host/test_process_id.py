"""A process is distinguished from every other one that had, has or will have its number, on any host."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.host import processes
from workbench.host.processes import ProcessId, exit_code, start_time

HERE = ProcessId.here()


@pytest.fixture
def sleeper():
    """Return a process that lives until the test ends it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def await_zombie(pid):
    """Return when a child has ended, and leave its zombie."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_this_process_lives():
    assert HERE.alive() is True
    assert (HERE.pid, HERE.host) == (os.getpid(), socket.gethostname())


def test_another_process_of_this_host_lives_until_it_is_killed(sleeper):
    identity = ProcessId.of(sleeper.pid)
    assert identity.alive() is True
    sleeper.kill()
    sleeper.wait()
    assert identity.alive() is False


def test_a_zombie_is_gone(sleeper):
    identity = ProcessId.of(sleeper.pid)
    sleeper.kill()
    await_zombie(sleeper.pid)
    assert Path(f"/proc/{sleeper.pid}").exists()
    assert start_time(sleeper.pid) is None
    assert identity.alive() is False


def test_the_exit_code_of_a_zombie_is_known_and_that_of_a_process_which_runs_or_is_gone_is_not(sleeper):
    assert exit_code(sleeper.pid) is None
    sleeper.kill()
    await_zombie(sleeper.pid)
    assert exit_code(sleeper.pid) == -9
    sleeper.wait()
    assert exit_code(sleeper.pid) is None


def test_a_process_that_was_gone_when_it_was_looked_at_is_gone(sleeper):
    sleeper.kill()
    sleeper.wait()
    assert ProcessId.of(sleeper.pid).alive() is False


@pytest.mark.parametrize("pid", [0, -1, 2**30])
def test_impossible_numbers_are_no_processes(pid):
    assert start_time(pid) is None
    assert ProcessId.of(pid).alive() is False


def test_a_number_that_was_used_again_is_another_process():
    assert dataclasses.replace(HERE, started=HERE.started - 1).alive() is False


def test_a_process_from_before_the_reboot_is_gone():
    assert dataclasses.replace(HERE, boot="an earlier one").alive() is False


@pytest.mark.parametrize("field", ["host", "machine"])
def test_a_process_of_another_host_is_never_called_gone(field):
    elsewhere = dataclasses.replace(HERE, **{field: "login2", "boot": "another", "pid": 2**30})
    assert not elsewhere.is_local
    assert elsewhere.alive() is None


def test_a_process_of_another_container_cannot_be_seen():
    assert dataclasses.replace(HERE, namespace="pid:[1]", pid=2**30).alive() is None


def test_a_name_with_parentheses_and_spaces_hides_no_start_time(tmp_path):
    odd = tmp_path / "a ) S 1 (b"
    odd.symlink_to("/bin/cat")
    with subprocess.Popen([str(odd)], stdin=subprocess.PIPE) as process:
        assert 0 < HERE.started <= start_time(process.pid)


def test_an_identity_survives_a_record_on_disk():
    assert ProcessId(**json.loads(json.dumps(dataclasses.asdict(HERE)))) == HERE


def test_systems_without_proc_are_asked_by_psutil(monkeypatch, sleeper):
    monkeypatch.setattr(processes.os.path, "isdir", lambda _: False)
    monkeypatch.setattr(processes, "_first_line", lambda _: "")
    monkeypatch.setattr(processes, "_pid_namespace", lambda: "")
    identity = ProcessId.of(sleeper.pid)
    assert identity.alive() is True
    sleeper.kill()
    await_zombie(sleeper.pid)
    assert identity.alive() is False
    sleeper.wait()
    assert identity.alive() is False


def test_files_that_a_system_lacks_are_empty_words(tmp_path):
    assert processes._first_line(str(tmp_path / "machine-id")) == ""
