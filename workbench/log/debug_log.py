"""A log at level debug: commands of schedulers and their answers, processes, and requests that change a cluster.

The variable ``WORKBENCH_LOG=debug`` turns the log on, for a process and for all that the process starts. Without that
nothing is formatted, and nothing is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from workbench.errors import InvalidRequest
from workbench.text import exit_words

VARIABLE = "WORKBENCH_LOG"
"""The variable that turns the log on."""
_ON = "debug"
# Of a process whose standard error is an answer: the number of the open file that takes its log.
_FILE = "WORKBENCH_LOG_FILE"
_FORMAT = "%(asctime)s %(process)d %(name)s %(levelname)s %(message)s"
# To the beginning of a terminal's line: the line that shows progress is replaced, and drawn again.
_CLEARED = "\r\x1b[K"
# Characters of a command line, an answer or a request.
_LONGEST = 2000

# Processes whose start is in the log, and whose end is not.
_running: set[int] = set()


def is_asked(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a process with these variables is asked for the log."""
    return environment.get(VARIABLE) == _ON


def variables() -> tuple[tuple[str, str], ...]:
    """Return what a job has to be given that the variables of this process may not reach."""
    return ((VARIABLE, _ON),) if is_asked() else ()


def set_up() -> None:
    """Write the log of this process from now on, if its variables ask for that."""
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
    # Whoever sets up logging after this would have each line twice.
    root.propagate = False


@contextmanager
def shown(*, verbose: bool = False) -> Iterator[None]:
    """Write the log while a command runs, and while what the command starts runs, if that is asked for.

    Parameters
    ----------
    verbose
        Whether an option of the command asks for it; the variable does so as well.

    Raises
    ------
    InvalidRequest
        If the variable has a value that is not allowed.
    """
    if (given := os.environ.get(VARIABLE, "")) not in ("", _ON):
        raise InvalidRequest(f"the variable {VARIABLE} is {given!r}: allowed is {_ON!r}; unset it for no log.")
    if given or not verbose:
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
    """Give variables and open files of a process whose standard error is an answer, and whose log goes to this one's.

    Parameters
    ----------
    environment
        The variables that the process is meant to have.
    """
    if not is_asked(environment):
        yield environment, ()
        return
    number = os.dup(2)
    try:
        yield {**environment, _FILE: str(number)}, (number,)
    finally:
        os.close(number)


def living(what: str, main: Callable[[], int]) -> int:
    """Run the main function of a process, whose start and end are logged, and return its exit code."""
    set_up()
    started(os.getpid(), what)
    code = main()
    ended(os.getpid(), code, what)
    return code


def is_written(kind: str) -> bool:
    """Return whether there is a log of a kind of events: ``process``, ``scheduler`` or ``request``."""
    # Where nobody has loaded it, nobody has set up a log.
    logging = sys.modules.get("logging")
    return logging is not None and logging.getLogger(f"workbench.{kind}").isEnabledFor(logging.DEBUG)


def write(kind: str, message: str, *words: object) -> None:
    """Log an event of a kind; `words` are what `message` has places for."""
    if is_written(kind):
        import logging

        logging.getLogger(f"workbench.{kind}").debug("%s", plain(message % words))


def started(pid: int, what: str, *words: object) -> None:
    """Log that a process was started; `words` are what `what` has places for."""
    if is_written("process"):
        _running.add(pid)
        write("process", f"started: {what}, process %d", *words, pid)


def ended(pid: int, code: int | None, what: str, *words: object) -> None:
    """Log how a process has ended whose start was logged; once, and not if it has not ended (`code` is None)."""
    if code is not None and pid in _running:
        _running.remove(pid)
        write("process", f"ended: {what}, process %d, %s", *words, pid, exit_words(code))


def plain(text: str) -> str:
    r"""Return a text on one line as the log has it: without secrets, `printable`, and not too long.

    Examples
    --------
    >>> plain("API_KEY=abc\nqueued\x1b")
    'API_KEY=***\\nqueued\\x1b'
    """
    from workbench.log.printable import printable
    from workbench.log.redacted import redacted

    text = redacted(text)
    more = f" [... {len(text) - _LONGEST} more characters]" if len(text) > _LONGEST else ""
    return printable(text[:_LONGEST]).replace("\n", r"\n") + more
