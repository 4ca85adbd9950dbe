"""The launchers by name, and which of them a start without a name takes."""

from __future__ import annotations

import shutil

from workbench import config
from workbench.errors import InvalidRequest, LaunchError
from workbench.hints import Option
from workbench.launch.interface import Launcher
from workbench.launch.local import HereLauncher, LocalLauncher
from workbench.launch.options import SCHEDULERS

CHOICES = ("auto", *SCHEDULERS)
"""What a start may name; ``auto``: the first batch scheduler that answers, else this host."""
COMMANDS = {"slurm": "sbatch", "pbs": "qsub"}
"""The command by which each batch scheduler is known, in the order in which ``auto`` asks them."""


def launcher(scheduler: str) -> Launcher:
    """Return the launcher for a scheduler.

    Raises
    ------
    InvalidRequest
        If there is no such scheduler.
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
    """Return the scheduler to take.

    Parameters
    ----------
    scheduler
        What was asked for; None: the setting ``workbench.scheduler``. ``auto`` takes SLURM, then PBS, then this host,
        whichever is there and answers.

    Raises
    ------
    InvalidRequest
        If there is no such scheduler.
    LaunchError
        If it is not there.
    """
    wanted = config.get("scheduler") if scheduler is None else scheduler
    if wanted not in CHOICES:
        raise InvalidRequest(option="scheduler", given=wanted, allowed=CHOICES)
    if wanted == "auto":
        return next((name for name in COMMANDS if answers(name)), "local")
    if wanted in COMMANDS and shutil.which(COMMANDS[wanted]) is None:
        raise LaunchError(
            f"scheduler {wanted!r}: there is no {COMMANDS[wanted]} on this host.",
            option="scheduler",
            given=wanted,
            hint=(
                "Start from a login node of the system, or use ",
                Option("scheduler"),
                " local for this host alone.",
            ),
        )
    return str(wanted)


def answers(name: str) -> bool:
    """Tell whether a batch scheduler is here and answers."""
    # Without its command there is nothing to load and nobody to ask.
    if shutil.which(COMMANDS[name]) is None:
        return False
    if name == "slurm":
        from workbench.launch.slurm import available
    else:
        from workbench.launch.pbs import available
    return available()
