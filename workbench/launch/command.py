"""The commands of schedulers, each run with a deadline; other modules parse the output."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Concatenate, ParamSpec

from workbench import config
from workbench.errors import LaunchError, SchedulerTimeout
from workbench.host import debug_log

P = ParamSpec("P")

# A user who waits longer sees for which command.
_SILENT_S = 1.0
# A scheduler that did not answer a user is asked again after this time.
_RETRY_S = 30.0
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


@dataclass
class _Patience:
    """What a user who waits for schedulers knows of them."""

    say: Callable[[str], None]
    """Shows a text."""
    silent: dict[str, tuple[float, float, SchedulerTimeout]] = field(default_factory=dict)
    """By the name of a server without an answer: when to ask it again, as of `time.monotonic`, for how many seconds it
    was asked, and the error."""


def _server(program: str) -> str:
    """Return the name of the server that answers a command."""
    slurm = "Slurm's accounting" if program == "sacct" else "Slurm"
    return slurm if program.startswith("s") else "PBS"


def silence_limit() -> float:
    """Return the seconds for which a user waits for a scheduler that does not answer."""
    return config.seconds("scheduler-timeout") / 4


def submit_timeout() -> float:
    """Return the time limit of a submission in seconds; a site's filters of jobs may run in the submission."""
    return 3 * config.seconds("scheduler-timeout")


_patience: ContextVar[_Patience | None] = ContextVar("patience", default=None)
_insists: ContextVar[bool] = ContextVar("insists", default=False)


@contextlib.contextmanager
def answering_soon(say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Limit the time for which a user waits for a scheduler that is silent, in this thread and context.

    Parameters
    ----------
    say
        Shows a text if a command takes longer than a second.

    Notes
    -----
    The limit of each command is a quarter of ``workbench.scheduler-timeout``. After a command without an answer `ask`
    fails immediately for half a minute. A context in another one is a part of that one. See also `insisting`.
    """
    if _patience.get() is not None:
        yield
        return
    token = _patience.set(_Patience(say))
    try:
        yield
    finally:
        _patience.reset(token)


@contextlib.contextmanager
def insisting() -> Iterator[None]:
    """Give each command the whole ``workbench.scheduler-timeout``, in this thread and context.

    Notes
    -----
    For commands by which a job is submitted or canceled: a busy scheduler needs longer than `answering_soon` waits,
    and obeys. Here `ask` fails immediately only after a command that had as much time.
    """
    token = _insists.set(True)
    try:
        yield
    finally:
        _insists.reset(token)


def say(text: str) -> None:
    """Show a text to the user who waits in the context of `answering_soon`, if any."""
    if (patience := _patience.get()) is not None:
        patience.say(text)


def found_silence() -> bool:
    """Return whether a scheduler did not answer in the context of `answering_soon`, and is not asked again yet."""
    patience = _patience.get()
    return patience is not None and bool(patience.silent)


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
def ask(argv: Sequence[str], *, environment: Mapping[str, str] | None = None) -> Answer:
    """Run a command of a scheduler and return the answer.

    Parameters
    ----------
    argv
        The command line.
    environment
        Variables of the command; None: those of this process.

    Raises
    ------
    SchedulerTimeout
        If the command does not end in time.
    LaunchError
        If the command does not exist.
    """
    waiting, server = _patience.get(), _server(argv[0])
    patience = waiting or _Patience(lambda _: None)
    timeout = silence_limit() if waiting and not _insists.get() else config.seconds("scheduler-timeout")
    retry, waited, silence = patience.silent.get(server, (0.0, 0.0, None))
    if silence is not None and time.monotonic() < retry and timeout <= waited:
        raise silence.converted(SchedulerTimeout, silence.message)
    try:
        with subprocess.Popen(
            argv, env=_with_plain_output(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace",
        ) as process:  # fmt: skip
            try:
                out, err = _communicate(process, argv, timeout)
            except BaseException:
                process.kill()
                raise
    except subprocess.TimeoutExpired as error:
        silence = _timed_out(argv, timeout)
        patience.silent[server] = time.monotonic() + _RETRY_S, timeout, silence
        raise silence from error
    except OSError as error:
        raise LaunchError(f"cannot run {argv[0]}: {error}.", hint=_NO_COMMAND) from error
    patience.silent.pop(server, None)
    return Answer(process.returncode, out, err)


def _communicate(process: subprocess.Popen[str], argv: Sequence[str], timeout: float) -> tuple[str, str]:
    """Return the output and the errors of a command, and say to a user who waits which answer is missing."""
    patience = _patience.get()
    if patience is not None and timeout > _SILENT_S:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_SILENT_S)
        patience.say(f"waiting for {_server(argv[0])}: {argv[0]} has {timeout:.3g} s to answer")
        timeout -= _SILENT_S
    return process.communicate(timeout=timeout)


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
    timeout = submit_timeout()
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
            _, errors = _communicate(process, argv, timeout)
        except subprocess.TimeoutExpired as error:
            # The whole session: the command may be a site's script, whose programs keep the receipt and the pipe open.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise _timed_out(argv, timeout) from error
        if (patience := _patience.get()) is not None and process.returncode == 0:
            patience.silent.pop(_server(argv[0]), None)
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
        hint="The scheduler may be down or busy. Try again, or increase the setting workbench.scheduler-timeout.",
    )
