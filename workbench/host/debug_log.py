"""The log at level debug: commands of schedulers, processes and requests to the head, without secrets.

Code that starts a process calls `started` and `ended`. Without the variable nothing is formatted, no handler of a
request is wrapped, and no process imports `logging` for this log. The standard error of a process of Jupyter's server
is the answer of that process, so the process inherits an open file for its log.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from workbench.errors import InvalidRequest
from workbench.text import exit_description

VARIABLE = "WORKBENCH_LOG"
"""The variable that turns the log on."""
_ON = "debug"
# Number of the open file for the log of a process whose standard error is an answer.
_FILE = "WORKBENCH_LOG_FILE"
_FORMAT = "%(asctime)s %(process)d %(name)s %(levelname)s %(message)s"
# Clears the line of a terminal, because the progress line may be there; it is drawn again later.
_CLEARED = "\r\x1b[K"
# Maximum characters of a command line, an answer or a request.
_LONGEST = 2000

# Processes whose start is in the log, and whose end is not.
_running: set[int] = set()


def is_asked(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether these environment variables turn the log on."""
    return environment.get(VARIABLE) == _ON


def variables() -> tuple[tuple[str, str], ...]:
    """Return the variables of the log for a job that does not inherit those of this process."""
    return ((VARIABLE, _ON),) if is_asked() else ()


def set_up() -> None:
    """Write the log of this process from now on, if its variables turn the log on."""
    if not is_asked():
        return
    import logging

    root = logging.getLogger("workbench")
    root.setLevel(logging.DEBUG)
    if root.hasHandlers():
        return
    stream = sys.stderr
    with suppress(KeyError, ValueError, OSError):
        stream = open(int(os.environ.pop(_FILE)), "w", encoding="utf-8")  # noqa: SIM115  (for as long as this process)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(f"{_CLEARED if stream.isatty() else ''}{_FORMAT}"))
    root.addHandler(handler)
    # Otherwise a later configuration of logging would print each line twice.
    root.propagate = False


@contextmanager
def shown(*, verbose: bool = False) -> Iterator[None]:
    """Write the log of a command and of the processes that it starts, if the option or the variable turns the log on.

    Parameters
    ----------
    verbose
        Whether the command has the option.

    Raises
    ------
    InvalidRequest
        If the value of the variable is not valid.
    """
    if (value := os.environ.get(VARIABLE, "")) not in ("", _ON):
        raise InvalidRequest(
            f"The variable {VARIABLE}={value!r} is not valid. Set it to {_ON!r}, or unset it to turn the log off."
        )
    if value or not verbose:
        set_up()
        yield
        return
    import logging

    root = logging.getLogger("workbench")
    handlers, level, propagates = root.handlers[:], root.level, root.propagate
    os.environ[VARIABLE] = _ON
    try:
        set_up()
        yield
    finally:
        del os.environ[VARIABLE]
        root.handlers[:], root.propagate = handlers, propagates
        root.setLevel(level)


@contextmanager
def handed_on(environment: Mapping[str, str]) -> Iterator[tuple[Mapping[str, str], tuple[int, ...]]]:
    """Return variables and open files for a process that logs to the standard error of this one, not to its own."""
    if not is_asked(environment):
        yield environment, ()
        return
    number = os.dup(2)
    try:
        yield {**environment, _FILE: str(number)}, (number,)
    finally:
        os.close(number)


def living(process: str, main: Callable[[], int]) -> int:
    """Run the main function of a process, whose start and end are logged, and return its exit code."""
    set_up()
    started(os.getpid(), process)
    code = main()
    ended(os.getpid(), code, process)
    return code


def is_written(kind: str) -> bool:
    """Return whether events of a kind are logged: ``process``, ``scheduler`` or ``request``."""
    # Without the module logging there is no log.
    logging = sys.modules.get("logging")
    return logging is not None and logging.getLogger(f"workbench.{kind}").isEnabledFor(logging.DEBUG)


def write(kind: str, message: str, *arguments: object) -> None:
    """Log an event of a kind; `message` is a format for `arguments`."""
    if is_written(kind):
        import logging

        logging.getLogger(f"workbench.{kind}").debug("%s", plain(message % arguments))


def started(pid: int, process: str, *arguments: object) -> None:
    """Log the start of a process; `process` is a format for `arguments`."""
    if is_written("process"):
        _running.add(pid)
        write("process", f"started: {process}, process %d", *arguments, pid)


def ended(pid: int, code: int | None, process: str, *arguments: object) -> None:
    """Log the end of a process whose start was logged, once; not of a running process, whose `code` is None."""
    if code is not None and pid in _running:
        _running.remove(pid)
        write("process", f"ended: {process}, process %d, %s", *arguments, pid, exit_description(code))


def plain(text: str) -> str:
    r"""Return a text as one line of the log: without secrets, `printable`, and cut to a maximum length.

    Examples
    --------
    >>> plain("API_KEY=abc\nqueued\x1b")
    'API_KEY=***\\nqueued\\x1b'
    """
    from workbench.text import printable

    text = redacted(text)
    more = f" [... {len(text) - _LONGEST} more characters]" if len(text) > _LONGEST else ""
    return printable(text[:_LONGEST]).replace("\n", r"\n") + more


_NAMES = r"key|token|secret|passw|passphrase|credential|dashboard_prefix"
_NAME = re.compile(_NAMES, re.IGNORECASE)
_VALUE = r"""\"(?:\\.|[^"\\])*"?|'[^']*'?|[^\s"',;&]+"""
# PBS reports all variables of a job, as JSON or as lines, and each variable may be a secret.
_VARIABLES = re.compile(
    r'("Variable_List"\s*:\s*\{|Variable_List = )'
    r'(?:(?<=\{)(?:[^{}"]|"(?:\\.|[^"\\])*(?:"|\Z))*(?:\}|\Z)|(?<= ).*?(?=\n    [\w.]+ = |\nJob Id: |\Z))',
    re.DOTALL,
)
_SECRETS = (
    _VARIABLES,
    re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL),
    # NAME=VALUE, "name": "value"; --name VALUE
    re.compile(rf"""((?<![\w.-])[\w.-]*(?:{_NAMES})[\w.-]*["']?\s*[=:]\s*)(?:{_VALUE})""", re.IGNORECASE),
    re.compile(rf"(--[\w-]*(?:{_NAMES})[\w-]*\s+)(?!-)(?:{_VALUE})", re.IGNORECASE),
    re.compile(r"(\bBearer\s+)\S+", re.IGNORECASE),
    # https://user:password@host
    re.compile(r"(://)[^/@\s]+(?=@)"),
)
_HIDDEN = "***"
# Minimum length of a variable's value, because shorter values occur in other words.
_SHORTEST = 6


def redacted(text: str) -> str:
    """Return a text with ``***`` for values with the name of a secret, and for secrets among this process's variables.

    Examples
    --------
    >>> redacted("sbatch --export=API_KEY=abc --token xyz job.sh")
    'sbatch --export=API_KEY=*** --token *** job.sh'
    """
    for secret in _SECRETS:
        text = secret.sub(rf"\g<1>{_HIDDEN}", text)
    # Another thread may remove a variable meanwhile.
    for name in filter(_NAME.search, list(os.environ)):
        if len(value := os.environ.get(name, "")) >= _SHORTEST:
            text = text.replace(value, _HIDDEN)
    return text
