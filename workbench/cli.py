"""The command ``workbench``: the subcommands of the notebook in a terminal."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from json import dumps
from typing import TYPE_CHECKING

from workbench.commands.parse import answer, complete, split_option
from workbench.commands.subcommand import Answer, Place
from workbench.commands.table import ASK, detached, find
from workbench.config import __version__
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.hints import TERMINAL
from workbench.host import debug_log

if TYPE_CHECKING:
    from workbench.cluster import MPICluster

EXIT_FAILED, EXIT_USAGE = 1, 2
# A shell reports 128 and the number of the signal for a command that a signal has ended.
EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 128 + signal.SIGINT, 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code of the process.

    Returns
    -------
    code : int
        0; 1 if the subcommand failed; 2 if the command line or a value is not valid; 130 after Ctrl-C; 141 if the
        reader of the output closed it.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _run_or_report(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes the output once more at its end, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    return code


def _run_or_report(arguments: Sequence[str]) -> int:
    try:
        with debug_log.shown():
            return _run(arguments)
    except WorkbenchError as error:
        if "--json" in arguments:
            print(dumps({"error": error.fields()}))
        return _fail(error.text(TERMINAL), EXIT_USAGE if isinstance(error, InvalidRequest) else EXIT_FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)


def _fail(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def _run(arguments: Sequence[str]) -> int:
    if arguments == ["--version"]:
        print(f"workbench {__version__}")
        return 0
    if arguments[:2] == ["completion", ASK]:
        print(*_completions(arguments[2:] or [""]), sep="\n")
        return 0
    if arguments and not arguments[0].startswith("-") and (found := find(arguments[0], TERMINAL)) and found.parses:
        words = [argument for argument in arguments[1:] if argument != "--verbose"]
        with debug_log.shown(verbose=words != arguments[1:]):
            code: int = found.run(words)
            return code
    terminal = Terminal()
    result = answer(arguments, terminal)
    if result is None:
        return 0
    terminal.show(result)
    if result.failure:
        print(result.failure, file=sys.stderr)
    return 0 if result.failure is None else EXIT_FAILED


def _completions(words: Sequence[str]) -> list[str]:
    """Return the words that can replace the last one."""
    # bash passes an equals sign as a separate word, and replaces only what follows it
    *before, last = words
    last = last.removeprefix("=")
    typed, value = split_option([word for word in before if word != "="], last)
    option = last[: len(last) - len(value)]
    return [option + candidate for candidate in complete(typed, value, TERMINAL)]


class Terminal(Place):
    """A terminal, or a program that runs the command."""

    name = TERMINAL

    def show(self, answer: Answer) -> None:
        """Print the answer immediately."""
        print(dumps(answer.value) if self.json else answer.text, flush=True)

    def use(self, cluster: MPICluster) -> Answer:
        """Disconnect from the cluster and return how to reach it."""
        return detached(cluster)
