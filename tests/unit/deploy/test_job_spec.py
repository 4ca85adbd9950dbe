"""The ranks of a job are placed on its nodes as its scheduler has allotted the cores and the memory."""

from __future__ import annotations

import shutil
from itertools import pairwise

import pytest

from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job_spec import world_line
from workbench.deploy.record import Record
from workbench.launch.allocation import Allocation
from workbench.launch.mpi_library import MPI

MPICH = MPI("mpich", (5, 0, 2), "", "/mpi/bin/mpiexec")


@pytest.fixture(autouse=True)
def _no_commands(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)


def hosts(tmp_path, scheduler, ranks, slots, *, threads=1):
    """Return the options of Hydra for nodes n1, n2, ... with these slots."""
    around = Allocation(scheduler, "17", tuple(f"n{i + 1}" for i in range(len(slots))), slots)
    record = Record("job", ranks, scheduler=scheduler, spread=True, threads=threads)
    command = world_line(
        record, ClusterFolder.of(record), MPICH, index=0, ranks=ranks, timeout=9.0, shared_memory=tmp_path,
        log=tmp_path, allocation=around,
    )  # fmt: skip
    return {option: value for option, value in pairwise(command.argv) if option in ("-n", "-ppn", "-hosts")}


@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "here"])
@pytest.mark.parametrize(
    ("slots", "placed"),
    [
        # PBS, 10 ranks of --ranks-per-node 4: select=2:ncpus=4:mpiprocs=4+1:ncpus=2:mpiprocs=2
        ((4, 4, 2), {"-ppn": "4"}),
        # Slurm without --nodes fills each node before the next
        ((3, 3, 3, 1), {"-ppn": "3"}),
        ((3, 2, 3, 2), {"-hosts": "n1:3,n2:2,n3:3,n4:2"}),
        # a job without --nodes runs where cores are free
        ((2, 8), {"-hosts": "n1:2,n2:8"}),
    ],
)
def test_each_node_gets_the_ranks_for_which_it_has_cores_and_memory(tmp_path, scheduler, slots, placed):
    assert hosts(tmp_path, scheduler, 10, slots) == {"-n": "10", **placed}


def test_slots_that_do_not_count_the_ranks_of_a_job_do_not_place_them(tmp_path):
    # A job with more cores than ranks: a rank has two here.
    assert hosts(tmp_path, "pbs", 4, (4, 4), threads=2) == {"-n": "4", "-ppn": "2"}
    # Slurm does not report its tasks per node in each case.
    assert hosts(tmp_path, "slurm", 4, (0, 0)) == {"-n": "4", "-ppn": "2"}


def test_fewer_ranks_than_an_existing_allocation_has_slots_fill_its_first_nodes(tmp_path):
    assert hosts(tmp_path, "here", 4, (3, 3, 3)) == {"-n": "4", "-ppn": "3"}


@pytest.mark.parametrize(("ranks", "slots", "per_node"), [(4, (8, 8), "2"), (4, (2, 2), "2"), (16, (8, 8), "8")])
def test_a_rank_of_several_threads_uses_as_many_slots_if_an_existing_allocation_has_them(
    tmp_path, ranks, slots, per_node
):
    assert hosts(tmp_path, "here", ranks, slots, threads=4) == {"-n": str(ranks), "-ppn": per_node}
