"""Processes that the server runs for a while, without its event loop waiting for them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from workbench.errors import LaunchError

# Seconds between two looks whether a process has ended.
_LOOK = 0.05


@dataclass(frozen=True)
class Ended:
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
        with ExitStack() as files:
            try:
                self._out, self._errors = (files.enter_context(TemporaryFile()) for _ in range(2))
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=self._out,
                    stderr=self._errors,
                    cwd=directory,
                    env=environment,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:  # the latter of variables that cannot be
                raise LaunchError(f"cannot run {argv[0]}: {error}. Choose another kernel or folder.") from error
            files.pop_all()  # closed when it has ended

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    async def ended(self, deadline: float | None = None) -> Ended:
        """Wait for its end.

        Parameters
        ----------
        deadline
            Seconds after which it is killed, with all that it has started in its session; None: never.

        Raises
        ------
        TimeoutError
            If it was killed.
        """
        try:
            async with asyncio.timeout(deadline):
                # There is no event for its end on every system.
                while (code := self._process.poll()) is None:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK)
        except TimeoutError:
            await self.kill()
            raise TimeoutError(f"`{' '.join(self._argv)}` was not done after {deadline:.0f} s, and was ended") from None
        files = self._out, self._errors
        for file in files:
            file.seek(0)  # the process had the same place in it
        ended = Ended(code, *(file.read().decode(errors="replace") for file in files))
        self._close()
        return ended

    def interrupt(self) -> None:
        """Send it what Ctrl-C does."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    async def kill(self) -> None:
        """Kill it, with all that it has started in its session."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.to_thread(self._process.wait)
        self._close()

    def _close(self) -> None:
        self._out.close()
        self._errors.close()


async def run(
    argv: Sequence[str], deadline: float, *, directory: Path | None = None, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run a process to its end, or until nobody waits for it any more; as `Process` and `Process.ended`."""
    return await end_of(Process(argv, directory=directory, environment=environment), deadline)


async def end_of(process: Process, deadline: float) -> Ended:
    """Wait for the end of a process as `Process.ended`; it is killed as soon as nobody waits for it any more."""
    try:
        return await process.ended(deadline)
    finally:
        await process.kill()
