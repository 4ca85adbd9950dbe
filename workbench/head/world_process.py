"""An MPI world whose ``mpiexec`` is a child of the head."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from workbench.deploy import logs
from workbench.deploy.job_spec import allocation_of, world_line
from workbench.deploy.record import Record
from workbench.deploy.world import MPIWorld
from workbench.host import debug_log, node_dirs, parent_death
from workbench.launch.mpi_library import MPI, WorldCommand
from workbench.text import exit_description


class WorldProcess(MPIWorld):
    """A world whose ``mpiexec`` is a child of this process.

    `spawn` must be called from the main thread, because the tether of ``mpiexec`` is tied to the thread that starts it.
    """

    def __init__(self, record: Record, mpi: MPI, index: int, ranks: int) -> None:
        super().__init__(record, mpi, index, ranks)
        self._process: subprocess.Popen[bytes] | None = None
        self._program = "mpiexec"

    def command(self, timeout: float) -> tuple[list[str], WorldCommand]:
        """Return the prefix that ties the world's ``mpiexec`` to this process, and its command line."""
        command = world_line(
            self.record,
            self.folder,
            self.mpi,
            index=self.index,
            ranks=self.ranks,
            timeout=timeout,
            shared_memory=self._folder(),
            log=self.log,
            allocation=allocation_of(self.record),
        )
        return parent_death.command_line(str(self._folder()), command.guard), command

    def _folder(self) -> Path:
        """Return the folder for shared memory and session files of this world."""
        return node_dirs.shared_memory(self.record.id) / f"world-{self.index}"

    def spawn(self, timeout: float) -> None:
        """Start ``mpiexec`` and the ranks, which wait for the scheduler's address and must be ready in `timeout` s."""
        self.begin()
        tether, command = self.command(timeout)
        self._program = Path(command.argv[0]).name
        # Killed ranks of an earlier start leave their segments.
        shutil.rmtree(self._folder(), ignore_errors=True)
        self._folder().mkdir(mode=0o700)
        if command.guard:
            Path(command.guard).mkdir(mode=0o700, exist_ok=True)
        with logs.append(self.log) as log:
            log.write(f"{logs.COMMAND}{' '.join(command.argv)}\n".encode())
            if command.guard is None and self._program != "srun":
                log.write(
                    b"workbench: mpiexec has no guard here, so other users can send commands to it: docs/security.md\n"
                )
            log.flush()
            self._process = subprocess.Popen(
                [*tether, *command.argv],
                env=command.variables(dict(os.environ)),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        debug_log.started(self._process.pid, "%s of world %d", self._program, self.index)

    async def start(self, timeout: float, address: str) -> None:
        """Spawn ``mpiexec`` and send the scheduler's address to rank 0."""
        self.spawn(timeout)
        self.send_address(address)

    def send_address(self, address: str) -> None:
        """Send the scheduler's address to rank 0."""
        # If mpiexec has ended, its exit code is a better report than a broken pipe.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._running_process().stdin.fileno(), f"{address}\n".encode())  # type: ignore[union-attr]

    @property
    def killed(self) -> bool:
        """As `MPIWorld.killed`."""
        code = None if self._process is None else self._process.poll()
        return code is not None and code < 0

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"World {self.index} was not started. Call spawn() first.")
        return self._process

    async def exited(self) -> str:
        """Wait for the end of ``mpiexec`` and return a message about its end."""
        return await self._exited(self._running_process())

    async def _exited(self, process: subprocess.Popen[bytes]) -> str:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()

        def set_result(code: int) -> None:
            if not done.done():
                done.set_result(code)

        def reap() -> None:
            code = process.wait()
            with contextlib.suppress(RuntimeError):  # the loop may have been closed
                loop.call_soon_threadsafe(set_result, code)

        threading.Thread(target=reap, name=f"world-{self.index}", daemon=True).start()
        code = await done
        debug_log.ended(process.pid, code, "%s of world %d", self._program, self.index)
        return f"{self._program} ended with {exit_description(code)}"

    async def stop(self, request_end: Callable[[], Awaitable[None]]) -> None:
        """Request the end of the ranks, then of ``mpiexec``, then kill the rest."""
        self.stopping = True
        # Those of this start: the next one may begin as soon as mpiexec has ended.
        process, present, lost = self._process, self.present, self.lost
        if process is None or process.poll() is not None:
            return
        exited = asyncio.ensure_future(self._exited(process))

        async def by_signal(number: int) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

        steps: list[tuple[Callable[[], Awaitable[None]], float]] = [
            (lambda: by_signal(signal.SIGTERM), 2.0),
            (lambda: by_signal(signal.SIGKILL), 2.0),
        ]
        if self.ready:  # otherwise a rank does not receive the request
            # The head connects to one rank after the other, with a handshake for each.
            steps.insert(0, (request_end, 5.0 + self.ranks / 200))
        for step, timeout in steps:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await step()
                    await asyncio.shield(exited)
                    break
        # A killed mpiexec may have left ranks on this host.
        for facts in {**present, **lost}.values():
            if facts.get("host") == os.uname().nodename:
                _kill_rank(facts["pid"], self.record.name)


def _kill_rank(pid: int, name: str) -> None:
    """Kill `pid` if the process is still a rank of the cluster."""
    with contextlib.suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"workbench.rank" in arguments and name.encode() in arguments:
            os.kill(pid, signal.SIGKILL)


_RANK_STEPS = {
    "begun": "ranks begin",
    "forked": "ranks are forked",
    "imported": "ranks have imported their modules",
    "in MPI": "ranks have initialized MPI",
    "addressed": "ranks know the scheduler's address",
    "serving": "ranks have made their workers",
}


def step_times(head: Mapping[str, float], ranks: Iterable[Mapping[str, float]], ready: float) -> list[str]:
    r"""Return one line per step of a start.

    Parameters
    ----------
    head
        Times of the steps of the head, in seconds since the epoch, by step. The first one is the beginning.
    ranks
        The same for each rank.
    ready
        The time at which all ranks had registered.

    Examples
    --------
    >>> ranks = [{"begun": 10.2, "serving": 10.8}, {"begun": 10.3, "serving": 10.7}]
    >>> print(*step_times({"the head begins": 10.0, "the scheduler listens": 10.5}, ranks, 11.0), sep="\n")
    0.00 s          the head begins
    0.20 to 0.30 s  ranks begin
    0.50 s          the scheduler listens
    0.70 to 0.80 s  ranks have made their workers
    1.00 s          all ranks have registered
    """
    times_of_ranks = list(ranks)
    begin = min(head.values())
    steps = [(time, time, text) for text, time in head.items()]
    for step, text in _RANK_STEPS.items():
        if times := [times[step] for times in times_of_ranks if step in times]:
            steps.append((min(times), max(times), text))
    steps.append((ready, ready, "all ranks have registered"))
    rows = []
    for first, last, text in sorted(steps):
        period = (
            f"{first - begin:.2f}" if f"{first:.2f}" == f"{last:.2f}" else f"{first - begin:.2f} to {last - begin:.2f}"
        )
        rows.append(f"{period + ' s':<15} {text}")
    return rows
