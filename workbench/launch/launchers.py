"""The launchers by name, and the default launcher."""

from __future__ import annotations

import shutil
from pathlib import Path

from workbench import config
from workbench.errors import InvalidRequest, LaunchError
from workbench.hints import Option
from workbench.launch import command
from workbench.launch.interface import Launcher
from workbench.launch.local import HereLauncher, LocalLauncher

CHOICES = config.CHOICES["scheduler"]
"""Values of ``--scheduler``; ``auto``: the first batch scheduler that answers, else this host."""
COMMANDS = {"slurm": "sbatch", "pbs": "qsub"}
"""The command of each batch scheduler, in the order in which ``auto`` tries them."""
TITLES = {"slurm": "Slurm", "pbs": "PBS"}
"""Their names in texts."""


def launcher(scheduler: str) -> Launcher:
    """Return the launcher for a scheduler.

    Raises
    ------
    InvalidRequest
        If the name is not one of a scheduler.
    """
    match scheduler:
        case "local":
            return LocalLauncher()
        case "here":
            return HereLauncher()
        case "slurm":
            from workbench.launch.slurm import SlurmLauncher

            return SlurmLauncher()
        case "pbs":
            from workbench.launch.pbs import PBSLauncher

            return PBSLauncher()
    raise InvalidRequest(option="scheduler", given=scheduler, allowed=CHOICES)


def choose(scheduler: str | None = None) -> str:
    """Return the name of the scheduler for a request.

    Parameters
    ----------
    scheduler
        The request; None: the setting ``workbench.scheduler``. ``auto`` is the first of Slurm and PBS that answers,
        else this host.

    Raises
    ------
    InvalidRequest
        If the name is not one of a scheduler.
    LaunchError
        If this host does not have the scheduler's commands.
    """
    wanted = config.get("scheduler") if scheduler is None else scheduler
    if wanted not in CHOICES:
        raise InvalidRequest(option="scheduler", given=wanted, allowed=CHOICES)
    if wanted == "auto":
        return next((name for name in COMMANDS if answers(name)), "local")
    if wanted in COMMANDS and not installed(wanted):
        raise LaunchError(
            f"scheduler {wanted!r} cannot be used: {absence(wanted)}.",
            option="scheduler",
            given=wanted,
            hint=(
                "Start from a login node of the system, or use ",
                Option("scheduler"),
                " local to use only this host.",
            ),
        )
    return str(wanted)


def silent(scheduler: str | None, chosen: str) -> str:
    """Return a sentence about batch schedulers that `choose` has passed over because they did not answer, or nothing.

    Parameters
    ----------
    scheduler, chosen
        The argument of `choose`, and its result.
    """
    wanted = config.get("scheduler") if scheduler is None else scheduler
    present = [TITLES[name] for name in COMMANDS if installed(name)]
    if wanted != "auto" or chosen != "local" or not present:
        return ""
    return f"{' and '.join(present)} {'does' if len(present) == 1 else 'do'} not answer"


def installed(name: str) -> bool:
    """Return whether this host has the command of a batch scheduler; ``qsub`` may be that of Grid Engine."""
    path = shutil.which(COMMANDS[name])
    return path is not None and not (name == "pbs" and Path(path).with_name("qconf").exists())


def absence(name: str) -> str:
    """Return why a scheduler is not `installed`."""
    if path := shutil.which(COMMANDS[name]):
        return f"{path} belongs to Grid Engine, which is not supported"
    return f"the command {COMMANDS[name]} does not exist on this host"


def answers(name: str) -> bool:
    """Return whether this host has a batch scheduler's commands and the scheduler answers."""
    if not installed(name):
        return False
    if name == "slurm":
        from workbench.launch.slurm import available
    else:
        from workbench.launch.pbs import available
    with command.answering_soon():
        return available()
