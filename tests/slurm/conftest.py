"""Live schedulers. Their daemons live for the session, and are in the environment while a module wants them.

A module takes `slurm` or `slurm_hosts`, not both.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import closing

import pytest
from support.patience import DEADLINE
from support.slurm import Slurm, missing


def _leave_out(why):
    if os.environ.get("WORKBENCH_REQUIRE_SLURM"):
        pytest.fail(f"WORKBENCH_REQUIRE_SLURM is set, and {why}")
    pytest.skip(why)


@pytest.fixture(scope="session")
def installed():
    """Required by tests with a separate Slurm."""
    if packages := missing():
        _leave_out(f"there is no live Slurm: apt-get install --no-install-recommends {' '.join(packages)}")


@pytest.fixture(scope="session")
def namespaces(installed):
    """Required by tests with a separate Slurm whose nodes are separate hosts."""
    probe = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=DEADLINE)
    if done.returncode:
        _leave_out(f"nodes cannot be hosts of their own here (it takes root): {done.stderr.strip()}")


@pytest.fixture(scope="session")
def one_host_slurm(installed):
    # Nodes have room for more than one cluster.
    with closing(Slurm(cpus=4)) as slurm:
        yield slurm


@pytest.fixture(scope="session")
def many_hosts_slurm(namespaces):
    # Time for a head to end in order when Slurm cancels its job, as it has by default.
    with closing(Slurm(namespaces=True, cpus=4, kill_wait=30)) as slurm:
        yield slurm


@pytest.fixture(scope="module")
def slurm(one_host_slurm):
    """Four nodes that are this host, under four names."""
    with one_host_slurm.in_environment():
        yield one_host_slurm


@pytest.fixture(scope="module")
def slurm_hosts(many_hosts_slurm):
    """Four nodes that are separate hosts."""
    with many_hosts_slurm.in_environment():
        yield many_hosts_slurm
