"""Worlds of this host without a cluster, among them a test world of two ranks, with the command line of a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench import config
from workbench.host import debug_log, node_dirs, parent_death, stub
from workbench.launch.allocation import scrub
from workbench.launch.mpi_library import MPI, Geometry, world_command

_MODULES = "mpi4py.MPI,workbench.fork.hello"


@dataclass(frozen=True)
class ProbeResult:
    """Result of a test world of two ranks."""

    code: int | None
    """Exit code of ``mpiexec``; None: it had not ended at the deadline."""
    worlds: tuple[Mapping[str, Any], ...]
    """The report of every rank 0: ``hello``, the size of its world, ``total`` of the Allreduce, the name of the level
    of ``threads``, whether it was ``forked``, ``gpu_aware``, see `workbench.gpu.devices.is_gpu_aware`, and
    ``ports``, see `workbench.host.network.tried`."""
    output: str
    """The complete output."""


def bare_world(mpi: MPI, ranks: int, program: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command line and the variables of a world on this host that belongs to no cluster.

    Parameters
    ----------
    program
        The command line of a rank.
    """
    command = world_command(mpi, Geometry.here(ranks, 1), program)
    return command.argv, command.variables(scrub(os.environ)[0])


def say_hello(mpi: MPI, timeout: float, *, forked: bool = False) -> ProbeResult:
    """Start two ranks as a cluster does and run an Allreduce on them.

    Parameters
    ----------
    timeout
        Seconds after which the ranks are killed.
    forked
        Fork the ranks from a template.
    """
    identity = uuid.uuid4().hex
    # Killed ranks leave segments of shared memory, which are removed with this folder.
    with tempfile.TemporaryDirectory(prefix="workbench-hello-", ignore_cleanup_errors=True) as folder:
        program = ["workbench.fork.hello", "hello", "id"]
        template = ["-I", "-S", stub.__file__, f"{folder}/template.log", _MODULES]
        try:
            return _say_hello(mpi, timeout, Path(folder), [*(template if forked else ["-m"]), *program], identity)
        finally:
            node_dirs.remove(identity)


def _say_hello(mpi: MPI, timeout: float, shared_memory: Path, program: list[str], identity: str) -> ProbeResult:
    geometry = Geometry.here(2, 1, shared_memory)
    command = world_command(mpi, geometry, [sys.executable, "-P", *program], config.arguments("mpi.extra-args"))
    environment, _ = scrub(os.environ)
    tether = parent_death.command_line(str(shared_memory), "" if config.get("mpi.guard") else None)
    process = subprocess.Popen(
        [*tether, *command.argv],
        env=command.variables(environment) | {stub.CLUSTER: identity},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    debug_log.started(process.pid, "two ranks that say hello: %s", command.argv[0])
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return ProbeResult(None, (), _end(process))
    except BaseException:
        if process.poll() is None:
            _end(process)
        raise
    finally:
        debug_log.ended(process.pid, process.returncode, "two ranks that say hello")
    return ProbeResult(process.returncode, parse_output(output), output)


def parse_output(output: str) -> tuple[Mapping[str, Any], ...]:
    r"""Return the reports of ranks in an output.

    Examples
    --------
    >>> parse_output('a warning\n{"hello": 2, "total": 3}\n')
    ({'hello': 2, 'total': 3},)
    """
    return tuple(json.loads(line) for line in output.splitlines() if line.startswith('{"hello"'))


def _end(process: subprocess.Popen[str]) -> str:
    """End ``mpiexec`` and its ranks; return the output."""
    import psutil

    ranks = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    _, left = psutil.wait_procs([psutil.Process(process.pid), *ranks], timeout=5)
    for rank in left:
        rank.kill()
    with contextlib.suppress(ProcessLookupError):
        # A process that was started after the list of the ranks was made holds the output open.
        os.killpg(process.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=5)
    return output
