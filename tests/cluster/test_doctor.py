from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from pathlib import Path

import dask
import psutil
import pytest
from support.processes import DEADLINE, gone, until

from workbench import hints
from workbench.commands import doctor
from workbench.hints import TERMINAL
from workbench.host import parent_death
from workbench.launch import mpi_library, probe

CHECKS = [
    "interpreter", "names", "settings", "mpi4py", "MPI wheels", "mpiexec", "two ranks", "launcher", "ports of ranks",
    "thread level", "GPUs", "template", "cores", "addresses", "records", "logs", "sockets", "spilled data",
    "shared memory", "schedulers", "allocation", "ssh", "versions",
]  # fmt: skip


def fake_mpiexec(path: Path, runs: str) -> str:
    """Write an mpiexec that calls itself by the name of the real one and does something else."""
    found = mpi_library.find()
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {found.mpiexec} --version\n{runs}\n', encoding="ascii")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_sound_installation_with_a_running_cluster_has_no_failure_and_ends_nothing(cluster4, client4):
    findings = list(doctor.examine(cluster4.name))

    assert [finding.check for finding in findings] == CHECKS
    assert [finding for finding in findings if finding.verdict == "failed"] == []
    assert findings[-1].detail == "the same on the head and 4 ranks as here"
    cores = findings[CHECKS.index("cores")]
    assert (cores.verdict == "warning") == (len(os.sched_getaffinity(0)) < 4)
    template = findings[CHECKS.index("template")]
    assert template.detail == "ranks are forked from one process of their node, so a start imports once"
    launcher = findings[CHECKS.index("launcher")]
    words = "the guard refuses other users of this host at the ports of mpiexec, "
    assert launcher.verdict == "ok"
    assert launcher.detail.startswith(words)
    tried = "as user 65534" if os.geteuid() == 0 else "not tried"
    assert tried in launcher.detail
    assert client4.submit(sum, [1, 2]).result(DEADLINE) == 3


def test_a_cluster_that_is_not_there_fails_the_last_check_alone(cluster4):
    *others, last = doctor.examine("nobody")

    assert [finding for finding in others if finding.verdict == "failed"] == []
    assert (last.check, last.verdict) == ("versions", "failed")
    assert "nobody" in last.detail


def test_an_mpiexec_that_makes_singletons_is_diagnosed(tmp_path):
    # What remains of a foreign mpiexec: the processes start, and none knows of the others.
    runs = 'while [ "$1" != -P ]; do python="$1"; shift; done\n"$python" "$@"; "$python" "$@"'
    with dask.config.set({"workbench.mpi.mpiexec": fake_mpiexec(tmp_path / "mpiexec", runs)}):
        findings = {finding.check: finding for finding in doctor.examine()}

    assert findings["mpiexec"].verdict == "ok"
    assert findings["two ranks"].verdict == "failed"
    assert "2 worlds of one rank each" in findings["two ranks"].detail
    assert findings["thread level"].detail == "not checked, because the check of two ranks failed"


def test_ranks_that_hang_are_ended_at_the_deadline(tmp_path):
    with dask.config.set({"workbench.mpi.mpiexec": fake_mpiexec(tmp_path / "mpiexec", "sleep 600")}):
        found = mpi_library.find()
        said = probe.say_hello(found, timeout=0.5)

    assert (said.code, said.worlds) == (None, ())
    assert doctor.two_ranks(said, found).verdict == "failed"


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), subprocess.TimeoutExpired("mpiexec", 0.5)], ids=repr)
def test_a_rank_that_starts_while_its_launcher_ends_is_ended_too(tmp_path, monkeypatch, ending):
    ready, rank = tmp_path / "ready", tmp_path / "rank"
    late = f"trap 'sleep 600 & echo $! > {rank}; exit' TERM\n> {ready}\nsleep 600 & wait"

    class Waiting(subprocess.Popen):
        def communicate(self, *args, **kwargs):
            if parent_death.__file__ in self.args and not rank.exists():
                until("the launcher runs", ready.exists)
                raise ending
            return super().communicate(*args, **kwargs)

    monkeypatch.setattr(probe.subprocess, "Popen", Waiting)
    with (
        dask.config.set({"workbench.mpi.mpiexec": fake_mpiexec(tmp_path / "mpiexec", late)}),
        pytest.raises(KeyboardInterrupt) if isinstance(ending, KeyboardInterrupt) else contextlib.nullcontext(),
    ):
        assert probe.say_hello(mpi_library.find(), timeout=DEADLINE).code is None

    late_rank = int(rank.read_text(encoding="ascii"))
    until("the rank has ended", lambda: not psutil.pid_exists(late_rank) or gone(psutil.Process(late_rank)))


def test_asking_for_an_mpi_that_is_not_here_fails_with_a_remedy():
    other = next(flavor for flavor in mpi_library.FLAVORS if flavor != mpi_library.find().flavor)

    findings = {finding.check: finding for finding in doctor.examine(mpi=other)}

    assert findings["mpiexec"].verdict == "failed"
    assert hints.words(findings["mpiexec"].remedy, TERMINAL).startswith("Use --mpi auto")
