"""Who starts the ranks of a world on several nodes: chosen from what is there."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache

from workbench import config
from workbench.errors import InvalidRequest, LaunchError
from workbench.launch.command import ask
from workbench.launch.mpi_library import MPI
from workbench.launch.mpiexec import WorldCommand
from workbench.launch.multinode import NodePlacement, interface_of, mpiexec_command, srun_command

MANAGERS = ("auto", "srun", "mpiexec")


def check(*, fault_tolerant: bool) -> str:
    """Return who is to start ranks on several nodes, as ``workbench.mpi.launcher`` says.

    Raises
    ------
    InvalidRequest
        If there is nobody of that name, or ranks that it starts cannot survive one another.
    """
    manager = config.get("mpi.launcher")
    if manager not in MANAGERS:
        raise InvalidRequest(option="workbench.mpi.launcher", given=manager, allowed=MANAGERS)
    if fault_tolerant and manager == "srun":
        raise InvalidRequest(
            "--fault-tolerant and the setting workbench.mpi.launcher 'srun': ranks that srun starts end together.",
            option="fault_tolerant",
            given=True,
            hint="Set it to auto or mpiexec.",
        )
    return str(manager)


def spread_command(mpi: MPI, spread: NodePlacement, command: Sequence[str]) -> WorldCommand:
    """Return the command line that starts `command` on every rank of a new world on several nodes.

    Notes
    -----
    In a job of SLURM ``srun`` starts the ranks of MPICH, and of Intel MPI where ``I_MPI_PMI_LIBRARY`` names SLURM's
    library, if it speaks PMI 2. All else is started by the MPI's own ``mpiexec``: ranks of Open MPI 5 under ``srun``
    and PMIx die of a segmentation fault in one start of four (a peer's first message comes before the communicator
    is there: open-mpi/ompi issues 12495 and 13559), and ULFM is not supported there. Who has an Open MPI that does
    better sets ``workbench.mpi.launcher`` to ``srun``.

    Raises
    ------
    InvalidRequest
        If ``workbench.mpi.launcher`` is set to something that is not there, or does not go together with the rest.
    """
    manager = check(fault_tolerant=spread.fault_tolerant)
    interface, srun = None, shutil.which("srun")
    wanted = manager == "srun" or (manager == "auto" and mpi.flavour != "openmpi" and not spread.fault_tolerant)
    if wanted and srun and spread.around.scheduler == "slurm":
        interface = interface_of(mpi, srun_mpi_types())
    if manager == "srun" and interface is None:
        raise InvalidRequest(
            f"the setting workbench.mpi.launcher 'srun': it cannot start ranks of {mpi}; it speaks "
            f"{', '.join(srun_mpi_types()) or 'nothing'}.",
            option="workbench.mpi.launcher",
            given="srun",
            hint="Set it to mpiexec.",
        )
    if srun and interface:
        return srun_command(srun, interface, mpi, spread, command, extra=config.get("mpi.srun-args"))
    return mpiexec_command(mpi, spread, command, extra=config.get("mpi.extra-args"))


@cache
def srun_mpi_types() -> list[str]:
    """Return the process management interfaces that ``srun`` speaks here; empty without SLURM."""
    if shutil.which("srun") is None:
        return []
    try:
        answer = ask(["srun", "--mpi=list"])
    except LaunchError:
        return []
    return interfaces(answer.out + answer.err)


def interfaces(text: str) -> list[str]:
    r"""Return the names in what ``srun --mpi=list`` says.

    Examples
    --------
    >>> interfaces("MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions: pmix_v4")
    ['none', 'pmi2', 'pmix']
    >>> interfaces("srun: MPI types are...\nsrun: pmix_v3\nsrun: pmix\nsrun: none")
    ['pmix_v3', 'pmix', 'none']
    """
    words = (line.removeprefix("srun:").strip() for line in text.splitlines())
    return [word for word in words if word and " " not in word]


def remote_shell(scheduler: str) -> str | None:
    """Return the program that runs a command on another node of the job; None: what the MPI takes by itself."""
    if scheduler != "pbs" or shutil.which("pbs_tmrsh") is None:
        return None
    from workbench.launch.pbs_tm_agent import agent_path

    return agent_path()
