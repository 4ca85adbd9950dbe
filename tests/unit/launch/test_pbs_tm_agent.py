"""The agent that MPIs use like rsh, over a pbs_tmrsh that runs everything here."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import DEADLINE

from workbench.errors import LaunchError
from workbench.launch.allocation import Allocation
from workbench.launch.mpi_library import find
from workbench.launch.multinode import NodePlacement, agent_path, agent_text, mpiexec_command

TMRSH = """\
#!/bin/sh
echo "$1" >>'{hosts}'
shift
exec "$@"
"""


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "pbs_tmrsh"
    program.write_text(TMRSH.format(hosts=tmp_path / "hosts"), encoding="utf-8")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "hosts"


def run(*argv, **environment):
    done = subprocess.run(
        argv, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=DEADLINE,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("options", [[], ["-x"], ["-l", "me"], ["-n", "-p", "22", "-o", "StrictHostKeyChecking=no"]])
def test_a_command_runs_on_its_host_as_rsh_would_have_it(hosts, options):
    words = ["A=1;export A;printf", '"%s|"', "$A", '"two words"', "'a b'"]
    assert run(agent_path(), *options, "node2", *words) == (0, "1|two words|a b|", "")
    assert hosts.read_text(encoding="utf-8") == "node2\n"


def test_the_exit_code_is_that_of_the_command(hosts):
    assert run(agent_path(), "node2", "exit", "7")[0] == 7


def test_a_pbs_whose_path_has_blanks_is_found():
    assert "exec '/opt/p b s/pbs_tmrsh' " in agent_text("/opt/p b s/pbs_tmrsh")


def test_the_agent_is_private_and_written_once(hosts):
    path = agent_path()
    before = Path(path).stat()
    assert stat.S_IMODE(before.st_mode) == 0o700
    assert Path(agent_path()).stat().st_ino == before.st_ino
    with open(path, "a", encoding="utf-8") as file:
        file.write("exit 1\n")
    assert run(agent_path(), "node2", "true")[0] == 0


def test_what_keeps_the_agent_from_being_made_is_told(hosts, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(hosts.parent / "with blank"))
    with pytest.raises(LaunchError):
        agent_path()
    monkeypatch.setenv("JUPYTER_DATA_DIR", "/dev/null")
    with pytest.raises(LaunchError):
        agent_path()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError):
        agent_path()


def test_mpi_starts_one_world_on_the_nodes_of_a_job_by_it(hosts, tmp_path):
    nodes = ("wb-node1", "wb-node2")
    nodefile = tmp_path / "nodes"
    nodefile.write_text("".join(f"{node}\n" for node in nodes), encoding="utf-8")
    spread = NodePlacement(
        ranks=2, threads=1, around=Allocation("pbs", "1.pbshead", nodes, (1, 1)), counts=(1, 1),
        root=os.geteuid() == 0, agent=agent_path(), directory=str(tmp_path),
    )  # fmt: skip
    program = (sys.executable, "-c", "from mpi4py import MPI; print('size', MPI.COMM_WORLD.size)")
    command = mpiexec_command(find(), spread, program)
    job = {"PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBID": "1.pbshead", "PBS_NODEFILE": str(nodefile)}
    code, out, err = run(*command.argv, **command.defaults, **command.environment, **job)
    assert (code, out) == (0, "size 2\nsize 2\n"), err
    assert sorted(hosts.read_text(encoding="utf-8").split()) == [*nodes]
