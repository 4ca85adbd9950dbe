"""One MPI world: who of its ranks is there, and, as a child process, its ``mpiexec`` and its end."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from workbench.deploy import logs, node_dirs
from workbench.deploy.job_spec import allocation_of, world_line
from workbench.deploy.permissions import opener
from workbench.deploy.registry import Record
from workbench.launch import parent_death
from workbench.launch.mpi_library import MPI
from workbench.launch.mpiexec import Command
from workbench.log import debug_log
from workbench.text import exit_words


class MPIWorld(abc.ABC):
    """One world of a cluster, over all its starts: who of its ranks is there."""

    def __init__(self, record: Record, mpi: MPI, index: int, ranks: int) -> None:
        self.record, self.mpi, self.index, self.ranks = record, mpi, index, ranks
        self.starts = 0
        self.present: dict[int, dict[str, Any]] = {}
        """What each rank that is there told of itself, by rank."""
        self.lost: dict[int, dict[str, Any]] = {}
        """The same of the ranks that have died since the world was ready."""
        self.ready = False
        """Whether all ranks of the present start have been there at one time."""
        self.stopping = False
        """Whether its end was asked for."""
        self.broken: str | None = None
        """Who does not come back from a call on all ranks; until then no other can be made."""
        self.restart_asked = False
        """Whether it is to be started again after that end."""
        self.job: str | None = None
        """Its job, if it has one of its own."""
        self._changed = asyncio.Event()

    @property
    def state(self) -> str:
        """As of `workbench.deploy.record.World`."""
        if not self.ready:
            return "starting" if self.starts <= 1 else "restarting"
        return "degraded" if self.lost else "ready"

    @property
    def log(self) -> Path:
        """File with the output of ``mpiexec`` and of ranks that failed while starting."""
        return logs.of_world(self.record, self.index)

    @abc.abstractmethod
    async def start(self, timeout: float, address: str) -> None:
        """Start the ranks, which give themselves `timeout` seconds to register with the scheduler at `address`.

        Raises
        ------
        WorkbenchError
            If that cannot even be tried.
        """

    @abc.abstractmethod
    async def exited(self) -> str:
        """Wait for the end of all ranks and return in words how it came."""

    @abc.abstractmethod
    async def stop(self, ask: Callable[[], Awaitable[None]]) -> None:
        """End the world: ask its ranks, which finalise MPI together, then end what is left of it.

        Parameters
        ----------
        ask
            Sends the ranks the request to end.
        """

    def begin(self) -> None:
        """Note that a new start begins."""
        self.present, self.lost, self.ready, self.stopping, self.broken = {}, {}, False, False, None
        self._changed = asyncio.Event()
        self.starts += 1

    async def complete(self) -> None:
        """Wait until all ranks are there."""
        while not self.ready:
            await self._changed.wait()

    def joined(self, rank: int, told: dict[str, Any]) -> None:
        """Note that the worker of a rank has registered."""
        self.present[rank] = told
        if len(self.present) == self.ranks:
            self.ready = True
            self._changed.set()

    def left(self, rank: int) -> dict[str, Any]:
        """Note that the worker of a rank is gone; return what the rank had told of itself."""
        told = self.present.pop(rank, {})
        if self.ready and not self.stopping:
            self.lost[rank] = told
        return told

    def missing(self) -> list[int]:
        """Return the ranks that are not there."""
        return sorted(set(range(self.ranks)) - set(self.present))


class WorldProcess(MPIWorld):
    """A world whose ``mpiexec`` is a child of this process.

    Notes
    -----
    `spawn` has to be called from the main thread: the tether of ``mpiexec`` is tied to the thread that starts it.
    """

    def __init__(self, record: Record, mpi: MPI, index: int, ranks: int) -> None:
        super().__init__(record, mpi, index, ranks)
        self._process: subprocess.Popen[bytes] | None = None
        self._program = "mpiexec"

    def command(self, timeout: float) -> tuple[list[str], Command]:
        """Return the words that tie the world's ``mpiexec`` to this process, and its command line."""
        command = world_line(
            self.record,
            self.mpi,
            index=self.index,
            ranks=self.ranks,
            timeout=timeout,
            shared_memory=self._folder(),
            log=self.log,
            around=allocation_of(self.record),
        )
        return parent_death.words(str(self._folder()), command.guard), command

    def _folder(self) -> Path:
        """Return the folder for shared memory and session files of this world."""
        return node_dirs.shared_memory(self.record.id) / f"world-{self.index}"

    def spawn(self, timeout: float) -> None:
        """Start ``mpiexec`` and with it the ranks, which wait for the scheduler's address.

        Parameters
        ----------
        timeout
            Seconds that the ranks give themselves to be ready.
        """
        self.begin()
        tied, command = self.command(timeout)
        self._program = Path(command.argv[0]).name
        # Of an earlier start: ranks that were killed leave their segments.
        shutil.rmtree(self._folder(), ignore_errors=True)
        self._folder().mkdir(mode=0o700)
        if command.guard:
            Path(command.guard).mkdir(mode=0o700, exist_ok=True)
        with open(self.log, "ab", opener=opener) as log:
            log.write(f"{logs.COMMAND}{' '.join(command.argv)}\n".encode())
            if command.guard is None and self._program != "srun":
                log.write(b"workbench: mpiexec has no guard here, so other users can command it: docs/security.md\n")
            log.flush()
            self._process = subprocess.Popen(
                [*tied, *command.argv],
                env=command.variables(dict(os.environ)),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        debug_log.started(self._process.pid, "%s of world %d", self._program, self.index)

    async def start(self, timeout: float, address: str) -> None:
        """Spawn ``mpiexec`` and tell rank 0 where the scheduler is."""
        self.spawn(timeout)
        self.tell(address)

    def tell(self, address: str) -> None:
        """Give rank 0 the scheduler's address."""
        # It may have died; the exit code says so better than a broken pipe.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._started().stdin.fileno(), f"{address}\n".encode())  # type: ignore[union-attr]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"world {self.index} has not been started: call spawn() first")
        return self._process

    async def exited(self) -> str:
        """Wait for the end of ``mpiexec`` and return in words how it came."""
        loop, process = asyncio.get_running_loop(), self._started()
        done: asyncio.Future[int] = loop.create_future()

        def tell(code: int) -> None:
            if not done.done():
                done.set_result(code)

        def reap() -> None:
            code = process.wait()
            with contextlib.suppress(RuntimeError):  # the loop may have been closed
                loop.call_soon_threadsafe(tell, code)

        threading.Thread(target=reap, name=f"world-{self.index}", daemon=True).start()
        code = await done
        debug_log.ended(process.pid, code, "%s of world %d", self._program, self.index)
        return f"{self._program} ended with {exit_words(code)}"

    async def stop(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask the ranks to end, then ``mpiexec``, then kill what is left."""
        self.stopping = True
        process = self._process
        if process is None or process.poll() is not None:
            return
        exited = asyncio.ensure_future(self.exited())

        async def by_signal(number: int) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

        steps: list[tuple[Callable[[], Awaitable[None]], float]] = [
            (lambda: by_signal(signal.SIGTERM), 2.0),
            (lambda: by_signal(signal.SIGKILL), 2.0),
        ]
        if self.ready:  # else there is somebody who cannot be asked
            # A connection and a handshake for each rank, one after the other.
            steps.insert(0, (ask, 5.0 + self.ranks / 200))
        for step, patience in steps:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await step()
                    await asyncio.shield(exited)
                    break
        # mpiexec was killed: ranks of this host that it could not end.
        for told in {**self.present, **self.lost}.values():
            if told.get("host") == os.uname().nodename:
                _kill_rank(told["pid"], self.record.name)


def _kill_rank(pid: int, name: str) -> None:
    """Kill `pid` if it still is a rank of the cluster."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"workbench.rank" in words and name.encode() in words:
            os.kill(pid, signal.SIGKILL)
