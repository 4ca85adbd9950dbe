"""The command line that starts an MPI world on several nodes of an allocation; text apart from action.

Either the scheduler starts the ranks itself (``srun``), which needs a process management interface that both the
scheduler and the MPI speak, or the MPI's own ``mpiexec`` does, by daemons of its own on the nodes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workbench.errors import LaunchError
from workbench.launch.allocation import Allocation
from workbench.launch.mpi_library import MPI
from workbench.launch.mpiexec import OPENMPI_AS_ROOT, WorldCommand, has_ulfm, thread_variables, ulfm
from workbench.processes import parent_death

# The interface by which ranks of an MPI find each other, as srun calls it.
_INTERFACES = {"openmpi": "pmix", "mpich": "pmi2", "intelmpi": "pmi2"}
# Variables that each node or rank has its own of, or that Open MPI hands on by itself.
_NODES_OWN = frozenset(
    {
        *("HOSTNAME", "TMPDIR", "XDG_RUNTIME_DIR", "PWD", "OLDPWD", "SHLVL", "_"),
        *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    }
)
_OTHERS = ("PBS_", "OMPI_", "PRTE_", "PMIX_")


@dataclass(frozen=True)
class NodePlacement:
    """How the ranks of a world are put on the nodes of an allocation."""

    ranks: int
    """Size of the world."""
    threads: int
    """Threads of every rank."""
    around: Allocation
    """The allocation."""
    counts: tuple[int, ...]
    """Ranks of each node, in the order of the allocation's; nodes at its end may have none."""
    root: bool = False
    """Whether the user is root."""
    fault_tolerant: bool = False
    """Whether the other ranks have to go on when one dies."""
    interface: str | None = None
    """Network interface for the ranks; None: the MPI's own choice."""
    session: str | None = None
    """Folder below which daemons keep their files on every node; None: the MPI's own choice."""
    agent: str | None = None
    """Program that runs a command on another node, as ``ssh`` does; None: the MPI's own choice."""
    guard: str | None = None
    """Folder by which guards of the launcher on all nodes know each other's hosts; None: there are to be none."""
    directory: str = "."
    """Working directory of the ranks."""
    fabric: bool = True
    """Whether the nodes may have a network other than that of sockets."""

    @property
    def per_node(self) -> int:
        """Most ranks of a node."""
        return max(self.counts)

    @property
    def even(self) -> bool:
        """Whether all nodes but the last get the same number."""
        return len(set(self.counts[:-1])) <= 1

    @property
    def hosts(self) -> str:
        """The nodes that get ranks, with their numbers."""
        return ",".join(f"{node}:{n}" for node, n in zip(self.around.nodes, self.counts, strict=False))

    @property
    def oversubscribed(self) -> bool:
        """Whether a node surely gets more ranks than the scheduler means it for."""
        return any(0 < slots < n for slots, n in zip(self.around.slots, self.counts, strict=False))

    @property
    def unmeasured(self) -> bool:
        """Whether the scheduler does not say how many ranks a node is meant for."""
        return 0 in self.around.slots


def even_counts(ranks: int, nodes: int) -> tuple[int, ...]:
    """Return how many ranks each of the nodes gets, as evenly as possible.

    Examples
    --------
    >>> even_counts(9, 4), even_counts(2, 4)
    ((3, 2, 2, 2), (1, 1))
    """
    each, more = divmod(ranks, nodes)
    return tuple(n for i in range(nodes) if (n := each + (i < more)))


def packed_counts(ranks: int, slots: Sequence[int]) -> tuple[int, ...]:
    """Return how many ranks each of the nodes gets, one full after the other.

    Examples
    --------
    >>> packed_counts(5, (4, 1)), packed_counts(3, (2, 2, 2))
    ((4, 1), (2, 1))
    """
    before = [0, *itertools.accumulate(slots)]
    return tuple(min(n, ranks - full) for n, full in zip(slots, before, strict=False) if full < ranks)


def interface_of(mpi: MPI, spoken: Sequence[str]) -> str | None:
    """Return the process management interface by which ``srun`` can start ranks of an MPI, or None.

    Parameters
    ----------
    spoken
        What ``srun --mpi=list`` names.

    Examples
    --------
    >>> interface_of(MPI("openmpi", (5, 0, 11), "", "mpiexec"), ["none", "pmi2", "pmix", "pmix_v4"])
    'pmix'
    """
    if mpi.flavour == "intelmpi" and "I_MPI_PMI_LIBRARY" not in os.environ:
        return None  # it would be n worlds of one rank
    return _INTERFACES[mpi.flavour] if _INTERFACES[mpi.flavour] in spoken else None


def srun_command(
    srun: str, interface: str, mpi: MPI, spread: NodePlacement, command: Sequence[str], *, extra: Sequence[str] = ()
) -> WorldCommand:
    """Return the command line by which SLURM starts `command` on every rank of a new world.

    Parameters
    ----------
    srun
        Path of ``srun``.
    interface
        As of `interface_of`.
    extra
        More arguments for it.
    """
    options = [
        f"--mpi={interface}",
        f"--nodes={len(spread.counts)}",
        f"--ntasks={spread.ranks}",
        *([f"--ntasks-per-node={spread.per_node}"] if spread.even else []),
        f"--cpus-per-task={spread.threads}",
        # Rank by rank node after node: worker i is rank i, and neighbours share a node.
        "--distribution=block",
        "--cpu-bind=none",
        # A notebook's own step, or another world's, may have the cores already.
        "--overlap",
        # Rank 0 is told the scheduler's address on its standard input.
        "--input=0",
        # A rank that fails while starting takes its world along, on every MPI.
        "--kill-on-bad-exit=1",
        "--export=ALL",
        f"--chdir={spread.directory}",
    ]
    if spread.oversubscribed or spread.unmeasured:
        options.append("--overcommit")
    _, environment, defaults = _of_ranks(mpi, spread)
    return WorldCommand((srun, *options, *extra, *command), environment, defaults)


def mpiexec_command(
    mpi: MPI, spread: NodePlacement, command: Sequence[str], *, extra: Sequence[str] = ()
) -> WorldCommand:
    """Return the command line by which the MPI's own ``mpiexec`` starts `command` on every rank of a new world.

    Parameters
    ----------
    extra
        More arguments for ``mpiexec``.
    """
    options, environment, defaults = _of_ranks(mpi, spread)
    if mpi.flavour == "openmpi" and spread.around.scheduler == "pbs":
        # Its daemons get there by ssh or an agent, with an environment of their own, which ranks would have.
        options += exports(os.environ | environment)
    guard = spread.guard if can_be_guarded(mpi, spread) else None
    if guard is not None:
        environment["PRTE_MCA_prte_launch_agent"] = _guarded_daemon(guard)
    return WorldCommand((mpi.mpiexec, *options, *extra, *command), environment, defaults, guard)


def can_be_guarded(mpi: MPI, spread: NodePlacement) -> bool:
    """Tell whether the daemons of ``mpiexec`` on other nodes can be guarded as it is: only where ssh starts none.

    Those that ssh starts leave their session, and with it their guard; and ssh itself may need rights that guarded
    processes do not have.
    """
    by_srun = spread.around.scheduler == "slurm" and os.environ.get("PRTE_MCA_plm", "slurm") == "slurm"  # noqa: SIM112
    return mpi.flavour == "openmpi" and mpi.version >= (5,) and (by_srun or spread.agent is not None)


def _guarded_daemon(guard: str) -> str:
    """Return the command of a daemon, which Open MPI splits at blanks."""
    words = parent_death.daemon_command_line(guard)
    for word in words:
        if any(map(str.isspace, word)):
            raise LaunchError(
                f"{word!r}: the launcher's daemons cannot be guarded by a command with blanks in its paths.",
                hint="Move it, or set workbench.mpi.guard to false, and every user of the nodes can command mpiexec.",
            )
    return " ".join([*words, "prted"])


def exports(names: Iterable[str]) -> list[str]:
    """Return the options by which Open MPI gives ranks on all nodes the variables of these names, as others do unasked.

    Examples
    --------
    >>> exports(["PBS_NODEFILE", "OMP_NUM_THREADS", "BASH_FUNC_module%%", "TMPDIR"])
    ['-x', 'OMP_NUM_THREADS']
    """
    # Functions of a shell are left out: their names are none for -x.
    wanted = (name for name in names if name.isidentifier() and name not in _NODES_OWN and not name.startswith(_OTHERS))
    return [word for name in sorted(wanted) for word in ("-x", name)]


def _of_ranks(mpi: MPI, spread: NodePlacement) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Return options of ``mpiexec``, variables, and variables that the user may have set otherwise."""
    build = {"openmpi": _openmpi, "mpich": _hydra, "intelmpi": _hydra}[mpi.flavour]
    options, environment, defaults = build(mpi, spread)
    return options, environment | thread_variables(spread.threads), defaults


def _openmpi(mpi: MPI, spread: NodePlacement) -> tuple[list[str], dict[str, str], dict[str, str]]:
    many = ":oversubscribe" if spread.oversubscribed or spread.unmeasured else ""
    if spread.even:
        options = ["-n", str(spread.ranks), "--map-by", f"ppr:{spread.per_node}:node{many}", "--bind-to", "none"]
    else:
        slots = f"slot{many}" if many else "slot"
        options = ["-n", str(spread.ranks), "--host", spread.hosts, "--map-by", slots, "--bind-to", "none"]
    options += ["--wdir", spread.directory]
    environment: dict[str, str] = {}
    defaults: dict[str, str] = {}
    if spread.fault_tolerant and has_ulfm(mpi):
        more, environment = ulfm()
        options += more
    if spread.oversubscribed:
        defaults["OMPI_MCA_mpi_yield_when_idle"] = "1"
    five = mpi.version >= (5,)
    if five and not spread.fabric:
        # Each rank opens it, closes it where there is no network for it, and sleeps for a second when it does.
        defaults["OMPI_MCA_btl"] = "^ofi"
    if spread.interface:
        defaults["OMPI_MCA_btl_tcp_if_include"] = spread.interface
        defaults["PRTE_MCA_prte_if_include" if five else "OMPI_MCA_oob_tcp_if_include"] = spread.interface
    if spread.session:
        environment["PRTE_MCA_prte_tmpdir_base" if five else "OMPI_MCA_orte_tmpdir_base"] = spread.session
        # What ranks and daemons that are killed leave behind is found there, and removed.
        environment[f"OMPI_MCA_btl_{'sm' if five else 'vader'}_backing_directory"] = spread.session
    if spread.agent:
        environment["PRTE_MCA_plm_ssh_agent" if five else "OMPI_MCA_plm_rsh_agent"] = spread.agent
        # All daemons from the first node: on the others the agent may not work.
        environment["PRTE_MCA_plm_ssh_no_tree_spawn" if five else "OMPI_MCA_plm_rsh_no_tree_spawn"] = "1"
        # Daemons in sessions of their own would be no part of the job: not counted, and not ended with it.
        options.append("--leave-session-attached")
    if spread.root:
        environment |= OPENMPI_AS_ROOT
    return options, environment, defaults


def _hydra(_: MPI, spread: NodePlacement) -> tuple[list[str], dict[str, str], dict[str, str]]:
    options = ["-n", str(spread.ranks), *(["-ppn", str(spread.per_node)] if spread.even else ["-hosts", spread.hosts])]
    options += ["-wdir", spread.directory]
    if spread.interface:
        options += ["-iface", spread.interface]
    if spread.agent:
        options += ["-launcher", "rsh", "-launcher-exec", spread.agent]
    return options, {}, {}
