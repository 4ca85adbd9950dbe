"""Start programs on MPI worlds, and run checks on the ranks of one."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

from support.ends import DEADLINE, Check
from workbench.host import node_dirs, stub
from workbench.launch import mpi_library
from workbench.launch.allocation import scrub
from workbench.launch.mpi_library import Geometry, world_command

# A check ends itself before; a check that does not hangs.
HANGS = DEADLINE + 20


# Forked from one template, ranks do not import all this each by itself. What loads MPI comes first.
_MODULES = "mpi4py.MPI,support.member,support.program,workbench.mpi.communicator_cache,pytest,hypothesis.extra.numpy"
_ID = uuid.uuid4().hex

found = functools.cache(mpi_library.find)
"""Return the MPI of this environment."""


def _stub(program: str, words: Sequence[str]) -> list[str]:
    log = Path(os.environ["XDG_RUNTIME_DIR"]) / "template.log"
    return [sys.executable, "-I", "-S", stub.__file__, str(log), _MODULES, program, "tests", _ID, *words]


@contextlib.contextmanager
def template() -> Iterator[None]:
    """Keep the template meanwhile, which ends with its last rank, by a rank that waits."""
    command, environment = (
        _stub("support.program", ["import sys; sys.stdin.read()"]),
        scrub(os.environ)[0] | {stub.CLUSTER: _ID},
    )
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield
        _, errors = process.communicate(timeout=DEADLINE)
    # Where there may be no template ranks are started without. One that starts threads would be of no use anywhere.
    assert b"the import of" not in errors, errors
    node_dirs.remove(_ID)


def start(
    ranks: int, program: str, words: Sequence[str], variables: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start a module of `support` on every rank of a new world, with more variables; options as for `Popen`."""
    line = world_command(found(), Geometry.here(ranks, 1), _stub(program, words))
    environment, _ = scrub(os.environ)
    environment = line.variables(environment) | {stub.CLUSTER: _ID} | dict(variables or {})
    return subprocess.Popen(line.argv, env=environment, text=True, stdin=subprocess.DEVNULL, **options)


def run_program(ranks: int, program: str, deadline: float) -> list[str]:
    """Run a program on every rank of a new world, and return the lines that they print, sorted."""
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with start(ranks, "support.program", [program], **pipes) as process:
        try:
            out, errors = process.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    assert process.returncode == 0, errors
    return sorted(out.split("\n"))[1:]


class World:
    """A world whose ranks run checks, one after the other.

    It starts with the first check, and starts anew for the next one when a check has gone wrong.
    """

    def __init__(self, ranks: int, folder: Path | None = None, variables: Mapping[str, str] | None = None) -> None:
        self._ranks, self._certificates, self._variables = ranks, folder, variables
        self._process: subprocess.Popen[str] | None = None
        self._folders: list[Path] = []
        self._connections: dict[int, Connection] = {}
        self._pids: dict[int, int] = {}
        self.dead: set[int] = set()

    def run(self, check: Check, mortal: Sequence[int] = ()) -> None:
        """Run a check on all ranks; those that are `mortal` may end in it."""
        if self._process is None:
            self._start()
        for connection in self._connections.values():
            connection.send(("run", inspect.unwrap(check).__code__.co_filename, check.__name__))
        outcomes = self._attend("done")
        failures = {rank: outcome for rank, outcome in outcomes.items() if outcome is not None}
        if failures or not self.dead <= set(mortal):
            self.stop(finalize=False)
            said = "\n".join(f"-- rank {rank}:\n{outcome}" for rank, outcome in failures.items())
            pytest.fail(f"ranks that ended: {self.dead}\n{said}\n-- on stderr:\n{self._errors()}", pytrace=False)

    def _start(self) -> None:
        # $TMPDIR is too long for a socket at many places.
        self._folder = Path(tempfile.mkdtemp(prefix="wb-", dir="/tmp"))
        self._folders.append(self._folder)
        path = str(self._folder / "socket")
        words = [path, str(self._ranks), str(self._certificates or "")]
        with socket.socket(socket.AF_UNIX) as door, open(self._folder / "stderr", "w", encoding="utf-8") as errors:
            door.bind(path)
            door.listen(self._ranks)
            door.settimeout(DEADLINE)
            self._process = start(self._ranks, "support.member", words, self._variables, stdout=errors, stderr=errors)
            for _ in range(self._ranks):
                connection = Connection(door.accept()[0].detach())
                self._connections[connection.recv()] = connection
        self.dead = set()
        self._pids = self._attend("ready")

    def _attend(self, last: str) -> dict[int, Any]:
        """Serve the ranks until all that live have said `last`; return what they said with it."""
        said: dict[int, Any] = {}
        asked: dict[int, Any] = {}
        deadline = time.monotonic() + HANGS
        while busy := [rank for rank in self._connections if rank not in said]:
            if len(asked) == len(busy):
                answer = None if any(said.values()) else asked
                for rank in asked:
                    self._connections[rank].send(answer)
                asked = {}
            for rank in self._heard([rank for rank in busy if rank not in asked], deadline):
                try:
                    what, value = self._connections[rank].recv()
                except (EOFError, ConnectionError):
                    self.dead.add(rank)
                    self._connections.pop(rank).close()
                else:
                    (said if what == last else asked)[rank] = value
        return said

    def _heard(self, ranks: list[int], deadline: float) -> list[int]:
        connections = {self._connections[rank]: rank for rank in ranks}
        ready = wait(list(connections), max(0, deadline - time.monotonic()))
        if not ready:
            for rank in self._connections:
                os.kill(self._pids[rank], signal.SIGUSR2)
            time.sleep(0.5)  # for the tracebacks, whose end has no notification
            self.stop(finalize=False)
            pytest.fail(f"ranks {ranks} hang:\n{self._errors()}", pytrace=False)
        return [connections[connection] for connection in ready]

    def _errors(self) -> str:
        return (self._folder / "stderr").read_text(encoding="utf-8", errors="replace")[-6000:]

    def stop(self, *, finalize: bool = True) -> None:
        """End the world; with `finalize` all ranks have to finalize MPI and end by themselves."""
        if self._process is None:
            return
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.send(("end", finalize))
        try:
            code = self._process.wait(DEADLINE if finalize else 2)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            code = self._process.wait(DEADLINE)
        for connection in self._connections.values():
            connection.close()
        self._connections, self._process = {}, None
        if finalize:
            assert code == 0, f"mpiexec ended with {code}: {self._errors()}"

    def close(self) -> None:
        """End the world, and remove what was written."""
        self.stop(finalize=not self.dead)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)


def on_ranks(check: Check) -> Callable[[World], None]:
    """Make a test of a check: it runs on every rank of the fixture `world`."""

    def test(world: World) -> None:
        world.run(check)

    test.__name__, test.__doc__, test.check = check.__name__, check.__doc__, check  # type: ignore[attr-defined]
    return test
