"""The launchers by name."""

from __future__ import annotations

from workbench.errors import InvalidRequest, did_you_mean
from workbench.launch.interface import Launcher
from workbench.launch.local import LocalLauncher

SCHEDULERS = ("auto", "local")


def launcher(scheduler: str) -> Launcher:
    """Return the launcher for a scheduler; ``auto`` takes what is there.

    Raises
    ------
    InvalidRequest
        If there is no such scheduler.
    """
    if scheduler not in SCHEDULERS:
        raise InvalidRequest(f"scheduler {scheduler!r}: {did_you_mean(scheduler, SCHEDULERS)}")
    return LocalLauncher()
