"""The allocation that this process runs in: the job of a batch scheduler, its nodes, and its variables.

A kernel often runs inside a batch job, a ``srun`` step or under ``mpiexec``. An MPI world that inherits the variables
with the identity of this job, step or rank joins it, hangs or aborts. An explicit list removes them; the settings of
the user (``SLURM_CONF``, ``SBATCH_ACCOUNT``, ``OMPI_MCA_btl`` and so on) stay.
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import LaunchError
from workbench.text import count


@dataclass(frozen=True)
class Allocation:
    """A job of a batch scheduler."""

    scheduler: str
    """``slurm`` or ``pbs``."""
    job: str
    """Id of the job."""
    nodes: tuple[str, ...]
    """Names of the nodes, the first one first."""
    slots: tuple[int, ...]
    """Ranks that the scheduler intends for each node, in the same order; 0 where the scheduler does not report them."""

    @property
    def leaves_this_host(self) -> bool:
        """Whether the allocation has a node other than this host."""
        return any(_short(node) not in _names_of_this_host() for node in self.nodes)

    @property
    def describe(self) -> str:
        """Scheduler, job and nodes as text."""
        title = {"slurm": "Slurm", "pbs": "PBS"}[self.scheduler]
        names = ", ".join(self.nodes[:4]) + (", ..." if len(self.nodes) > 4 else "")
        return f"{title} job {self.job} ({count(len(self.nodes), 'node')}: {names})"


def current_allocation(environment: Mapping[str, str] | None = None) -> Allocation | None:
    """Return the allocation that a process's variables describe, or None outside of an allocation.

    Raises
    ------
    LaunchError
        If the variables describe an allocation whose nodes cannot be read.
    """
    variables = os.environ if environment is None else environment
    if job := variables.get("SLURM_JOB_ID"):
        nodes = tuple(expand(variables.get("SLURM_JOB_NODELIST") or variables.get("SLURM_NODELIST") or ""))
        slots = _slurm_slots(variables.get("SLURM_TASKS_PER_NODE", ""))
        return Allocation("slurm", job, nodes, slots if len(slots) == len(nodes) else (0,) * len(nodes))
    if job := variables.get("PBS_JOBID"):
        return Allocation("pbs", job, *_pbs_nodes(job, variables.get("PBS_NODEFILE")))
    return None


def allocation_hint(requested: str | None, chosen: str) -> str:
    """Return a hint for a user inside an allocation that the new cluster does not use by default, else an empty string.

    Parameters
    ----------
    requested
        The scheduler in the user's request; None: none.
    chosen
        The scheduler that starts the cluster.
    """
    if requested not in (None, "auto") or chosen == "here":
        return ""
    try:
        allocation = current_allocation()
    except LaunchError:
        allocation = None  # a hint is no reason to fail
    if allocation is None:
        return ""
    target = "in a separate job" if chosen != "local" else "only on this host"
    return (
        f"this process is inside {allocation.describe}, but the cluster starts {target}. To start the cluster in that "
        "job, use --scheduler here."
    )


def memory_of_rank(threads: int) -> int | None:
    """Return the bytes of memory per rank in the enclosing Slurm job, or None where Slurm sets no limit per core."""
    if per_core := os.environ.get("SLURM_MEM_PER_CPU", "").strip():
        return int(per_core) * threads * 2**20 if per_core.isdigit() else None
    return None


def memory_of_node() -> int | None:
    """Return the bytes of memory of the enclosing Slurm job on this node, or None if Slurm sets no such limit."""
    per_node = os.environ.get("SLURM_MEM_PER_NODE", "").strip()
    return int(per_node) * 2**20 if per_node.isdigit() and int(per_node) else None


def peers() -> list[str]:
    """Return the names of the other nodes of this process's allocation."""
    allocation = current_allocation()
    own_names = _names_of_this_host()
    return [] if allocation is None else [node for node in allocation.nodes if _short(node) not in own_names]


def _names_of_this_host() -> set[str]:
    # Slurm's name of a node may differ from the host name; on a login node the variable is not set.
    name = socket.gethostname()
    return {_short(name), _short(os.environ.get("SLURMD_NODENAME", name))}


def _short(host: str) -> str:
    """Return the name of a host without the domain, which some sources include and others omit."""
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]


def expand(nodes: str) -> Iterator[str]:
    """Yield the nodes of a list as Slurm writes it.

    Examples
    --------
    >>> list(expand("login1,n[01-03,7],r[1-2]c[0-1]"))
    ['login1', 'n01', 'n02', 'n03', 'n7', 'r1c0', 'r1c1', 'r2c0', 'r2c1']
    """
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        yield from _expand_one(part)


def _expand_one(part: str) -> Iterator[str]:
    prefix, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    ranges, _, suffix = rest.partition("]")
    for numbers in ranges.split(","):
        first, _, last = numbers.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise LaunchError(
                f"the node list {part!r} of this Slurm job cannot be read.",
                hint="Unset SLURM_JOB_ID to start outside of the job.",
            )
        for number in range(int(first), int(last or first) + 1):
            for end in _expand_one(suffix):
                yield f"{prefix}{number:0{len(first)}d}{end}"


def _slurm_slots(text: str) -> tuple[int, ...]:
    """Return 2, 2, 2, 1 for ``2(x3),1``."""
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return tuple(int(tasks) for tasks, repeats in groups for _ in range(int(repeats or 1)))


def _pbs_nodes(job: str, path: str | None) -> tuple[tuple[str, ...], tuple[int, ...]]:
    if not path:
        return (socket.gethostname(),), (0,)
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except OSError as error:
        raise LaunchError(
            f"the node list of PBS job {job} cannot be read ({error}). PBS keeps the list on the job's first node.",
            hint="Start the cluster on that node. If this process is not inside the job, unset PBS_JOBID and "
            "PBS_NODEFILE.",
        ) from error
    # The lines of a node need not be adjacent: each chunk writes its own.
    ranks = Counter(lines)
    return tuple(ranks), tuple(ranks.values())


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
