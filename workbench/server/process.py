"""Processes that the server runs for a while, without its event loop waiting for them."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from workbench.errors import LaunchError
from workbench.log import debug_log

# Seconds between two looks whether a process has ended, and for one that was killed to do so.
_LOOK, _KILLED = 0.05, 10.0
# What `env` exits with if it could not run what it was to run.
_NOT_RUN = (125, 126, 127)


def by_env(argv: Sequence[str], directory: Path | None = None) -> list[str]:
    """Return a command line that becomes `argv` in a folder, and that can itself be run without delay.

    Notes
    -----
    Whoever runs a program waits until the system has loaded that: an interpreter on a file server that hangs would
    stop the event loop, and even other threads, since `vfork` holds the interpreter's lock. Only ``env`` hangs so. It
    hands on all variables, which a shell does not.
    """
    if "=" in argv[0]:
        return list(argv)  # env would take it for a variable
    return ["env", *([f"--chdir={directory}"] if directory else []), *argv]


@dataclass(frozen=True)
class ProcessResult:
    """How a process has ended."""

    code: int
    """Its exit code; below zero: the signal that has killed it."""
    out: str
    """What it has printed."""
    errors: str
    """What it has printed on standard error."""


class Process:
    """A process in a session of its own, whose output goes to files: it needs nobody to go on.

    Parameters
    ----------
    argv
        Its command line.
    directory
        Its working directory; None: this process's.
    environment
        Its variables; None: this process's.

    Raises
    ------
    LaunchError
        If it cannot be started.

    Notes
    -----
    asyncio's own processes are killed with their event loop; these are not.
    """

    def __init__(
        self, argv: Sequence[str], *, directory: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._argv = argv
        its = os.environ if environment is None else environment
        try:
            with ExitStack() as files, debug_log.handed_on(its) as (variables, log):
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
                files.pop_all()  # closed when it has ended
        except (OSError, ValueError) as error:  # the latter of variables that cannot be
            raise _not_run(argv, error) from error
        debug_log.started(self.pid, "%s", shlex.join(argv))

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    async def ended(self, deadline: float | None = None) -> ProcessResult:
        """Wait for its end.

        Parameters
        ----------
        deadline
            Seconds after which it is killed, with all that it has started in its session; None: never.

        Raises
        ------
        TimeoutError
            If it was killed.
        LaunchError
            If it could not be run.
        """
        try:
            async with asyncio.timeout(deadline):
                # There is no event for its end on every system.
                while (code := self._process.poll()) is None:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK)
        except TimeoutError:
            await self.kill()
            raise TimeoutError(f"`{' '.join(self._argv)}` was not done after {deadline:.0f} s, and was ended") from None
        debug_log.ended(self.pid, code, "%s", self._argv[0])
        files = self._out, self._errors
        for file in files:
            file.seek(0)  # the process had the same place in it
        ended = ProcessResult(code, *(file.read().decode(errors="replace") for file in files))
        self._close()
        if code in _NOT_RUN and ended.errors.startswith("env: "):
            raise _not_run(self._argv, ended.errors.strip().removeprefix("env: "))
        return ended

    def interrupt(self) -> None:
        """Send it what Ctrl-C does."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    async def kill(self) -> None:
        """Kill it, with all that it has started in its session."""
        try:
            if self._process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            # One that waits for a file server cannot be killed before that answers: it is left behind.
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


def _not_run(argv: Sequence[str], why: object) -> LaunchError:
    return LaunchError(f"cannot run {argv[0]}: {why}. Choose another kernel or folder.")


async def run(
    argv: Sequence[str], deadline: float, *, directory: Path | None = None, environment: Mapping[str, str] | None = None
) -> ProcessResult:
    """Run a process to its end, or until nobody waits for it any more; as `Process` and `Process.ended`."""
    return await end_of(Process(argv, directory=directory, environment=environment), deadline)


async def end_of(process: Process, deadline: float) -> ProcessResult:
    """Wait for the end of a process as `Process.ended`; it is killed as soon as nobody waits for it any more."""
    try:
        return await process.ended(deadline)
    finally:
        await process.kill()
