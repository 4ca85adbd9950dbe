"""The command line of a world on several nodes, as text, and who starts it."""

from __future__ import annotations

import dataclasses
import os
import shutil
from itertools import pairwise

import dask
import pytest
from support.raised import raises

from workbench.errors import InvalidRequest, LaunchError
from workbench.host import parent_death
from workbench.launch import multinode
from workbench.launch.allocation import Allocation
from workbench.launch.mpi_library import MPI, thread_variables
from workbench.launch.multinode import (
    NodePlacement,
    even_counts,
    interface_of,
    interfaces,
    mpiexec_command,
    packed_counts,
    spread_command,
    srun_command,
)

OPENMPI = MPI("openmpi", (5, 0, 11), "", "/mpi/bin/mpiexec")
OPENMPI4 = MPI("openmpi", (4, 1, 6), "", "/mpi/bin/mpiexec")
MPICH = MPI("mpich", (5, 0, 2), "", "/mpi/bin/mpiexec")
INTELMPI = MPI("intelmpi", (2021, 13), "", "/mpi/bin/mpiexec")
AROUND = Allocation("slurm", "17", ("n1", "n2", "n3", "n4"), (2, 2, 2, 2))
SPREAD = NodePlacement(ranks=8, threads=3, around=AROUND, counts=(2, 2, 2, 2), directory="/data")
SPOKEN = ["none", "pmi2", "pmix", "pmix_v4"]


def changed(**fields):
    return dataclasses.replace(SPREAD, **fields)


@pytest.fixture
def slurm(monkeypatch):
    """Slurm is here as far as command lines go: srun is /bin/srun and has the given interfaces, outside of any job."""
    monkeypatch.delenv("I_MPI_PMI_LIBRARY", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(multinode, "srun_mpi_types", lambda: SPOKEN)


def test_srun_puts_ranks_node_by_node_and_gives_rank_0_the_input():
    command = srun_command("/bin/srun", "pmix", OPENMPI, SPREAD, ["python", "-m", "x"], extra=["--verbose"])
    assert command.argv[:1] == ("/bin/srun",)
    assert command.argv[-4:] == ("--verbose", "python", "-m", "x")
    assert {
        "--mpi=pmix", "--nodes=4", "--ntasks=8", "--ntasks-per-node=2", "--cpus-per-task=3", "--distribution=block",
        "--input=0", "--kill-on-bad-exit=1", "--chdir=/data", "--cpu-bind=none",
    } < set(command.argv)  # fmt: skip
    assert "--overcommit" not in command.argv
    assert command.environment["OMP_NUM_THREADS"] == "3"


def test_gpus_of_which_slurm_has_reserved_another_number_on_each_node_are_refused_with_what_to_do(monkeypatch):
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "1")
    around = dataclasses.replace(AROUND, slots=(2, 2, 2, 1))
    uneven = changed(ranks=7, around=around, counts=(2, 2, 2, 1), gpus=1)
    with raises(LaunchError, option="nodes"):
        mpiexec_command(OPENMPI, uneven, ["x"])
    assert mpiexec_command(OPENMPI, changed(ranks=7, counts=(2, 2, 2, 1), gpus=1), ["x"]).environment["SLURM_GRES"]
    assert srun_command("srun", "pmi2", MPICH, uneven, ["x"]).argv
    monkeypatch.delenv("SLURM_GPUS_PER_TASK")  # the user has requested GPUs per node
    assert mpiexec_command(OPENMPI, uneven, ["x"]).environment["SLURM_GRES"] == "gpu:2"


def test_srun_gets_the_names_of_nodes_that_are_not_the_first_ones():
    later = changed(first=False, ranks=4, counts=(2, 2))
    assert "--nodelist=n1,n2" in srun_command("srun", "pmi2", MPICH, later, ["x"]).argv
    assert not any(word.startswith("--nodelist") for word in srun_command("srun", "pmi2", MPICH, SPREAD, ["x"]).argv)


@pytest.mark.parametrize("slots", [(1, 1, 1, 1), (0, 0, 0, 0)])
def test_more_ranks_than_a_node_is_meant_for_are_asked_for_loudly(slots):
    around = dataclasses.replace(AROUND, slots=slots)
    assert "--overcommit" in srun_command("srun", "pmix", OPENMPI, changed(around=around), ["x"]).argv
    assert "ppr:2:node:oversubscribe" in mpiexec_command(OPENMPI, changed(around=around), ["x"]).argv


def test_ranks_yield_their_cores_only_where_there_are_surely_too_few():
    def defaults(slots):
        spread = changed(around=dataclasses.replace(AROUND, slots=slots))
        return mpiexec_command(OPENMPI, spread, ["x"]).defaults

    assert defaults((1, 1, 1, 1))["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert "OMPI_MCA_mpi_yield_when_idle" not in defaults((0, 0, 0, 0)) | defaults((2, 2, 2, 2))


def test_open_mpi_chooses_its_network_by_itself_on_several_nodes():
    command = mpiexec_command(OPENMPI, SPREAD, ["x"])
    assert command.argv == (
        "/mpi/bin/mpiexec", "-n", "8", "--map-by", "ppr:2:node", "--bind-to", "none", "--wdir", "/data", "x",
    )  # fmt: skip
    assert "OMPI_MCA_btl" not in command.defaults


def test_open_mpi_opens_nothing_for_networks_that_the_nodes_do_not_have():
    command = mpiexec_command(OPENMPI, changed(fabric=False), ["x"])
    assert command.defaults["OMPI_MCA_btl"] == "^ofi"
    assert command.variables({"OMPI_MCA_btl": "self,tcp"})["OMPI_MCA_btl"] == "self,tcp"
    assert "OMPI_MCA_btl" not in mpiexec_command(MPICH, changed(fabric=False), ["x"]).defaults


@pytest.mark.parametrize(
    ("mpi", "names"),
    [
        (OPENMPI, ("PRTE_MCA_prte_if_include", "PRTE_MCA_plm_ssh_agent", "PRTE_MCA_prte_tmpdir_base")),
        (OPENMPI4, ("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_plm_rsh_agent", "OMPI_MCA_orte_tmpdir_base")),
    ],
)
def test_interface_agent_and_session_folder_reach_open_mpi_by_its_variables(mpi, names):
    spread = changed(interface="ib0", agent="/bin/agent", session="/shm/w")
    command = mpiexec_command(mpi, spread, ["x"])
    variables = command.environment | command.defaults
    assert [variables[name] for name in names] == ["ib0", "/bin/agent", "/shm/w"]
    assert variables["OMPI_MCA_btl_tcp_if_include"] == "ib0"
    assert "--leave-session-attached" in command.argv
    assert "--leave-session-attached" not in mpiexec_command(mpi, SPREAD, ["x"]).argv


@pytest.mark.parametrize("mpi", [MPICH, INTELMPI])
def test_interface_and_agent_reach_hydra_by_its_options(mpi):
    command = mpiexec_command(mpi, changed(interface="ib0", agent="/bin/agent"), ["x"])
    assert command.argv == (
        "/mpi/bin/mpiexec", "-n", "8", "-ppn", "2", "-wdir", "/data", "-iface", "ib0", "-launcher", "rsh",
        "-launcher-exec", "/bin/agent", "x",
    )  # fmt: skip


@pytest.mark.parametrize("agent", [None, "/bin/agent"])
def test_open_mpi_hands_on_in_a_job_of_pbs_what_is_neither_the_nodes_own_nor_its_own(monkeypatch, agent):
    wanted = {"DASK_CONFIG", "LD_LIBRARY_PATH"}
    others = {"BASH_FUNC_ml%%", "HOSTNAME", "TMPDIR", "CUDA_VISIBLE_DEVICES", "PBS_NODEFILE", "PRTE_MCA_x"}
    monkeypatch.setattr(os, "environ", dict.fromkeys(wanted | others, "1"))
    pbs = changed(around=dataclasses.replace(AROUND, scheduler="pbs"), agent=agent)

    def handed_on(mpi, spread):
        argv = mpiexec_command(mpi, spread, ["x"]).argv
        return {name for option, name in pairwise(argv) if option == "-x"}

    assert handed_on(OPENMPI, pbs) == handed_on(OPENMPI4, pbs) == wanted | set(thread_variables(3))
    # Hydra hands on everything, and so does Slurm to the daemons of Open MPI.
    assert handed_on(MPICH, pbs) == handed_on(INTELMPI, pbs) == handed_on(OPENMPI, SPREAD) == set()


PBS = Allocation("pbs", "17.pbs", ("n1", "n2"), (4, 4))


@pytest.mark.parametrize(
    ("mpi", "fields", "guarded"),
    [
        (OPENMPI, {}, True),
        (OPENMPI, {"around": PBS, "agent": "/bin/agent"}, True),
        (OPENMPI, {"around": PBS}, False),
        (OPENMPI4, {}, False),
        (MPICH, {}, False),
    ],
    ids=["by srun", "by an agent", "by ssh", "Open MPI 4", "Hydra"],
)
def test_the_launcher_is_guarded_on_all_nodes_where_its_daemons_can_be(monkeypatch, mpi, fields, guarded):
    monkeypatch.delenv("PRTE_MCA_plm", raising=False)
    command = mpiexec_command(mpi, changed(guard="/record/hosts-0", **fields), ["x"])
    assert command.guard == ("/record/hosts-0" if guarded else None)
    daemon = command.environment.get("PRTE_MCA_prte_launch_agent")
    assert daemon == (" ".join([*parent_death.daemon_command_line("/record/hosts-0"), "prted"]) if guarded else None)
    without = mpiexec_command(mpi, changed(**fields), ["x"])
    assert without.guard is None
    assert "PRTE_MCA_prte_launch_agent" not in without.environment


def test_daemons_that_the_user_has_ssh_start_are_not_guarded(monkeypatch):
    monkeypatch.setenv("PRTE_MCA_plm", "ssh")
    assert mpiexec_command(OPENMPI, changed(guard="/record/hosts-0"), ["x"]).guard is None


def test_a_daemon_whose_guard_has_blanks_in_its_path_is_refused_in_words():
    with raises(LaunchError, option="workbench.mpi.guard"):
        mpiexec_command(OPENMPI, changed(guard="/my record"), ["x"])


def test_what_srun_starts_is_not_guarded():
    command = srun_command("/bin/srun", "pmi2", MPICH, changed(guard="/record/hosts-0"), ["x"])
    assert command.guard is None


def test_daemons_that_srun_starts_get_the_gpus_of_all_ranks_of_their_node():
    assert "SLURM_GRES" not in mpiexec_command(OPENMPI, SPREAD, ["x"]).environment
    for mpi in (OPENMPI, MPICH):
        assert mpiexec_command(mpi, changed(gpus=3), ["x"]).environment["SLURM_GRES"] == "gpu:6"
    # srun gives each rank the GPUs of one task.
    assert "SLURM_GRES" not in srun_command("/bin/srun", "pmi2", MPICH, changed(gpus=3), ["x"]).environment


def test_daemons_that_srun_starts_get_the_environment_of_the_head():
    """A site may submit jobs with ``--export=NONE``, which srun in the job would then apply, too."""
    for mpi in (OPENMPI, MPICH):
        assert mpiexec_command(mpi, SPREAD, ["x"]).environment["SLURM_EXPORT_ENV"] == "ALL"
    assert "SLURM_EXPORT_ENV" not in mpiexec_command(OPENMPI, changed(around=PBS), ["x"]).environment


def test_root_tells_open_mpi_that_it_means_it():
    assert "OMPI_ALLOW_RUN_AS_ROOT" in mpiexec_command(OPENMPI, changed(root=True), ["x"]).environment
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in mpiexec_command(OPENMPI, SPREAD, ["x"]).environment


@pytest.mark.parametrize(
    ("mpi", "spoken", "interface"),
    [
        (OPENMPI, SPOKEN, "pmix"),
        (OPENMPI, ["none", "pmi2"], None),
        (MPICH, SPOKEN, "pmi2"),
        (MPICH, ["none"], None),
        (INTELMPI, SPOKEN, None),
    ],
)
def test_srun_is_paired_with_the_interface_that_the_mpi_speaks(mpi, spoken, interface):
    assert interface_of(mpi, spoken) == interface


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "MPI plugin types are...\n\tcray_shasta\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions: pmix_v4\n",
            ["cray_shasta", "none", "pmi2", "pmix"],
        ),
        ("srun: MPI types are...\nsrun: pmix_v3\nsrun: pmi2\nsrun: none\nsrun: pmix\n",
         ["pmix_v3", "pmi2", "none", "pmix"]),
        ("", []),
        ("srun: fatal: Could not establish a configuration source", []),
    ],
)  # fmt: skip
def test_what_srun_speaks_is_read_from_what_it_lists(text, names):
    assert interfaces(text) == names


@pytest.mark.usefixtures("slurm")
def test_in_a_job_of_slurm_srun_starts_the_ranks_of_mpich():
    assert spread_command(MPICH, SPREAD, ["x"]).argv[:2] == ("/bin/srun", "--mpi=pmi2")


@pytest.mark.usefixtures("slurm")
def test_ranks_of_open_mpi_are_started_by_its_own_mpiexec_unless_srun_is_asked_for():
    assert spread_command(OPENMPI, SPREAD, ["x"]).argv[0] == "/mpi/bin/mpiexec"
    with dask.config.set({"workbench.mpi.launcher": "srun"}):
        assert spread_command(OPENMPI, SPREAD, ["x"]).argv[:2] == ("/bin/srun", "--mpi=pmix")


@pytest.mark.usefixtures("slurm")
def test_srun_starts_ranks_of_intel_mpi_where_they_are_told_its_library(monkeypatch):
    assert spread_command(INTELMPI, SPREAD, ["x"]).argv[0] == "/mpi/bin/mpiexec"
    monkeypatch.setenv("I_MPI_PMI_LIBRARY", "/usr/lib/libpmi2.so")
    assert spread_command(INTELMPI, SPREAD, ["x"]).argv[:2] == ("/bin/srun", "--mpi=pmi2")


def test_ranks_are_shared_out_so_that_no_node_is_left_empty():
    assert even_counts(9, 4) == (3, 2, 2, 2)
    assert even_counts(8, 3) == (3, 3, 2)
    assert even_counts(2, 4) == (1, 1)


def test_an_allocation_of_somebody_elses_is_filled_node_by_node():
    assert packed_counts(5, (4, 1)) == (4, 1)
    assert packed_counts(3, (2, 2, 2)) == (2, 1)


@pytest.mark.parametrize(
    ("mpi", "options"),
    [
        (OPENMPI, ("--host", "n1:3,n2:2,n3:2,n4:2", "--map-by", "slot:oversubscribe")),
        (MPICH, ("-hosts", "n1:3,n2:2,n3:2,n4:2")),
    ],
)
def test_uneven_shares_are_told_node_by_node(mpi, options):
    argv = mpiexec_command(mpi, changed(ranks=9, counts=(3, 2, 2, 2)), ["x"]).argv
    assert options == argv[argv.index(options[0]) :][: len(options)]
    srun = srun_command("srun", "pmi2", mpi, changed(ranks=9, counts=(3, 2, 2, 2)), ["x"]).argv
    assert {"--nodes=4", "--ntasks=9"} < set(srun)
    assert not any(word.startswith("--ntasks-per-node") for word in srun)


@pytest.mark.usefixtures("slurm")
def test_mpiexec_does_where_srun_does_not_speak_the_interface(monkeypatch):
    monkeypatch.setattr(multinode, "srun_mpi_types", lambda: ["none", "pmix"])
    assert spread_command(MPICH, SPREAD, ["x"]).argv[0] == "/mpi/bin/mpiexec"
    with (
        dask.config.set({"workbench.mpi.launcher": "srun"}),
        raises(InvalidRequest, option="workbench.mpi.launcher", given="srun"),
    ):
        spread_command(MPICH, SPREAD, ["x"])


@pytest.mark.usefixtures("slurm")
def test_each_has_arguments_of_its_own():
    with dask.config.set({"workbench.mpi.srun-args": ["--one"], "workbench.mpi.extra-args": ["--two"]}):
        assert "--one" in spread_command(MPICH, SPREAD, ["x"]).argv
        assert "--two" not in spread_command(MPICH, SPREAD, ["x"]).argv
        assert "--two" in spread_command(OPENMPI, SPREAD, ["x"]).argv


@pytest.mark.usefixtures("slurm")
def test_outside_of_slurm_it_is_mpiexec():
    pbs = changed(around=dataclasses.replace(AROUND, scheduler="pbs"))
    assert spread_command(MPICH, pbs, ["x"]).argv[0] == "/mpi/bin/mpiexec"


def test_an_unknown_launcher_is_refused_with_those_there_are():
    with (
        dask.config.set({"workbench.mpi.launcher": "mpirun"}),
        raises(InvalidRequest, option="workbench.mpi.launcher", allowed=("auto", "srun", "mpiexec")),
    ):
        spread_command(OPENMPI, SPREAD, ["x"])
