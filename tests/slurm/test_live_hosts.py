"""Nodes that are hosts of their own: what the tests on them may rely on."""

from __future__ import annotations

from contextlib import closing

import psutil
import pytest
from support.daemons import running
from support.processes import until
from support.slurm import NAMES, Slurm


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


def test_processes_and_shared_memory_of_one_are_not_seen_on_another(slurm_hosts, output_of):
    assert output_of("touch /dev/shm/left; ls /dev/shm", "--nodelist=n1") == ["left"]
    assert output_of("ls /dev/shm; ps -eo comm= | grep --count '^slurmd$'", "--nodelist=n2") == ["1"]


def test_a_node_that_is_cut_off_lives_on_and_is_found_down(slurm_hosts):
    job = slurm_hosts.submit("sleep 4713", "--nodelist=n3", "--no-requeue")
    until("it to run", lambda: running("4713"))
    slurm_hosts.network.cut_off("n3")
    until("it to be found out", lambda: slurm_hosts.states()["n3"] == "down*")
    assert slurm_hosts.state(job) == "NODE_FAIL"
    assert running("4713")
    slurm_hosts.network.mend("n3")
    slurm_hosts.wait_up("n3")
    until("what it ran to be ended", lambda: not running("4713"))


def test_a_killed_one_takes_all_with_it_and_comes_back_at_its_address(slurm_hosts, output_of):
    slurm_hosts.submit("setsid sleep 4714 & wait", "--nodelist=n4", "--no-requeue")
    until("it to run", lambda: running("4714"))
    slurm_hosts.kill_node("n4")
    assert not running("4714")
    slurm_hosts.start_node("n4")
    slurm_hosts.wait_up("n4")
    assert output_of("hostname", "--nodelist=n4") == ["n4"]


def test_a_closed_one_leaves_no_network():
    before = psutil.net_if_addrs().keys()
    with closing(Slurm(namespaces=True)):
        assert len(psutil.net_if_addrs().keys() - before) == 1
    assert psutil.net_if_addrs().keys() == before
