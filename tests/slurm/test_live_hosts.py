"""Nodes that are separate hosts: what the tests on them may rely on."""

from __future__ import annotations

import sys
from contextlib import closing
from importlib import metadata
from pathlib import Path

import psutil
import pytest
from support.daemons import running
from support.netns import Network
from support.processes import until
from support.slurm import NAMES, Slurm

# Processes of Open MPI 5 that srun has started by PMIx die in MPI_Init now and then: open-mpi/ompi issues 12495, 13559.
LAUNCHERS = [f"{Path(sys.executable).parent / 'mpiexec'} -n 8 --bind-to none"]
if any(metadata.distributions(name="mpich")):
    LAUNCHERS.append("srun --mpi=pmi2")
WORLD = """
from os import uname
from mpi4py.MPI import COMM_WORLD
names = COMM_WORLD.gather(uname().nodename)
print(*sorted(names or ()))
"""


@pytest.fixture
def another(namespaces):
    with closing(Slurm(namespaces=True, patience=2)) as slurm:
        yield slurm


@pytest.fixture
def output_of(slurm_hosts, tmp_path):
    def output_of(text, *options):
        job = slurm_hosts.submit(text, f"--output={tmp_path / 'out'}", *options)
        until(f"job {job} to end", lambda: slurm_hosts.state(job) == "COMPLETED")
        return (tmp_path / "out").read_text().split()

    return output_of


def test_each_has_its_name_and_its_address(slurm_hosts, output_of):
    assert sorted(output_of("srun hostname", "--nodes=4")) == sorted(NAMES)
    found = output_of("srun bash -c 'echo $(hostname)=$(ip -4 -brief address show eth0)'", "--nodes=4")
    for name in NAMES:
        assert f"{slurm_hosts.network.addresses[name]}/24" in found


def test_they_find_each_other_by_name(slurm_hosts, output_of):
    names = ("n4", slurm_hosts.network.host)
    assert output_of(f"getent ahostsv4 {' '.join(names)} | grep STREAM | cut -d' ' -f1", "--nodelist=n1") == [
        slurm_hosts.network.addresses["n4"], slurm_hosts.network.gateway,
    ]  # fmt: skip


def test_processes_and_shared_memory_and_temporary_files_of_one_are_not_seen_on_another(output_of):
    leave = "touch /dev/shm/left $TMPDIR/too"
    look = "ls /dev/shm; srun sh -c 'ls $TMPDIR'"
    assert {"left", "too"} <= {*output_of(f"{leave}; {look}", "--nodelist=n1")}
    assert not {"left", "too"} & {*output_of(look, "--nodelist=n2")}
    assert output_of("ps -eo comm= | grep --count '^slurmd$'", "--nodelist=n2") == ["1"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_mpi_world_spans_them(output_of, monkeypatch, launcher):
    # More processes than cores, and as root.
    for name in ("MCA_mpi_yield_when_idle", "ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(f"OMPI_{name}", "1")
    command = f"{launcher} {sys.executable} -c '{WORLD}'"
    assert output_of(command, "--nodes=4", "--ntasks=8", "--ntasks-per-node=2") == sorted(2 * NAMES)


@pytest.mark.long
def test_a_node_that_is_cut_off_lives_on_and_is_found_down(another):
    job = another.submit("sleep 4713", "--nodelist=n3", "--no-requeue")
    until("it to run", lambda: running("4713"))
    another.network.cut_off("n3")
    until("it to be found out", lambda: another.states()["n3"] == "down*")
    assert another.state(job) == "NODE_FAIL"
    assert running("4713")
    another.network.mend("n3")
    another.wait_up("n3")
    until("what it ran to be ended", lambda: not running("4713"))


def test_a_killed_one_takes_all_with_it_and_comes_back_at_its_address(slurm_hosts, output_of):
    slurm_hosts.submit("setsid sleep 4714 & wait", "--nodelist=n4", "--no-requeue")
    until("it to run", lambda: running("4714"))
    slurm_hosts.kill_node("n4")
    assert not running("4714")
    slurm_hosts.start_node("n4")
    slurm_hosts.wait_up("n4")
    assert output_of("hostname", "--nodelist=n4") == ["n4"]


def test_a_closed_one_leaves_no_network(namespaces, tmp_path):
    before = psutil.net_if_addrs().keys()
    (tmp_path / "log").mkdir()
    with closing(Network(tmp_path, NAMES, "host", {})) as network:
        node = network.boot("n1", ["sleep", "infinity"], tmp_path / "log" / "n1")
        assert len(psutil.net_if_addrs().keys() - before) == 1
        node.kill()
    assert psutil.net_if_addrs().keys() == before
