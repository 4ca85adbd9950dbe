from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from support.patience import DEADLINE

from workbench import cli
from workbench.commands.table import SCRIPTS


def test_a_shell_is_given_what_can_follow(capsys):
    assert cli.main(["completion", "--", "st"]) == 0
    assert capsys.readouterr().out.split() == ["start", "status", "stop"]
    assert cli.main(["completion", "--", "start", "--scheduler", "sl"]) == 0
    assert capsys.readouterr().out.split() == ["slurm"]
    assert cli.main(["completion", "--", "completion", ""]) == 0
    assert capsys.readouterr().out.split() == [*SCRIPTS]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["start", "--scheduler=sl"], ["--scheduler=slurm"]),
        (["start", "--mpi="], ["--mpi=auto", "--mpi=openmpi", "--mpi=mpich", "--mpi=intelmpi"]),
        # bash passes an equals sign as a word
        (["start", "--scheduler", "=", "sl"], ["slurm"]),
        (["start", "--mpi", "="], ["auto", "openmpi", "mpich", "intelmpi"]),
    ],
)
def test_the_value_behind_an_equals_sign_is_completed(words, expected, capsys):
    assert cli.main(["completion", "--", *words]) == 0
    assert capsys.readouterr().out.split() == expected


def test_another_shell_is_refused(capsys):
    assert cli.main(["completion", "csh"]) == cli.EXIT_USAGE
    assert "bash, zsh, fish" in capsys.readouterr().err


@pytest.mark.parametrize("shell", [shell for shell in SCRIPTS if shutil.which(shell)])
def test_the_script_is_one_of_the_shell(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert subprocess.run([shell, "-n"], input=script, text=True, check=False, timeout=DEADLINE).returncode == 0


def test_bash_completes_the_command(capsys, tmp_path):
    command = tmp_path / "workbench"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m workbench "$@"\n')
    command.chmod(0o755)
    cli.main(["completion", "bash"])
    script = capsys.readouterr().out + (
        f"COMP_WORDS=({command} start --prot); COMP_CWORD=2; _workbench {command}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=DEADLINE)
    assert done.stdout.split() == ["--protocol"]
