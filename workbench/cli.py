"""The command ``workbench``: the verbs of the notebook in a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from json import dumps
from socket import gethostname
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from workbench.commands import completion
from workbench.commands.actions import Status
from workbench.commands.format import status_line
from workbench.commands.parse import answer, complete
from workbench.commands.verb import Answer, Place
from workbench.config import __version__
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.hints import TERMINAL
from workbench.log import debug_log

if TYPE_CHECKING:
    from workbench.cluster import MPICluster
    from workbench.deploy.record import Record

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code of the process.

    Returns
    -------
    code : int
        0; 1 if it failed; 2 if it cannot be asked for so; 130 after Ctrl-C.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        with debug_log.shown():
            code = _run(words)
        sys.stdout.flush()
    except WorkbenchError as error:
        if "--json" in words:
            print(dumps({"error": error.fields()}))
        return _fail(error.text(TERMINAL), EXIT_USAGE if isinstance(error, InvalidRequest) else EXIT_FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader, `head` for instance, has had enough; nobody is there for the rest of the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _fail(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def _run(words: Sequence[str]) -> int:
    if words == ["--version"]:
        print(f"workbench {__version__}")
        return 0
    if words[:1] == ["bench"]:
        from workbench import bench

        given = [word for word in words[1:] if word != "--verbose"]
        with debug_log.shown(verbose=given != words[1:]):
            return bench.main(given)
    if words[:2] == ["completion", completion.ASK]:
        *before, last = words[2:] or [""]
        print(*complete(before, last, TERMINAL), sep="\n")
        return 0
    at = Terminal()
    told = answer(words, at)
    if told is None:
        return 0
    at.show(told)
    if told.failure:
        print(told.failure, file=sys.stderr)
    return 0 if told.failure is None else EXIT_FAILED


class Terminal(Place):
    """A terminal, or a program that runs the command."""

    name = TERMINAL

    def show(self, told: Answer) -> None:
        """Print it, at once."""
        print(dumps(told.value) if self.json else told.text, flush=True)

    def use(self, cluster: MPICluster) -> Answer:
        """Leave the cluster to others."""
        status = Status.of(cluster.record)
        cluster.detach()
        text = (
            f"{status_line(status)}; it goes on without this terminal.\n"
            f"in a notebook: %mpicluster attach {status.name}\n"
            f"in Python:     workbench.MPICluster.attach({status.name!r})\n"
            f"to end it:     workbench stop {status.name}"
        )
        return Answer(text, asdict(status))

    def dashboard(self, record: Record) -> None:
        """Serve it until Ctrl-C."""
        from workbench.server.standalone import serve

        with suppress(KeyboardInterrupt):
            serve(record.name, lambda url: self.show(Answer(_opened(url), {"url": url})))


def _opened(url: str) -> str:
    port = urlsplit(url).port
    return (
        f"{url}\nThe link opens once, in one browser. Ctrl-C ends the dashboard; the cluster goes on.\n"
        f"For a browser on another machine, let it come here first: ssh -L {port}:127.0.0.1:{port} {gethostname()}"
    )
