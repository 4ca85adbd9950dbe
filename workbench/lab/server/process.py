"""Processes and tasks that the server runs without blocking its event loop, and the log of the server extension."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from workbench.cancellation import run_to_end
from workbench.errors import LaunchError
from workbench.host import debug_log

logger = logging.getLogger("WorkbenchExtension")
"""Has the name of the extension's class, so that Jupyter sets the handlers, format and level of the server's log."""
# Seconds between two polls for the end of a process, and for the end of a killed process.
_LOOK, _KILLED = 0.05, 10.0
# Exit codes of `env` if it could not run the program.
_NOT_RUN = (125, 126, 127)


def by_env(argv: Sequence[str], directory: Path | None = None) -> list[str]:
    """Return a command line that becomes `argv` in a folder, and whose start does not block.

    Notes
    -----
    The start of a program blocks until the system has loaded the program: an interpreter on a file server that hangs
    would block the event loop, and even other threads, since `vfork` holds the interpreter's lock. With ``env`` in
    between only ``env`` hangs. ``env`` passes on all variables, which a shell does not.
    """
    if "=" in argv[0]:
        return list(argv)  # env would read the program's name as a variable
    return ["env", *([f"--chdir={directory}"] if directory else []), *argv]


@contextmanager
def _interruptible() -> Iterator[None]:
    """Have SIGINT end processes that start in this context.

    A shell starts background jobs with SIGINT ignored, and the processes of a server among them would inherit this.
    """
    main = threading.current_thread() is threading.main_thread()  # no other thread can set a handler
    if not main or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: None)  # no process inherits a handler
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass(frozen=True)
class ProcessResult:
    """Exit code and output of a process."""

    code: int
    """Exit code; a negative number is the signal that killed the process."""
    out: str
    """Standard output."""
    errors: str
    """Standard error."""


class Process:
    """A process in a separate session with its output in files, so that it continues when this process ends.

    Parameters
    ----------
    argv
        Command line.
    directory
        Working directory; None: this process's.
    environment
        Variables; None: this process's.

    Raises
    ------
    LaunchError
        If the process cannot be started.

    Notes
    -----
    asyncio's own processes are killed with their event loop; these are not.
    """

    def __init__(
        self, argv: Sequence[str], *, directory: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._argv = argv
        try:
            with (
                ExitStack() as files,
                debug_log.handed_on(os.environ if environment is None else environment) as (variables, log),
                _interruptible(),
            ):
                self._out, self._errors = (files.enter_context(TemporaryFile()) for _ in range(2))
                self._process = subprocess.Popen(
                    by_env(argv, directory),
                    stdin=subprocess.DEVNULL,
                    stdout=self._out,
                    stderr=self._errors,
                    env=variables,
                    pass_fds=log,
                    start_new_session=True,
                )
                files.pop_all()  # closed after the end of the process
        except (OSError, ValueError) as error:  # ValueError: variables that are not valid
            raise _not_run(argv, error) from error
        debug_log.started(self.pid, "%s", shlex.join(argv))

    @property
    def pid(self) -> int:
        """PID of the process."""
        return self._process.pid

    async def ended(self, deadline: float | None = None) -> ProcessResult:
        """Wait for the end of the process.

        Parameters
        ----------
        deadline
            Seconds after which all processes of the session are killed; None: never.

        Raises
        ------
        TimeoutError
            If the deadline expired.
        LaunchError
            If ``env`` could not run the program.
        """
        try:
            async with asyncio.timeout(deadline):
                # Not every system has an event for the end of a process.
                while (code := self._process.poll()) is None:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK)
        except TimeoutError:
            await self.kill()
            raise TimeoutError(
                f"`{' '.join(self._argv)}` did not end within {deadline:.0f} s, and was killed"
            ) from None
        debug_log.ended(self.pid, code, "%s", self._argv[0])
        files = self._out, self._errors
        for file in files:
            file.seek(0)  # the process had the same place in it
        result = ProcessResult(code, *(file.read().decode(errors="replace") for file in files))
        self._close()
        if code in _NOT_RUN and result.errors.startswith("env: "):
            raise _not_run(self._argv, result.errors.strip().removeprefix("env: "))
        return result

    def interrupt(self) -> None:
        """Send SIGINT."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    async def kill(self) -> None:
        """Kill all processes of the session."""
        try:
            if self._process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            # A process that waits for a file server ends when that answers; this process does not wait for it.
            with suppress(TimeoutError):
                async with asyncio.timeout(_KILLED):
                    while self._process.poll() is None:  # noqa: ASYNC110
                        await asyncio.sleep(_LOOK)
        finally:
            debug_log.ended(self.pid, self._process.poll(), "%s", self._argv[0])
            self._close()

    def _close(self) -> None:
        self._out.close()
        self._errors.close()


def _not_run(argv: Sequence[str], reason: object) -> LaunchError:
    return LaunchError(f"cannot run {argv[0]}: {reason}. Choose another kernel or folder.")


async def run(
    argv: Sequence[str], deadline: float, *, directory: Path | None = None, environment: Mapping[str, str] | None = None
) -> ProcessResult:
    """Run a process as `Process`, and wait as `end_of`."""
    return await end_of(Process(argv, directory=directory, environment=environment), deadline)


async def end_of(process: Process, deadline: float) -> ProcessResult:
    """Wait for the end of a process as `Process.ended`, and kill the process if the wait is canceled."""
    try:
        return await process.ended(deadline)
    finally:
        await run_to_end(process.kill())


class BackgroundTasks:
    """Base of classes that follow processes, which continue when the server stops.

    Parameters
    ----------
    changed
        Called when a process has started or ended.

    Notes
    -----
    For one event loop.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a task is running."""
        return bool(self._tasks)

    def close(self) -> None:
        """Cancel all tasks; the processes continue."""
        for task in self._tasks:
            task.cancel()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
