"""A new job takes the settings of the user along and leaves the identity of what is around it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.patience import DEADLINE

from workbench.launch.allocation import scrub, scrub_rank
from workbench.launch.mpi_library import Geometry, find, world_command

IDENTITY_NAMES = """
SLURM_JOB_ID SLURM_JOBID SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES SLURM_JOB_PARTITION SLURM_JOB_CPUS_PER_NODE
SLURM_STEP_ID SLURM_STEPID SLURM_STEP_NODELIST SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE SLURM_STEP_LAUNCHER_PORT
SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_GTIDS SLURM_TASK_PID SLURM_NTASKS SLURM_NPROCS SLURM_NNODES
SLURM_NODELIST SLURM_TASKS_PER_NODE SLURM_CPUS_ON_NODE SLURM_CPUS_PER_TASK SLURM_MEM_PER_NODE SLURM_CPU_BIND
SLURM_CPU_BIND_TYPE SLURM_SRUN_COMM_HOST SLURM_SRUN_COMM_PORT SLURM_DISTRIBUTION SLURM_MPI_TYPE SLURMD_NODENAME
SLURM_PMIX_MAPPING_SERV SLURM_PMI2_PROC_MAPPING SLURM_LAUNCH_NODE_IPADDR SLURM_TOPOLOGY_ADDR SLURM_GPUS_ON_NODE
PMI_RANK PMI_SIZE PMI_FD PMI_PORT PMI_ID PMI_SPAWNED PMI_SHARED_SECRET PMI_HOSTNAME
PMIX_RANK PMIX_NAMESPACE PMIX_SERVER_URI PMIX_SERVER_URI41 PMIX_SERVER_TMPDIR PMIX_SECURITY_MODE
PMIX_DSTORE_ESH_BASE_PATH
OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_NODE_RANK OMPI_UNIVERSE_SIZE
OMPI_MCA_orte_hnp_uri OMPI_MCA_ess OMPI_MCA_ess_base_jobid OMPI_MCA_num_procs PRTE_MCA_ess_base_vpid PRTE_LAUNCHED
MPI_LOCALRANKID MPI_LOCALNRANKS MPIEXEC_HOSTNAME HYDI_CONTROL_FD
SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_ARRAY_TASK_COUNT SLURM_HET_SIZE PBS_ARRAY_ID PBS_ARRAY_INDEX PBS_ARRAYID
PALS_APID PALS_APINFO PALS_FD PALS_NODEID PALS_RANKID PALS_LOCAL_RANKID PALS_SPOOL_DIR SLINGSHOT_VNIS SLINGSHOT_SVC_IDS
FLUX_JOB_ID FLUX_TASK_RANK FLUX_TASK_LOCAL_ID FLUX_KVS_NAMESPACE LSB_JOBID LSB_HOSTS LSB_MCPU_HOSTS LSB_DJOB_HOSTFILE
JSM_NAMESPACE_RANK JSM_NAMESPACE_LOCAL_RANK MV2_COMM_WORLD_RANK MV2_COMM_WORLD_LOCAL_RANK MPISPAWN_ID MPT_LOCAL_RANK
ALPS_APP_PE ALPS_APP_ID COBALT_JOBID COBALT_NODEFILE PE_HOSTFILE
PBS_JOBID PBS_NODEFILE PBS_ENVIRONMENT PBS_JOBNAME PBS_JOBDIR PBS_TASKNUM PBS_NODENUM
"""
SETTING_NAMES = """
PATH HOME USER LD_LIBRARY_PATH VIRTUAL_ENV CONDA_PREFIX PYTHONPATH OMP_NUM_THREADS CUDA_VISIBLE_DEVICES
SLURM_CONF SLURM_CLUSTERS SBATCH_ACCOUNT SBATCH_PARTITION SALLOC_ACCOUNT SQUEUE_FORMAT SACCT_FORMAT SLURM_TIME_FORMAT
OMPI_MCA_btl OMPI_MCA_pml OMPI_MCA_btl_tcp_if_include OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
PRTE_MCA_rmaps_default_mapping_policy PMIX_MCA_gds UCX_TLS FI_PROVIDER I_MPI_FABRICS I_MPI_PMI_LIBRARY
MPICH_ASYNC_PROGRESS PALS_PPN PALS_CPU_BIND FLUX_URI FLUX_MODULE_PATH LSB_DEFAULTQUEUE COBALT_CONFIG_FILES SGE_ROOT
PBS_CONF_FILE PBS_DEFAULT PBS_SERVER DASK_CONFIG JOB_ID JUPYTER_DATA_DIR DASK_WORKBENCH__IDLE_TIMEOUT
"""
IDENTITY = IDENTITY_NAMES.split()
SETTINGS = SETTING_NAMES.split()


@pytest.mark.parametrize("name", IDENTITY)
def test_the_identity_of_a_job_step_or_rank_goes(name):
    assert scrub({name: "1"}) == ({}, [name])


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_the_user_stays(name):
    assert scrub({name: "1"}) == ({name: "1"}, [])


@pytest.mark.parametrize("name", ["PBS_JOBID", "PBS_JOBCOOKIE", "PBS_NODENUM", "PBS_TASKNUM", "PBS_MOMPORT"])
def test_by_what_pbs_starts_processes_on_other_nodes_of_the_job_a_launcher_there_keeps(name):
    assert scrub_rank({name: "1", "PMI_RANK": "0"}) == ({name: "1"}, ["PMI_RANK"])
    assert scrub({name: "1"}) == ({}, [name])


@pytest.mark.parametrize("name", ["PE_HOSTFILE", "SGE_TASK_ID"])
def test_the_job_id_of_grid_engine_goes_and_that_of_another_program_stays(name):
    assert "JOB_ID" in scrub({"JOB_ID": "7", name: "1"})[1]
    assert scrub({"JOB_ID": "7", "CI": "1"}) == ({"JOB_ID": "7", "CI": "1"}, [])


def test_what_was_removed_is_listed_in_order_and_the_rest_keeps_its():
    environment = {"SLURM_CONF": "c", "PMI_RANK": "0", "A": "a", "OMPI_COMM_WORLD_RANK": "0"}
    kept, removed = scrub(environment)
    assert list(kept) == ["SLURM_CONF", "A"]
    assert removed == ["OMPI_COMM_WORLD_RANK", "PMI_RANK"]


@given(st.dictionaries(st.sampled_from([*IDENTITY, *SETTINGS]) | st.text(), st.text()))
def test_each_variable_is_kept_unchanged_or_listed(environment):
    before = dict(environment)
    kept, removed = scrub(environment)
    assert kept | {name: environment[name] for name in removed} == environment == before
    assert not set(kept) & set(removed)
    assert scrub(kept) == (kept, [])


def test_nothing_by_which_mpiexec_tells_a_rank_apart_is_left():
    show = (sys.executable, "-S", "-c", "import json, os; print(json.dumps(dict(os.environ)))")
    command = world_command(find(), Geometry.here(1, 1), show)
    outside, _ = scrub(os.environ)
    done = subprocess.run(
        command.argv, env=command.variables(outside), capture_output=True, text=True, timeout=DEADLINE, check=True
    )
    inside = json.loads(done.stdout)
    kept, removed = scrub(inside)
    told = re.compile(r"RANK|SIZE|NUM_PROCS|NAMESPACE|SERVER|_URI|_FD$|WORLD|JOB")
    assert [name for name in removed if told.search(name)]
    assert [name for name in kept if name not in outside and told.search(name)] == []
