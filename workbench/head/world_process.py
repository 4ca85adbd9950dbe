"""An MPI world whose ``mpiexec`` is a child of the head: its start, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

from workbench.deploy import logs
from workbench.deploy.job_spec import allocation_of, world_line
from workbench.deploy.record import Record
from workbench.deploy.world import MPIWorld
from workbench.files import node_dirs
from workbench.files.private import opener
from workbench.launch.mpi_library import MPI
from workbench.launch.mpiexec import WorldCommand
from workbench.log import debug_log
from workbench.processes import parent_death
from workbench.text import exit_words


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

    def command(self, timeout: float) -> tuple[list[str], WorldCommand]:
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
        return parent_death.command_line(str(self._folder()), command.guard), command

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
