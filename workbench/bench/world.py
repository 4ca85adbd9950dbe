"""Runs a program on every rank of a separate MPI world, and hands back what its rank 0 returns.

A program is a module with ``measure(**options)``; options and result go as JSON. The ranks run this very module,
where an error on one rank ends all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from workbench.errors import LaunchError
from workbench.launch.mpi_library import MPI
from workbench.launch.probe import bare_world
from workbench.mpi.context import abort_world

_CALL, _RESULT, _LOG = "call.json", "result.json", "log"
# Characters of a log that an error shows.
_LAST = 8000


@dataclass(frozen=True)
class World:
    """A program that runs on a world."""

    program: str
    """Name of its module."""
    ranks: int
    """Size of the world."""
    process: subprocess.Popen[bytes]
    """Its ``mpiexec``."""
    folder: Path
    """Where call, result and log are."""

    def result(self, within: float) -> Any:
        """Return what ``measure`` returned on rank 0.

        Parameters
        ----------
        within
            Seconds to wait for it.

        Raises
        ------
        LaunchError
            If the program fails or takes longer.
        """
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise self.failed(f"was not done after {within:.0f} s") from None
        result = self.folder / _RESULT
        if code or not result.exists():
            raise self.failed(f"ended with code {code}")
        return json.loads(result.read_text(encoding="utf-8"))

    def failed(self, how: str) -> LaunchError:
        """End the world, and return the error that says how it failed, with the end of its log."""
        end(self.process)
        last = (self.folder / _LOG).read_text(encoding="utf-8", errors="replace")[-_LAST:]
        return LaunchError(f"{self.program} on {self.ranks} ranks {how}; what it said last:\n{last}")


def run(found: MPI, ranks: int, program: str, options: Mapping[str, Any], within: float) -> Any:
    """Run a program on a new world of this host: `started`, and `World.result` within so many seconds."""
    with started(found, ranks, program, options) as running:
        return running.result(within)


@contextmanager
def started(found: MPI, ranks: int, program: str, options: Mapping[str, Any]) -> Iterator[World]:
    """Start a program on a new world of this host, and end it if it has not ended by itself.

    Parameters
    ----------
    found
        The MPI to start it with.
    ranks
        Size of the world.
    program
        Name of the module.
    options
        What its ``measure`` is called with on every rank.
    """
    with tempfile.TemporaryDirectory(prefix="workbench-bench-") as name:
        folder = Path(name)
        (folder / _CALL).write_text(json.dumps({"program": program, "options": options}), encoding="utf-8")
        words = [sys.executable, "-P", "-m", "workbench.bench.world", str(folder)]
        line, environment = bare_world(found, ranks, words)
        with open(folder / _LOG, "wb") as log:
            process = subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield World(program, ranks, process, folder)
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End ``mpiexec`` and wait until all of its ranks are gone."""
    import psutil

    if process.poll() is not None:
        return
    ranks = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, left = psutil.wait_procs(ranks, timeout=5)
    for rank in left:
        rank.kill()
    psutil.wait_procs(left, timeout=5)


def main() -> None:
    """Be one rank: measure, and on rank 0 write the result."""
    launcher = os.getppid()
    folder = Path(sys.argv[1])
    try:
        from mpi4py import MPI

        call = json.loads((folder / _CALL).read_text(encoding="utf-8"))
        result = import_module(call["program"]).measure(**call["options"])
        if MPI.COMM_WORLD.rank == 0:
            (folder / _RESULT).write_text(json.dumps(result), encoding="utf-8")
    except BaseException:  # noqa: BLE001  (whatever it is, it ends the world)
        traceback.print_exc()
        abort_world(launcher)


if __name__ == "__main__":
    main()
