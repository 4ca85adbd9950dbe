"""The command line that starts an MPI world on several nodes of an allocation, and the agent for PBS.

Either the scheduler starts the ranks (``srun``), which needs a process management interface that both scheduler and MPI
support, or the MPI's own ``mpiexec`` starts them, with daemons on the nodes. Ranks are placed on nodes in order, so
neighbors share a node.

With the agent, which is like ``rsh`` and uses PBS's own ``pbs_tmrsh``, MPI reaches the other nodes of a PBS job.
Processes that the agent starts belong to the job: PBS counts their use of resources, and ends them with the job.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from workbench import config
from workbench.errors import InvalidRequest, LaunchError
from workbench.hints import Option
from workbench.host import files, parent_death
from workbench.host.files import make_private
from workbench.launch.allocation import Allocation
from workbench.launch.command import ask
from workbench.launch.mpi_library import MPI, OPENMPI_AS_ROOT, WorldCommand, thread_variables

# The process management interface of each MPI, by srun's name.
_INTERFACES = {"openmpi": "pmix", "mpich": "pmi2", "intelmpi": "pmi2"}
# Variables that differ between nodes or ranks.
_NODE_VARIABLES = frozenset(
    {
        *("HOSTNAME", "TMPDIR", "XDG_RUNTIME_DIR", "PWD", "OLDPWD", "SHLVL", "_"),
        *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    }
)
# Prefixes of variables that differ between nodes, or that Open MPI forwards by itself.
_NODE_PREFIXES = ("PBS_", "OMPI_", "PRTE_", "PMIX_")


@dataclass(frozen=True)
class NodePlacement:
    """Placement of the ranks of a world on the nodes of an allocation."""

    ranks: int
    """Size of the world."""
    threads: int
    """Threads per rank."""
    around: Allocation
    """The allocation."""
    counts: tuple[int, ...]
    """Ranks of each node, in the order of the allocation; nodes at the end may have none."""
    first: bool = True
    """Whether the nodes are the first ones of the job."""
    root: bool = False
    """Whether the user is root."""
    interface: str | None = None
    """Network interface for the ranks; None: the MPI's own choice."""
    session: str | None = None
    """Folder for the daemons' files on every node; None: the MPI's own choice."""
    agent: str | None = None
    """Program that runs a command on another node, like ``ssh``; None: the MPI's own choice."""
    guard: str | None = None
    """Folder in which the launcher's guards on all nodes register their hosts; None: no guards."""
    directory: str = "."
    """Working directory of the ranks."""
    fabric: bool = True
    """Whether the nodes may have a network other than TCP/IP."""
    gpus: int = 0
    """GPUs per rank; 0: no request."""

    @property
    def per_node(self) -> int:
        """Most ranks on a node."""
        return max(self.counts)

    @property
    def even(self) -> bool:
        """Whether the first nodes of the job have `per_node` ranks each, except the last one."""
        return self.first and set(self.counts[:-1]) <= {self.per_node}

    @property
    def hosts(self) -> str:
        """The nodes with ranks, each with the number of its ranks."""
        return ",".join(f"{node}:{n}" for node, n in zip(self.around.nodes, self.counts, strict=False))

    @property
    def oversubscribed(self) -> bool:
        """Whether a node is known to get more ranks than it has slots."""
        return any(0 < slots < n for slots, n in zip(self.around.slots, self.counts, strict=False))

    @property
    def unmeasured(self) -> bool:
        """Whether the scheduler does not report the slots of a node."""
        return 0 in self.around.slots


def even_counts(ranks: int, nodes: int) -> tuple[int, ...]:
    """Return the number of ranks per node, as even as possible.

    Examples
    --------
    >>> even_counts(9, 4), even_counts(2, 4)
    ((3, 2, 2, 2), (1, 1))
    """
    fewest, rest = divmod(ranks, nodes)
    return tuple(n for i in range(nodes) if (n := fewest + (i < rest)))


def packed_counts(ranks: int, slots: Sequence[int]) -> tuple[int, ...]:
    """Return the number of ranks per node if each node is filled before the next.

    Examples
    --------
    >>> packed_counts(5, (4, 1)), packed_counts(3, (2, 2, 2))
    ((4, 1), (2, 1))
    """
    placed = [0, *itertools.accumulate(slots)]
    return tuple(min(n, ranks - used) for n, used in zip(slots, placed, strict=False) if used < ranks)


def requested_counts(ranks: int, nodes: int, per_node: int) -> tuple[int, ...]:
    """Return the number of ranks per node that a job requests, with at most `per_node` ranks on a node.

    Examples
    --------
    >>> requested_counts(10, 3, 4), requested_counts(9, 4, 3)
    ((4, 4, 2), (3, 2, 2, 2))
    """
    packed = packed_counts(ranks, (per_node,) * nodes)
    # If each node were filled before the next, the last nodes could stay empty.
    return packed if len(packed) == nodes else even_counts(ranks, nodes)


def usable(allocation: Allocation) -> Allocation:
    """Return the nodes of an allocation that have slots."""
    nodes = [(node, slots) for node, slots in zip(allocation.nodes, allocation.slots, strict=False) if slots]
    return replace(allocation, nodes=tuple(node for node, _ in nodes), slots=tuple(slots for _, slots in nodes))


def interface_of(mpi: MPI, supported: Sequence[str]) -> str | None:
    """Return the process management interface with which ``srun`` can start ranks of an MPI, or None.

    Parameters
    ----------
    supported
        The names in the output of ``srun --mpi=list``.

    Examples
    --------
    >>> interface_of(MPI("openmpi", (5, 0, 11), "", "mpiexec"), ["none", "pmi2", "pmix", "pmix_v4"])
    'pmix'
    """
    if mpi.flavor == "intelmpi" and "I_MPI_PMI_LIBRARY" not in os.environ:
        return None  # srun would start n worlds of one rank
    return _INTERFACES[mpi.flavor] if _INTERFACES[mpi.flavor] in supported else None


def srun_command(
    srun: str, interface: str, mpi: MPI, placement: NodePlacement, command: Sequence[str], *, extra: Sequence[str] = ()
) -> WorldCommand:
    """Return the command line with which Slurm starts `command` on every rank of a new world.

    Parameters
    ----------
    srun
        Path of ``srun``.
    interface
        As returned by `interface_of`.
    extra
        More arguments for ``srun``.
    """
    options = [
        f"--mpi={interface}",
        f"--nodes={len(placement.counts)}",
        *([] if placement.first else [f"--nodelist={','.join(placement.around.nodes[: len(placement.counts)])}"]),
        f"--ntasks={placement.ranks}",
        *([f"--ntasks-per-node={placement.per_node}"] if placement.even else []),
        f"--cpus-per-task={placement.threads}",
        # Consecutive ranks share a node.
        "--distribution=block",
        "--cpu-bind=none",
        # The step of a notebook or of another world may hold the cores.
        "--overlap",
        # Rank 0 reads the scheduler's address from its standard input.
        "--input=0",
        # A rank that fails during the start ends its world, with every MPI.
        "--kill-on-bad-exit=1",
        "--export=ALL",
        f"--chdir={placement.directory}",
    ]
    if placement.oversubscribed or placement.unmeasured:
        options.append("--overcommit")
    _, environment, defaults = _of_ranks(mpi, placement)
    return WorldCommand((srun, *options, *extra, *command), environment, defaults)


def mpiexec_command(
    mpi: MPI, placement: NodePlacement, command: Sequence[str], *, extra: Sequence[str] = ()
) -> WorldCommand:
    """Return the command line with which the MPI's own ``mpiexec`` starts `command` on every rank of a new world.

    Parameters
    ----------
    extra
        More arguments for ``mpiexec``.

    Raises
    ------
    LaunchError
        If the daemons of ``mpiexec`` cannot get the GPUs of their nodes, or cannot be guarded.
    """
    options, environment, defaults = _of_ranks(mpi, placement)
    if mpi.flavor == "openmpi" and placement.around.scheduler == "pbs":
        # Its daemons are started with ssh or an agent, in another environment, which the ranks would inherit.
        options += exports(os.environ | environment)
    if placement.around.scheduler == "slurm":
        # In a job that was submitted with --export=NONE, srun would start the daemons without the head's environment.
        environment["SLURM_EXPORT_ENV"] = "ALL"
    if placement.gpus and placement.around.scheduler == "slurm":
        if "SLURM_GPUS_PER_TASK" in os.environ and 0 < min(placement.around.slots) < placement.per_node:
            raise LaunchError(
                f"Slurm has reserved other numbers of GPUs on some nodes ({placement.hosts}), and mpiexec can request "
                "only one number for all nodes.",
                option="nodes",
                hint=("Pass ", Option("nodes"), ": then Slurm reserves as many on each node."),
            )
        # srun starts one daemon on a node, which would get the GPUs of one task, not those of all ranks of the node.
        environment["SLURM_GRES"] = f"gpu:{placement.gpus * placement.per_node}"
    guard = placement.guard if can_be_guarded(mpi, placement) else None
    if guard is not None:
        environment["PRTE_MCA_prte_launch_agent"] = _guarded_daemon(guard)
    return WorldCommand((mpi.mpiexec, *options, *extra, *command), environment, defaults, guard)


def can_be_guarded(mpi: MPI, placement: NodePlacement) -> bool:
    """Return whether the daemons of ``mpiexec`` on other nodes can be guarded: only if ssh does not start them.

    Daemons that ssh starts leave their session, and with it their guard; and ssh itself may need rights that guarded
    processes do not have.
    """
    by_srun = placement.around.scheduler == "slurm" and os.environ.get("PRTE_MCA_plm", "slurm") == "slurm"  # noqa: SIM112
    return mpi.is_openmpi_5 and (by_srun or placement.agent is not None)


def _guarded_daemon(guard: str) -> str:
    """Return the command of a daemon, which Open MPI splits at blanks."""
    argv = parent_death.daemon_command_line(guard)
    for argument in argv:
        if any(map(str.isspace, argument)):
            raise LaunchError(
                f"{argument!r} has blanks, and the command that guards the daemons of mpiexec cannot have blanks in "
                "its paths.",
                option="workbench.mpi.guard",
                hint="Move the file, or set workbench.mpi.guard to false. Without the guard every user of the nodes "
                "can control mpiexec.",
            )
    return " ".join([*argv, "prted"])


def exports(names: Iterable[str]) -> list[str]:
    """Return the options with which Open MPI exports variables to ranks on all nodes, as other MPIs do by default.

    Examples
    --------
    >>> exports(["PBS_NODEFILE", "OMP_NUM_THREADS", "BASH_FUNC_module%%", "TMPDIR"])
    ['-x', 'OMP_NUM_THREADS']
    """
    # The names of exported shell functions are not valid for -x.
    exported = (
        name
        for name in names
        if name.isidentifier() and name not in _NODE_VARIABLES and not name.startswith(_NODE_PREFIXES)
    )
    return [argument for name in sorted(exported) for argument in ("-x", name)]


def _of_ranks(mpi: MPI, placement: NodePlacement) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Return options of ``mpiexec``, variables, and defaults of variables."""
    build = {"openmpi": _openmpi, "mpich": _hydra, "intelmpi": _hydra}[mpi.flavor]
    options, environment, defaults = build(mpi, placement)
    return options, environment | thread_variables(placement.threads), defaults


def _openmpi(mpi: MPI, placement: NodePlacement) -> tuple[list[str], dict[str, str], dict[str, str]]:
    many = ":oversubscribe" if placement.oversubscribed or placement.unmeasured else ""
    if placement.even:
        options = ["-n", str(placement.ranks), "--map-by", f"ppr:{placement.per_node}:node{many}", "--bind-to", "none"]
    else:
        slots = f"slot{many}" if many else "slot"
        options = ["-n", str(placement.ranks), "--host", placement.hosts, "--map-by", slots, "--bind-to", "none"]
    options += ["--wdir", placement.directory]
    environment: dict[str, str] = {}
    defaults: dict[str, str] = {}
    if placement.oversubscribed:
        defaults["OMPI_MCA_mpi_yield_when_idle"] = "1"
    five = mpi.is_openmpi_5
    if five and not placement.fabric:
        # Each rank would open this component, close it without a network, and sleep for a second when it closes it.
        defaults["OMPI_MCA_btl"] = "^ofi"
    if placement.interface:
        defaults["OMPI_MCA_btl_tcp_if_include"] = placement.interface
        defaults["PRTE_MCA_prte_if_include" if five else "OMPI_MCA_oob_tcp_if_include"] = placement.interface
    if placement.session:
        environment["PRTE_MCA_prte_tmpdir_base" if five else "OMPI_MCA_orte_tmpdir_base"] = placement.session
        # The head removes the files of killed ranks and daemons from this folder.
        environment[f"OMPI_MCA_btl_{'sm' if five else 'vader'}_backing_directory"] = placement.session
    if placement.agent:
        environment["PRTE_MCA_plm_ssh_agent" if five else "OMPI_MCA_plm_rsh_agent"] = placement.agent
        # The first node starts all daemons, since the agent may not work on the others.
        environment["PRTE_MCA_plm_ssh_no_tree_spawn" if five else "OMPI_MCA_plm_rsh_no_tree_spawn"] = "1"
        # The job neither counts nor ends daemons in separate sessions.
        options.append("--leave-session-attached")
    if placement.root:
        environment |= OPENMPI_AS_ROOT
    return options, environment, defaults


def _hydra(_: MPI, placement: NodePlacement) -> tuple[list[str], dict[str, str], dict[str, str]]:
    options = [
        "-n",
        str(placement.ranks),
        *(["-ppn", str(placement.per_node)] if placement.even else ["-hosts", placement.hosts]),
    ]
    options += ["-wdir", placement.directory]
    if placement.interface:
        options += ["-iface", placement.interface]
    if placement.agent:
        options += ["-launcher", "rsh", "-launcher-exec", placement.agent]
    return options, {}, {}


MANAGERS = config.CHOICES["mpi.launcher"]


def check() -> str:
    """Return the setting ``workbench.mpi.launcher``: the program that starts ranks on several nodes.

    Raises
    ------
    InvalidRequest
        If the value is not valid.
    """
    manager = config.get("mpi.launcher")
    if manager not in MANAGERS:
        raise InvalidRequest(option="workbench.mpi.launcher", given=manager, allowed=MANAGERS)
    return str(manager)


def spread_command(mpi: MPI, placement: NodePlacement, command: Sequence[str]) -> WorldCommand:
    """Return the command line that starts `command` on every rank of a new world on several nodes.

    Notes
    -----
    In a job of Slurm, ``srun`` starts the ranks of MPICH, and of Intel MPI where ``I_MPI_PMI_LIBRARY`` names Slurm's
    library, if ``srun`` supports PMI 2. In all other cases the MPI's own ``mpiexec`` starts them: under ``srun`` and
    PMIx, ranks of Open MPI 5 die of a segmentation fault in one start of four (a message of a peer arrives before the
    communicator exists: open-mpi/ompi issues 12495 and 13559), and ULFM is not supported. For an Open MPI without this
    bug, ``workbench.mpi.launcher`` can be set to ``srun``.

    Raises
    ------
    InvalidRequest
        If ``workbench.mpi.launcher`` is a program that cannot start these ranks.
    """
    manager = check()
    interface, srun = None, shutil.which("srun")
    by_srun = manager == "srun" or (manager == "auto" and mpi.flavor != "openmpi")
    if by_srun and srun and placement.around.scheduler == "slurm":
        interface = interface_of(mpi, srun_mpi_types())
    if manager == "srun" and interface is None:
        raise InvalidRequest(
            f"the setting workbench.mpi.launcher 'srun' is not possible: srun cannot start ranks of {mpi}. srun "
            f"supports {', '.join(srun_mpi_types()) or 'no process management interface'}.",
            option="workbench.mpi.launcher",
            given="srun",
            hint="Set workbench.mpi.launcher to mpiexec.",
        )
    if srun and interface:
        return srun_command(srun, interface, mpi, placement, command, extra=config.arguments("mpi.srun-args"))
    return mpiexec_command(mpi, placement, command, extra=config.arguments("mpi.extra-args"))


@cache
def srun_mpi_types() -> list[str]:
    """Return the process management interfaces that ``srun`` supports on this host; empty without Slurm."""
    if shutil.which("srun") is None:
        return []
    try:
        answer = ask(["srun", "--mpi=list"])
    except LaunchError:
        return []
    return interfaces(answer.out + answer.err)


def interfaces(text: str) -> list[str]:
    r"""Return the names in the output of ``srun --mpi=list``.

    Examples
    --------
    >>> interfaces("MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions: pmix_v4")
    ['none', 'pmi2', 'pmix']
    >>> interfaces("srun: MPI types are...\nsrun: pmix_v3\nsrun: pmix\nsrun: none")
    ['pmix_v3', 'pmix', 'none']
    """
    lines = (line.removeprefix("srun:").strip() for line in text.splitlines())
    return [line for line in lines if line and " " not in line]


def remote_shell(scheduler: str) -> str | None:
    """Return the program that runs a command on another node of the job; None: the MPI's own choice."""
    if scheduler != "pbs" or shutil.which("pbs_tmrsh") is None:
        return None
    return agent_path()


def agent_text(tmrsh: str) -> str:
    """Return the text of a program with the command line of ``rsh``: ``[OPTION]... HOST COMMAND...``.

    Parameters
    ----------
    tmrsh
        Path of ``pbs_tmrsh``.

    Notes
    -----
    The program joins the words of the command and passes them to a shell, as ``rsh`` and ``ssh`` do and ``pbs_tmrsh``
    does not. Both MPIs rely on this, for example to set variables before the program.
    """
    return f"""\
#!/bin/sh
# mpiexec calls this program like rsh: [OPTION]... HOST COMMAND...
while :; do
    case "$1" in
        -l | -p | -o) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
host=$1
shift
exec {shlex.quote(tmrsh)} "$host" /bin/sh -c "$*"
"""


def agent_path() -> str:
    """Write the program of `agent_text` to a folder that all nodes share, and return its path.

    Raises
    ------
    LaunchError
        If ``pbs_tmrsh`` is not on PATH, or if the program cannot be written.
    """
    tmrsh = shutil.which("pbs_tmrsh")
    if tmrsh is None:
        raise LaunchError("pbs_tmrsh is not on PATH.", hint="Add the folder bin of PBS to the variable PATH.")
    path = config.data_folder() / "workbench" / "pbs-agent"
    if any(map(str.isspace, str(path))):
        raise LaunchError(
            f"MPI cannot run the agent {path}, because the path has blanks.",
            hint="Set JUPYTER_DATA_DIR to a folder without blanks.",
        )
    text = agent_text(tmrsh)
    try:
        if not (path.exists() and path.read_text(encoding="utf-8") == text):
            make_private(path.parent)
            # In one step, since another job of the user may run the program.
            files.replace(path, text.encode(), 0o700)
    except OSError as error:
        raise LaunchError(
            f"cannot write {path}: {error}.", hint="Check the permissions, the free space and your quota."
        ) from error
    return str(path)
