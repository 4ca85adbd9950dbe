"""The choice between ``srun`` and ``mpiexec`` for the start of a world on several nodes, and the agent for PBS.

With the agent, which is like ``rsh`` and uses PBS's own ``pbs_tmrsh``, MPI reaches the other nodes of a PBS job.
Processes that the agent starts belong to the job: PBS counts their use of resources, and ends them with the job.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from functools import cache

from workbench import config
from workbench.errors import InvalidRequest, LaunchError
from workbench.host import files
from workbench.host.files import make_private
from workbench.launch.command import ask
from workbench.launch.mpi_library import MPI
from workbench.launch.mpiexec import WorldCommand
from workbench.launch.multinode import NodePlacement, interface_of, mpiexec_command, srun_command

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
