"""Variables that a new job must not inherit: the identity of an enclosing job, step or rank.

A kernel often runs inside a batch job, a ``srun`` step or under ``mpiexec``. An MPI world that inherits these
variables joins the enclosing job, hangs or aborts. This explicit list removes them; the settings of the user
(``SLURM_CONF``, ``SBATCH_ACCOUNT``, ``OMPI_MCA_btl`` and so on) stay.
"""

from __future__ import annotations

from collections.abc import Mapping

_JOB_PREFIXES = (
    # Slurm: of the job, of the task of a job array, and of the component of a heterogeneous job
    "SLURM_JOB",
    "SLURM_ARRAY_",
    "SLURM_HET_",
    "SLURM_MEM_PER_",
    "SLURM_NTASKS",
    "SLURM_TASKS_PER_",
    "SLURM_CPUS_",
    "SLURM_GPUS",
    "SLURM_TRES_PER_",
    # PBS: of the job, and of the task of a job array
    "PBS_JOB",
    "PBS_ARRAY",
    # LSF, Cobalt
    "LSB_JOB",
    "LSB_BATCH_",
    "LSB_DJOB_",
    "LSB_SUB_",
    "COBALT_JOB",
)
_JOB_NAMES = frozenset(
    {
        "SLURM_NPROCS",
        "SLURM_NNODES",
        "SLURM_NODELIST",
        "SLURM_NODE_ALIASES",
        "SLURM_PRIO_PROCESS",
        "SLURM_SUBMIT_DIR",
        "SLURM_SUBMIT_HOST",
        "SLURM_THREADS_PER_CORE",
        "SLURM_WORKING_CLUSTER",
        "SLURMD_NODENAME",
        "PBS_ENVIRONMENT",
        "PBS_MOMPORT",
        "PBS_NODEFILE",
        # LSF, Cobalt, Grid Engine: by which Open MPI and Hydra know them and their nodes
        "LSB_HOSTS",
        "LSB_MCPU_HOSTS",
        "COBALT_NODEFILE",
        "COBALT_PARTNAME",
        "PE_HOSTFILE",
        # ... of the task, which stay in a job: pbs_tmrsh and Open MPI start processes on other nodes by all of these
        "PBS_NODENUM",
        "PBS_TASKNUM",
        "PBS_VNODENUM",
    }
)
_RANK_PREFIXES = (
    # Slurm: of the step and its tasks
    "SLURM_STEP",
    "SLURM_SRUN_COMM_",
    "SLURM_CPU_BIND",
    "SLURM_MEM_BIND",
    "SLURM_TOPOLOGY_ADDR",
    "SLURM_PMI",
    # PMI 1 and 2 (MPICH, Intel MPI), PMIx (Open MPI)
    "PMI_",
    "PMIX_SERVER",
    "PMIX_DSTORE_",
    # Open MPI: of the rank and its launcher
    "OMPI_COMM_WORLD_",
    "OMPI_MCA_ess",
    "OMPI_MCA_orte_",
    "PRTE_MCA_ess",
    "PRTE_MCA_prte_",
    # MVAPICH, PALS and Slingshot (HPE Cray), ALPS, Flux, jsrun
    "MV2_COMM_WORLD_",
    "MPISPAWN_",
    "PALS_AP",
    "PALS_LOCAL_",
    "SLINGSHOT_",
    "ALPS_APP_",
    "FLUX_JOB_",
    "FLUX_TASK_",
    "JSM_NAMESPACE_",
)
_RANK_NAMES = frozenset(
    {
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_GTIDS",
        "SLURM_TASK_PID",
        "SLURM_DISTRIBUTION",
        "SLURM_LAUNCH_NODE_IPADDR",
        "SLURM_MPI_TYPE",
        "SLURM_UMASK",
        "PMIX_RANK",
        "PMIX_NAMESPACE",
        "PMIX_SECURITY_MODE",
        "PMIX_GDS_MODULE",
        "PMIX_BFROP_BUFFER_TYPE",
        "PMIX_HOSTNAME",
        "PMIX_VERSION",
        "PMIX_ID",
        "PMIX_REINCARNATION",
        "PMIX_SYSTEM_TMPDIR",
        "PMIX_KEEPALIVE_PIPE",
        "OMPI_APP_CTX_NUM_PROCS",
        "OMPI_ARGV",
        "OMPI_MCA_initial_wdir",
        "OMPI_MCA_num_procs",
        "OMPI_COMMAND",
        "OMPI_FILE_LOCATION",
        "OMPI_FIRST_RANKS",
        "OMPI_NUM_APP_CTX",
        "OMPI_UNIVERSE_SIZE",
        "OMPI_WORLD_LOCAL_SIZE",
        "OMPI_WORLD_SIZE",
        "PRTE_LAUNCHED",
        # ... by which a rank skips reading the parameter files
        "OPAL_USER_PARAMS_GIVEN",
        "PMIX_PARAM_FILE_PASSED",
        # Hydra (MPICH, Intel MPI)
        "HYDI_CONTROL_FD",
        "HYDRA_PROXY_ID",
        "MPI_LOCALNRANKS",
        "MPI_LOCALRANKID",
        "MPIEXEC_HOSTNAME",
        # PALS, MPT, Flux
        "PALS_FD",
        "PALS_NODEID",
        "PALS_RANKID",
        "PALS_SPOOL_DIR",
        "MPT_LOCAL_RANK",
        "FLUX_KVS_NAMESPACE",
        "FLUX_PMI_LIBRARY_PATH",
        # the guard of the enclosing world
        "WORKBENCH_GUARD",
    }
)


def scrub(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Remove the identity of an enclosing job, step or rank from an environment.

    Parameters
    ----------
    environment
        Variables by name.

    Returns
    -------
    kept : dict of str to str
        The variables for the new job.
    removed : list of str
        Names of the removed variables, sorted, for the log.

    Examples
    --------
    >>> scrub({"SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm.conf"})
    ({'SLURM_CONF': '/etc/slurm.conf'}, ['SLURM_JOB_ID'])
    """
    # Of Grid Engine. Alone it is a variable of another program.
    grid_engine = {"JOB_ID"} if any(name == "PE_HOSTFILE" or name.startswith("SGE_") for name in environment) else set()
    return _without(environment, _JOB_PREFIXES + _RANK_PREFIXES, _JOB_NAMES | _RANK_NAMES | grid_engine)


def scrub_rank(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Remove the identity of an enclosing step or rank from an environment, but not that of the job; as `scrub`.

    Examples
    --------
    >>> scrub_rank({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"})
    ({'SLURM_JOB_ID': '7'}, ['SLURM_PROCID'])
    """
    return _without(environment, _RANK_PREFIXES, _RANK_NAMES)


def _without(
    environment: Mapping[str, str], prefixes: tuple[str, ...], names: frozenset[str]
) -> tuple[dict[str, str], list[str]]:
    removed = sorted(name for name in environment if name in names or name.startswith(prefixes))
    return {name: value for name, value in environment.items() if name not in set(removed)}, removed
