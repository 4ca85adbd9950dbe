"""The choice between ``srun`` and ``mpiexec`` for the start of a world on several nodes."""

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
    """Return the setting ``workbench.mpi.launcher``: the program that starts ranks on several nodes.

    Raises
    ------
    InvalidRequest
        If the value is not valid, or if ranks of that program cannot be fault tolerant.
    """
    manager = config.get("mpi.launcher")
    if manager not in MANAGERS:
        raise InvalidRequest(option="workbench.mpi.launcher", given=manager, allowed=MANAGERS)
    if fault_tolerant and manager == "srun":
        raise InvalidRequest(
            "--fault-tolerant is not possible with the setting workbench.mpi.launcher 'srun': srun ends all ranks when "
            "one fails.",
            option="fault_tolerant",
            given=True,
            hint="Set workbench.mpi.launcher to auto or mpiexec.",
        )
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
    manager = check(fault_tolerant=placement.fault_tolerant)
    interface, srun = None, shutil.which("srun")
    by_srun = manager == "srun" or (manager == "auto" and mpi.flavour != "openmpi" and not placement.fault_tolerant)
    if by_srun and srun and placement.around.scheduler == "slurm":
        interface = interface_of(mpi, srun_mpi_types())
    if manager == "srun" and interface is None:
        raise InvalidRequest(
            f"the setting workbench.mpi.launcher 'srun' is not possible: srun cannot start ranks of {mpi}; it supports "
            f"{', '.join(srun_mpi_types()) or 'no process management interface'}.",
            option="workbench.mpi.launcher",
            given="srun",
            hint="Set workbench.mpi.launcher to mpiexec.",
        )
    if srun and interface:
        return srun_command(srun, interface, mpi, placement, command, extra=config.get("mpi.srun-args"))
    return mpiexec_command(mpi, placement, command, extra=config.get("mpi.extra-args"))


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
    from workbench.launch.pbs_tm_agent import agent_path

    return agent_path()
