"""Start daemons that do not outlive the tests, and end them with all that they started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from support.patience import DEADLINE

# PR_SET_PDEATHSIG: it is killed if the thread that started it dies. PR_SET_CHILD_SUBREAPER: what its children leave
# behind becomes its child, thus everything that it started stays below it. Both survive exec.
_PREPARE = """
import ctypes, os, sys
prctl = ctypes.CDLL(None).prctl
prctl(1, 9, 0, 0, 0)
prctl(36, 1, 0, 0, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Trouble(Exception):
    """A daemon does not do what it should."""


class Daemon:
    """A process that stays in the foreground, in a separate session; its output goes to a log."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], *, talks: bool = False
    ) -> None:
        pipe = subprocess.PIPE if talks else None
        self.log = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-IS", "-c", _PREPARE, *command],
                env={**os.environ, **environment},
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the tests, which end it in good order
            )
        self.process = psutil.Process(self._popen.pid)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def check(self) -> None:
        if (code := self._popen.poll()) is not None:
            raise Trouble(f"{self._popen.args[4]} has ended with {code}: {self.tail()}")

    def tail(self, lines: int = 15) -> str:
        return f"the last lines of {self.log}:\n" + "\n".join(
            self.log.read_text(errors="replace").splitlines()[-lines:],
        )

    def hear(self) -> str:
        """Wait for its next line."""
        line = self._popen.stdout.readline()
        if not line:
            self._popen.wait(DEADLINE)
            self.check()
        return line.decode().strip()

    def tell(self) -> None:
        """Let the process continue."""
        self._popen.stdin.write(b"\n")
        self._popen.stdin.flush()

    def terminate(self) -> None:
        """End it in good order, or in bad order if that takes too long."""
        self.process.resume()
        self._popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(DEADLINE / 3)
        self.kill()

    def kill(self) -> None:
        """Kill the process, and all that it started."""
        if self._popen.poll() is None:
            self.process.suspend()  # it starts no more
            begin = time.monotonic()
            while below := [process for process in self.process.children(recursive=True) if _lives(process)]:
                for process in below:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                if time.monotonic() - begin > DEADLINE:
                    raise Trouble(f"killed {DEADLINE} s ago and still there: {below}")
                time.sleep(0.005)
            self._popen.kill()
        self._popen.wait(DEADLINE)
        for stream in filter(None, (self._popen.stdin, self._popen.stdout)):
            with contextlib.suppress(OSError):
                stream.close()


def running(argument: str) -> list[psutil.Process]:
    """Return the processes of this machine that were given this argument."""
    return [process for process in psutil.process_iter(["cmdline"]) if argument in (process.info["cmdline"] or ())]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
