"""The commands of schedulers, each run with a deadline; other modules parse the output."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import math
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec

from workbench import config
from workbench.errors import LaunchError, SchedulerTimeout
from workbench.log import debug_log

P = ParamSpec("P")

_NO_COMMAND = "Use a host on which the commands of the scheduler are installed."


@dataclass(frozen=True)
class Answer:
    """Exit code and output of a command."""

    code: int
    """Exit code."""
    out: str
    """Standard output."""
    err: str
    """Standard error."""

    @property
    def describe(self) -> str:
        """The last line that is not empty, else the exit code; standard output comes after standard error."""
        lines = [line.strip() for line in (*self.err.splitlines(), *self.out.splitlines()) if line.strip()]
        return lines[-1] if lines else f"exit code {self.code} and no output"


_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


@contextlib.contextmanager
def answering_within(seconds: float) -> Iterator[None]:
    """Limit the total time of all `ask` calls of this thread in the context."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def _logged(run: Callable[Concatenate[Sequence[str], P], Answer]) -> Callable[Concatenate[Sequence[str], P], Answer]:
    """Write the command line and the answer to the debug log."""

    @functools.wraps(run)
    def logged(argv: Sequence[str], /, *args: P.args, **options: P.kwargs) -> Answer:
        if not debug_log.is_written("scheduler"):
            return run(argv, *args, **options)
        line, started = shlex.join(argv), time.monotonic()
        try:
            answer = run(argv, *args, **options)
        except LaunchError as error:
            debug_log.write("scheduler", "%s: failed after %.3f s: %s", line, time.monotonic() - started, error)
            raise
        # Errors first: a long output is cut.
        streams = {"err": answer.err.strip(), "out": answer.out.strip()}
        output = "".join(f"; {name}: {text}" for name, text in streams.items() if text)
        debug_log.write(
            "scheduler", "%s: exit code %d after %.3f s%s", line, answer.code, time.monotonic() - started, output
        )
        return answer

    return logged


@_logged
def ask(argv: Sequence[str], *, environment: Mapping[str, str] | None = None, within: float | None = None) -> Answer:
    """Run a command of a scheduler and return the answer.

    Parameters
    ----------
    argv
        The command line.
    environment
        Variables of the command; None: those of this process.
    within
        Most seconds for the answer; None: ``workbench.scheduler-timeout``.

    Raises
    ------
    SchedulerTimeout
        If the command does not end in time.
    LaunchError
        If the command does not exist.
    """
    timeout = min(config.seconds("scheduler-timeout"), within or math.inf, max(_deadline.get() - time.monotonic(), 0.0))
    if not timeout:
        raise _timed_out(argv, timeout)  # earlier commands used up the time of `answering_within`
    try:
        completed = subprocess.run(
            argv, env=_with_plain_output(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise _timed_out(argv, timeout) from error
    except OSError as error:
        raise LaunchError(f"cannot run {argv[0]}: {error}.", hint=_NO_COMMAND) from error
    return Answer(completed.returncode, completed.stdout, completed.stderr)


@_logged
def submit(argv: Sequence[str], receipt: Path, *, environment: Mapping[str, str], directory: Path) -> Answer:
    """Run a command that submits a job, with the answer on disk even if this process is killed.

    Parameters
    ----------
    argv
        The command line.
    receipt
        File for the standard output, the job's id. The file is locked (``flock``) until the command has ended; see
        `settled`.
    environment, directory
        Variables and working directory of the command, which jobs inherit.

    Raises
    ------
    SchedulerTimeout
        If the command does not end in time. The command is killed, but the scheduler may have accepted the job:
        `receipt` has the output until then.
    LaunchError
        If the command does not exist.
    """
    timeout = config.seconds("submit-timeout")
    try:
        file = open(os.open(receipt, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "r+b")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise LaunchError(
            f"cannot write {receipt}: {error.strerror}.", hint="Check the folder of this file and your quota."
        ) from error
    # Read through the same descriptor, since a `stop` may remove the folder in the meantime.
    with file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            # In a separate session neither Ctrl-C nor a signal that ends this process reaches the command.
            process = subprocess.Popen(
                argv, env=dict(environment), cwd=directory, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise LaunchError(f"cannot run {argv[0]} in {directory}: {error}.", hint=_NO_COMMAND) from error
        try:
            _, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            # The whole session: the command may be a site's script, whose programs keep the receipt and the pipe open.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise _timed_out(argv, timeout) from error
        file.seek(0)
        return Answer(process.returncode, file.read().decode(errors="replace"), errors)


def settled(receipt: Path) -> bool:
    """Return whether no command will write `receipt` any more."""
    try:
        with open(receipt, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # the file does not exist, or the file system has no locks
    return True


def _with_plain_output(environment: Mapping[str, str] | None) -> dict[str, str]:
    # The parsers read English, and times with their offset from UTC: at the end of summer time, an hour occurs twice.
    # `submit` does not set these variables, since jobs would inherit them.
    return {**(os.environ if environment is None else environment), "LC_ALL": "C", "SLURM_TIME_FORMAT": "%FT%T%z"}


def _timed_out(argv: Sequence[str], timeout: float) -> SchedulerTimeout:
    return SchedulerTimeout(
        f"{argv[0]} did not answer within {timeout:.3g} s.",
        hint="The scheduler may be down or busy. Try again, or increase the settings workbench.scheduler-timeout and "
        "workbench.submit-timeout.",
    )
