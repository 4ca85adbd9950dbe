"""What tests on a live scheduler do to clusters, and how they see that nothing of them is left."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from support.processes import DEADLINE, gone, until
from support.slurm import Slurm
from workbench import MPICluster
from workbench.deploy.folder import clusters_folder


class Doing(threading.Thread):
    """What a test waits for while it does something to it."""

    def __init__(self, what: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._what = what
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._what()
        except BaseException as error:  # noqa: BLE001  (whatever it is, the test is to see it)
            self._error = error

    def result(self, within: float = DEADLINE) -> Any:
        """Return what came of it, or raise why nothing did."""
        self.join(within)
        assert not self.is_alive(), f"not done after {within} s"
        if self._error is not None:
            raise self._error
        return self._result


def starting(name: str, **options: Any) -> Doing:
    """Start a small cluster of jobs."""
    given = {"name": name, "scheduler": "slurm", "nodes": 1, "quiet": True, **options}
    return Doing(lambda: MPICluster(2, **given))


def one_job(slurm: Slurm, state: str, start: Doing | None = None) -> str:
    """Wait until there is one job, in this state, and return its id; a start that has ended is not waited for."""

    def is_there() -> bool:
        if start is not None and not start.is_alive():
            start.result()
        return [slurm.state(job) for job in slurm.jobs()] == [state]

    until(f"a job to be {state}", is_there)
    return slurm.jobs()[0]


def processes_of(name: str) -> list[psutil.Process]:
    """Return the processes of this machine that were given the name of a cluster: heads, keepers, ranks, starters."""
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if name in (process.info["cmdline"] or ()) and not gone(process)]


def nothing_is_left(slurm: Slurm, *names: str) -> None:
    """Wait until no job, no process, no record and no half-made folder is there of clusters that have ended."""
    until("no job to be left", lambda: not slurm.jobs())
    until("no process to be left", lambda: not [process for name in names for process in processes_of(name)])
    assert list(clusters_folder().glob("*")) == []


@contextlib.contextmanager
def no_room(slurm: Slurm) -> Iterator[None]:
    """Let new jobs wait in the queue meanwhile."""
    for node in slurm.nodes:
        slurm.drain(node)
    try:
        yield
    finally:
        for node in slurm.nodes:
            slurm.resume(node)


@contextlib.contextmanager
def command(folder: Path, name: str, text: str) -> Iterator[None]:
    """Have a shell script run where a command of the scheduler is called; ``$REAL`` is that command."""
    path = folder / name
    path.write_text(f"#!/bin/sh\nREAL={shutil.which(name)}\n{text}\n")
    path.chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = os.pathsep.join([str(folder), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before
