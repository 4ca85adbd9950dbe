"""Who starts the ranks of a world on several nodes: chosen from what is there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from workbench import config
from workbench.errors import InvalidRequest, LaunchError, did_you_mean
from workbench.launch.command import ask
from workbench.launch.mpi import MPI
from workbench.launch.mpiexec import Command
from workbench.launch.spread import Spread, interface_of, mpiexec_command, srun_command

MANAGERS = ("auto", "srun", "mpiexec")


def spread_command(mpi: MPI, spread: Spread, command: Sequence[str]) -> Command:
    """Return the command line that starts `command` on every rank of a new world on several nodes.

    Notes
    -----
    In a job of SLURM ``srun`` starts the ranks if it speaks an interface of this MPI (PMIx for Open MPI, PMI 2 for
    MPICH), else the MPI's own ``mpiexec``. Ranks that have to survive one another are started by ``mpiexec`` always:
    Open MPI does not support ULFM under ``srun``.

    Raises
    ------
    InvalidRequest
        If ``workbench.mpi.launcher`` is set to something that is not there, or does not go together with the rest.
    """
    manager = config.get("mpi.launcher")
    if manager not in MANAGERS:
        raise InvalidRequest(f"the setting workbench.mpi.launcher {manager!r}: {did_you_mean(manager, MANAGERS)}")
    if spread.fault_tolerant and manager == "srun":
        raise InvalidRequest(
            "--fault-tolerant and the setting workbench.mpi.launcher 'srun': ranks that srun starts end together. "
            "Set it to auto or mpiexec."
        )
    interface, srun = None, shutil.which("srun")
    if manager != "mpiexec" and srun and spread.around.scheduler == "slurm" and not spread.fault_tolerant:
        interface = interface_of(mpi, spoken())
    if manager == "srun" and interface is None:
        raise InvalidRequest(
            f"the setting workbench.mpi.launcher 'srun': it cannot start ranks of {mpi}; it speaks "
            f"{', '.join(spoken()) or 'nothing'}. Set it to mpiexec."
        )
    if srun and interface and (manager == "srun" or _works(srun, interface)):
        return srun_command(srun, interface, mpi, spread, command, extra=config.get("mpi.srun-args"))
    return mpiexec_command(mpi, spread, command, extra=config.get("mpi.extra-args"))


def _works(srun: str, interface: str) -> bool:
    """Tell whether ``srun`` can load what it needs for an interface; it may name some that it cannot."""
    if "SLURM_JOB_ID" not in os.environ:
        return True  # nothing can be tried outside of a job
    probe = [srun, f"--mpi={interface}", "--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none", "true"]
    try:
        return ask(probe).code == 0
    except LaunchError:
        return False


def spoken() -> list[str]:
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


def agent(scheduler: str) -> str | None:
    """Return the program that runs a command on another node of the job; None: what the MPI takes by itself."""
    if scheduler != "pbs" or shutil.which("pbs_tmrsh") is None:
        return None
    from workbench.launch.tm_agent import agent_path

    return agent_path()
