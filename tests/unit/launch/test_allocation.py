"""The allocation around a process is read from what schedulers put into its environment."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import LaunchError
from workbench.launch import allocation
from workbench.launch.allocation import Allocation, current_allocation, expand

HERE = socket.gethostname()
Slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-4]", ["n1", "n2", "n3", "n4"]),
        ("n[008-011]", ["n008", "n009", "n010", "n011"]),
        ("login1,n[01-02,7],gpu3", ["login1", "n01", "n02", "n7", "gpu3"]),
        ("r[1-2]c[0-1]-ib", ["r1c0-ib", "r1c1-ib", "r2c0-ib", "r2c1-ib"]),
        ("", []),
    ],
)
def test_a_list_of_nodes_is_expanded_in_its_order(nodes, names):
    assert list(expand(nodes)) == names


@given(st.lists(st.integers(0, 99_999), min_size=1, max_size=20, unique=True))
def test_any_numbers_of_nodes_are_expanded(numbers):
    assert list(expand(f"n[{','.join(map(str, numbers))}]")) == [f"n{number}" for number in numbers]


def test_a_job_of_slurm_tells_its_nodes_and_what_each_is_meant_for():
    assert current_allocation(Slurm) == Allocation("slurm", "17", ("n1", "n2"), (2, 2))


def test_unequal_nodes_have_their_own_numbers():
    around = current_allocation(Slurm | {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "3(x2),1"})
    assert around.slots == (3, 3, 1)


def test_a_step_that_tells_of_itself_alone_leaves_the_numbers_open():
    # `srun --pty` on two nodes has SLURM_TASKS_PER_NODE=1.
    assert current_allocation(Slurm | {"SLURM_TASKS_PER_NODE": "1"}).slots == (0, 0)


def test_a_job_of_pbs_tells_them_in_its_file(tmp_path):
    (tmp_path / "nodes").write_text("n2\nn1\nn2\nn1\nn1\n")
    around = current_allocation({"PBS_JOBID": "1.pbshead", "PBS_NODEFILE": str(tmp_path / "nodes")})
    assert around == Allocation("pbs", "1.pbshead", ("n2", "n1"), (2, 3))


def test_a_file_of_nodes_that_is_not_there_is_told_with_what_to_do(tmp_path):
    with pytest.raises(LaunchError):
        current_allocation({"PBS_JOBID": "1.pbshead", "PBS_NODEFILE": str(tmp_path / "none")})


def test_outside_of_a_job_there_is_none():
    assert current_allocation({"SLURM_CONF": "x", "PBS_SERVER": "y"}) is None


@pytest.mark.parametrize(
    ("nodes", "leaves"),
    [
        ((HERE,), False),
        ((f"{HERE}.cluster.example",), False),
        ((HERE, "other"), True),
        (("other",), True),
        (("10.0.0.1",), True),
    ],
)
def test_an_allocation_leaves_this_host_if_it_has_another(nodes, leaves, monkeypatch):
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert Allocation("slurm", "1", nodes, (0,) * len(nodes)).leaves_this_host is leaves


def test_a_node_is_known_by_the_name_that_slurm_has_for_it(monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert not Allocation("slurm", "1", ("n1",), (2,)).leaves_this_host
    for name, value in Slurm.items():
        monkeypatch.setenv(name, value)
    assert allocation.peers() == ["n2"]


def test_who_is_inside_a_job_and_starts_elsewhere_unasked_is_told_of_it(monkeypatch):
    for name, value in Slurm.items():
        monkeypatch.setenv(name, value)
    told = allocation.allocation_hint(None, "slurm")
    assert told.startswith(
        "this process is inside Slurm job 17 (2 nodes: n1, n2), but the cluster starts in a separate job"
    )
    assert told.endswith("--scheduler here.")
    assert "only on this host" in allocation.allocation_hint("auto", "local")
    assert allocation.allocation_hint("slurm", "slurm") == allocation.allocation_hint("here", "here") == ""


@pytest.mark.parametrize(
    ("variables", "of_rank", "of_node"),
    [
        ({}, None, None),
        ({"SLURM_MEM_PER_CPU": "1000"}, 4 * 1000 * 2**20, None),
        ({"SLURM_MEM_PER_NODE": "8000"}, None, 8000 * 2**20),
        ({"SLURM_MEM_PER_NODE": "0"}, None, None),
        ({"SLURM_MEM_PER_CPU": "1000M?", "SLURM_MEM_PER_NODE": "all"}, None, None),
    ],
)
def test_memory_is_what_the_job_has(variables, of_rank, of_node, monkeypatch):
    for name in ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert allocation.memory_of_rank(4) == of_rank
    assert allocation.memory_of_node() == of_node
