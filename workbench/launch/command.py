"""Where a scheduler's commands are run, each with a deadline; what they print is parsed elsewhere."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import math
import os
import shlex
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


@dataclass(frozen=True)
class Answer:
    """What a command has answered."""

    code: int
    """Its exit code."""
    out: str
    """Its standard output."""
    err: str
    """Its standard error."""

    @property
    def describe(self) -> str:
        """The last line that tells something, of errors first."""
        lines = [line.strip() for line in (*self.err.splitlines(), *self.out.splitlines()) if line.strip()]
        return lines[-1] if lines else f"exit code {self.code} without a word"


_until: ContextVar[float] = ContextVar("until", default=math.inf)


@contextlib.contextmanager
def answering_within(seconds: float) -> Iterator[None]:
    """Have all questions that this thread asks meanwhile take no more than so many seconds together."""
    before = _until.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _until.reset(before)


def _logged(run: Callable[Concatenate[Sequence[str], P], Answer]) -> Callable[Concatenate[Sequence[str], P], Answer]:
    """Have the command line, and what is answered, in the log at level debug."""

    @functools.wraps(run)
    def logged(argv: Sequence[str], /, *args: P.args, **options: P.kwargs) -> Answer:
        if not debug_log.is_written("scheduler"):
            return run(argv, *args, **options)
        line, began = shlex.join(argv), time.monotonic()
        try:
            answer = run(argv, *args, **options)
        except LaunchError as error:
            debug_log.write("scheduler", "%s: failed after %.3f s: %s", line, time.monotonic() - began, error)
            raise
        # Errors first: a long output is cut.
        words = {"err": answer.err.strip(), "out": answer.out.strip()}
        said = "".join(f"; {name}: {text}" for name, text in words.items() if text)
        debug_log.write(
            "scheduler", "%s: exit code %d after %.3f s%s", line, answer.code, time.monotonic() - began, said
        )
        return answer

    return logged


@_logged
def ask(argv: Sequence[str], *, environment: Mapping[str, str] | None = None, within: float | None = None) -> Answer:
    """Run a command of a scheduler and return what it answers.

    Parameters
    ----------
    argv
        Words of the command line.
    environment
        Its variables; None: those of this process.
    within
        Seconds for it to answer, at most; None: ``workbench.scheduler-timeout``.

    Raises
    ------
    SchedulerTimeout
        If it does not answer in time.
    LaunchError
        If there is no such command.
    """
    timeout = min(config.seconds("scheduler-timeout"), within or math.inf, max(_until.get() - time.monotonic(), 0.0))
    if not timeout:
        raise _silent(argv, timeout)  # what was asked before has taken all the time
    try:
        done = subprocess.run(
            argv, env=_plain(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise _silent(argv, timeout) from error
    except OSError as error:
        raise LaunchError(f"cannot run {argv[0]}: {error}.", hint="Is this a host of the scheduler?") from error
    return Answer(done.returncode, done.stdout, done.stderr)


@_logged
def submit(argv: Sequence[str], receipt: Path, *, environment: Mapping[str, str], directory: Path) -> Answer:
    """Run a command that submits a job, so that its answer is on disk whatever becomes of this process.

    Parameters
    ----------
    argv
        Words of the command line.
    receipt
        File that takes standard output: the job's id. It is locked (``flock``) until the command has ended, see
        `settled`.
    environment, directory
        Variables and working directory of the command, which jobs inherit.

    Raises
    ------
    SchedulerTimeout
        If it does not answer in time; it was ended, but the scheduler may have taken the job all the same: what it
        said until then is in `receipt`.
    LaunchError
        If there is no such command.
    """
    timeout = config.seconds("submit-timeout")
    try:
        file = open(os.open(receipt, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "r+b")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise LaunchError(
            f"cannot write {receipt}: {error.strerror}.", hint="Check its folder and your quota."
        ) from error
    # Read by this descriptor too: the folder may be removed meanwhile by somebody who stops the cluster.
    with file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            # A session of its own: a signal that ends this process, or the terminal's Ctrl-C, leaves it alone.
            process = subprocess.Popen(
                argv, env=dict(environment), cwd=directory, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise LaunchError(
                f"cannot run {argv[0]} in {directory}: {error}.", hint="Is this a host of the scheduler?"
            ) from error
        try:
            _, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise _silent(argv, timeout) from error
        file.seek(0)
        return Answer(process.returncode, file.read().decode(errors="replace"), errors)


def settled(receipt: Path) -> bool:
    """Tell whether no command is about to write `receipt`."""
    try:
        with open(receipt, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # there is none, or the file system has no locks
    return True


def _plain(environment: Mapping[str, str] | None) -> dict[str, str]:
    # Words in another language, or times in another form, could not be read. Only here: jobs inherit what submits them.
    return {**(os.environ if environment is None else environment), "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def _silent(argv: Sequence[str], timeout: float) -> SchedulerTimeout:
    return SchedulerTimeout(
        f"{argv[0]} did not answer within {timeout:.3g} s.",
        hint="The scheduler is down or busy: try again, or allow more time in the settings workbench.scheduler-timeout "
        "and workbench.submit-timeout.",
    )
