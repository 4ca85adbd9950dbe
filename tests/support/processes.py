"""Watch the processes of a cluster come and go."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import psutil
import pytest

from support.patience import DEADLINE
from workbench import MPICluster

__all__ = ["DEADLINE", "GONE_WITHIN", "gone", "kill", "launcher_of", "line_of", "processes_of", "until"]

# Time until nothing of a killed or ended cluster is left: docs/explanation/reliability.md promises 10 s when idle.
GONE_WITHIN = DEADLINE


def until(what: str, condition: Callable[[], object], within: float = DEADLINE) -> float:
    """Wait for a condition and return the seconds that it took."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > within:
            pytest.fail(f"waited {within} s for: {what}")
        time.sleep(0.02)
    return time.monotonic() - begin


def processes_of(cluster: MPICluster) -> list[psutil.Process]:
    """Return head, launcher and ranks of a running cluster."""
    head = psutil.Process(cluster.record.process.pid)
    return [head, *head.children(recursive=True)]


def launcher_of(cluster: MPICluster) -> psutil.Process:
    """Return the process of ``mpiexec`` of world 0."""
    children = psutil.Process(cluster.record.process.pid).children()
    # The first of them: the controller of cells starts later, but its number may be lower, since numbers start again.
    tether = min(
        (child for child in children if "parent_death.py" in " ".join(line_of(child))),
        key=psutil.Process.create_time,
    )
    return tether.children()[0]


def gone(process: psutil.Process) -> bool:
    """Return whether a process has ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def line_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process, which may end meanwhile: then nothing."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill(process: psutil.Process | int) -> None:
    """SIGKILL."""
    os.kill(process if isinstance(process, int) else process.pid, 9)
