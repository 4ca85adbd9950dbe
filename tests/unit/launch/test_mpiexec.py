"""Command lines of mpiexec, as text."""

from __future__ import annotations

import dataclasses
import os
import shlex

import pytest

from workbench.launch.mpi_library import MPI, Geometry, WorldCommand, available_cores, has_ulfm, world_command

OPENMPI_5 = MPI("openmpi", (5, 0, 11), "", "/opt/mpi/bin/mpiexec")
OPENMPI_4 = MPI("openmpi", (4, 1, 4), "", "/opt/mpi/bin/mpiexec")
MPICH = MPI("mpich", (4, 2, 1), "", "/opt/mpi/bin/mpiexec")
INTEL = MPI("intelmpi", (2021, 9), "", "/opt/mpi/bin/mpiexec")
ALL = [OPENMPI_5, OPENMPI_4, MPICH, INTEL]
ROOM = Geometry(ranks=4, threads=2, cores=8)
CROWD = Geometry(ranks=4, threads=2, cores=3)
RANK = ("python", "-m", "rank")
THREADS = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    ),
    "2",
)
ULFM = {"PRTE_MCA_state_base_error_non_zero_exit": "0"}


@pytest.mark.parametrize(
    ("mpi", "geometry", "line"),
    [
        (OPENMPI_5, ROOM, "-n 4 --bind-to none --with-ft ulfm"),
        (OPENMPI_5, CROWD, "-n 4 --bind-to none --with-ft ulfm --map-by :oversubscribe"),
        (OPENMPI_4, ROOM, "-n 4 --bind-to none"),
        (OPENMPI_4, CROWD, "-n 4 --bind-to none --oversubscribe"),
        (MPICH, ROOM, "-launcher fork -n 4"),
        (MPICH, CROWD, "-launcher fork -n 4"),
        (INTEL, ROOM, "-launcher fork -n 4"),
        (INTEL, CROWD, "-launcher fork -n 4"),
    ],
)
def test_the_command_line_of_each_mpi(mpi, geometry, line):
    assert shlex.join(world_command(mpi, geometry, RANK).argv) == f"/opt/mpi/bin/mpiexec {line} python -m rank"


@pytest.mark.parametrize(
    ("mpi", "geometry", "environment", "defaults"),
    [
        (OPENMPI_5, ROOM, ULFM, {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}),
        (
            OPENMPI_5,
            CROWD,
            ULFM,
            {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm", "OMPI_MCA_mpi_yield_when_idle": "1"},
        ),
        (OPENMPI_4, ROOM, {}, {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader"}),
        (
            OPENMPI_4,
            CROWD,
            {},
            {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader", "OMPI_MCA_mpi_yield_when_idle": "1"},
        ),
        (MPICH, ROOM, {}, {"UCX_TLS": "^tcp"}),
        (MPICH, CROWD, {}, {"UCX_TLS": "^tcp"}),
        (MPI("mpich", (3, 4, 3), "", ""), ROOM, {}, {}),
        (INTEL, ROOM, {}, {"I_MPI_PIN": "0", "I_MPI_FABRICS": "shm"}),
        (INTEL, CROWD, {}, {"I_MPI_PIN": "0", "I_MPI_FABRICS": "shm", "I_MPI_WAIT_MODE": "1"}),
    ],
)
def test_the_variables_of_each_mpi(mpi, geometry, environment, defaults):
    command = world_command(mpi, geometry, RANK)
    assert command.environment == environment | THREADS
    assert command.defaults == defaults


@pytest.mark.parametrize("mpi", ALL)
def test_root_is_allowed_where_the_mpi_refuses_it(mpi):
    as_user = world_command(mpi, ROOM, RANK)
    as_root = world_command(mpi, Geometry(ranks=4, threads=2, cores=8, root=True), RANK)
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if mpi.flavor == "openmpi" else {}
    assert as_root.environment == as_user.environment | allowed
    assert (as_root.argv, as_root.defaults) == (as_user.argv, as_user.defaults)


@pytest.mark.parametrize(
    ("mpi", "variables"),
    [
        (OPENMPI_5, ["OMPI_MCA_btl_sm_backing_directory", "PRTE_MCA_prte_tmpdir_base"]),
        (OPENMPI_4, ["OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_orte_tmpdir_base"]),
        (MPICH, []),
        (INTEL, []),
    ],
)
def test_shared_memory_is_put_where_it_can_be_removed(mpi, variables):
    there = Geometry(ranks=4, threads=2, cores=8, shared_memory="/there")
    added = dict.fromkeys(variables, "/there")
    assert world_command(mpi, there, RANK).environment == world_command(mpi, ROOM, RANK).environment | added


@pytest.mark.parametrize("mpi", ALL)
def test_more_arguments_come_between_the_options_and_the_command(mpi):
    plain = world_command(mpi, ROOM, RANK)
    more = world_command(mpi, ROOM, RANK, ["--x", "a b"])
    assert more.argv == (*plain.argv[:-3], "--x", "a b", *RANK)


@pytest.mark.parametrize("mpi", ALL)
def test_nothing_of_the_command_is_read_as_an_option_or_by_a_shell(mpi):
    words = ("python", "-c", "print('$HOME'); # -n 9", "", "--n")
    assert world_command(mpi, ROOM, words).argv[-5:] == words


def test_only_open_mpi_from_5_on_survives_a_lost_rank():
    assert [mpi for mpi in ALL if has_ulfm(mpi)] == [OPENMPI_5]
    without = dataclasses.replace(OPENMPI_5, ulfm=False)
    assert "--with-ft" not in world_command(without, CROWD, RANK).argv
    spectrum = MPI("openmpi", (10, 3, 1), "", "/opt/mpi/bin/mpiexec")
    assert world_command(spectrum, CROWD, RANK) == world_command(OPENMPI_4, CROWD, RANK), "IBM's is an Open MPI 4"


def test_settings_of_the_user_win_over_defaults_and_not_over_what_must_be():
    command = WorldCommand((), environment={"MUST": "1"}, defaults={"DEFAULT": "1", "OTHER": "1"})
    theirs = {"DEFAULT": "2", "MUST": "2", "HOME": "/elsewhere"}
    assert command.variables(theirs) == {"DEFAULT": "2", "OTHER": "1", "MUST": "1", "HOME": "/elsewhere"}
    assert theirs == {"DEFAULT": "2", "MUST": "2", "HOME": "/elsewhere"}


def test_a_network_that_the_user_has_chosen_stays():
    chosen = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_pml": "ucx", "OMP_NUM_THREADS": "16"}
    variables = world_command(OPENMPI_5, ROOM, RANK).variables(chosen)
    assert (variables["OMPI_MCA_btl"], variables["OMPI_MCA_pml"]) == ("self,tcp", "ucx")
    # threads were asked for in the request
    assert variables["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize(("ranks", "crowded"), [(1, False), (8, False), (9, True)])
def test_more_ranks_than_cores_are_oversubscribed(ranks, crowded):
    assert Geometry(ranks=ranks, threads=4, cores=8).oversubscribed is crowded


def test_the_geometry_of_this_host_counts_the_cores_that_this_process_may_use(monkeypatch, tmp_path):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert available_cores() == 1
        assert Geometry.here(2, 1) == Geometry(2, 1, cores=1, root=os.geteuid() == 0)
    finally:
        os.sched_setaffinity(0, before)
    assert Geometry.here(2, 1, tmp_path).shared_memory == str(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert Geometry.here(2, 1).root
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not Geometry.here(2, 1).root


def test_a_container_has_as_many_cores_as_it_gets_time_of(monkeypatch):
    monkeypatch.setattr("dask.system._try_extract_cgroup_cpu_quota", lambda: (50_000, 100_000))
    assert available_cores() == 1
    assert Geometry.here(2, 1).oversubscribed


def test_where_nobody_binds_processes_all_cores_count(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert available_cores() == os.cpu_count()
