"""The command ``workbench``: the verbs of the notebook in a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from json import dumps
from socket import gethostname
from typing import Any
from urllib.parse import urlsplit

from workbench import hints
from workbench.commands import actions
from workbench.commands import format as commands_format
from workbench.commands.actions import profile
from workbench.commands.html_report import report
from workbench.commands.parse import parse
from workbench.config import __version__
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.hints import TERMINAL
from workbench.log import debug_log

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
    call = parse(words, TERMINAL)
    with debug_log.shown(verbose=call.options.pop("verbose", False)):
        code: int = globals()[f"_{call.verb}"](**call.options)
    return code


def _print(value: dict[str, Any], text: str, *, as_json: bool) -> int:
    print(dumps(value) if as_json else text)
    return 0


# Each verb by its name, its options by theirs.


def _help(text: str) -> int:
    print(text)
    return 0


def _start(*, json: bool, **options: Any) -> int:
    started = actions.start(quiet=json, **options)
    if isinstance(started, str):
        return _print({"script": started}, started, as_json=json)
    status = actions.Status.of(started.record)
    started.detach()
    text = (
        f"{commands_format.status_line(status)}; it goes on without this terminal.\n"
        f"in a notebook: %mpicluster attach {status.name}\n"
        f"in Python:     workbench.MPICluster.attach({status.name!r})\n"
        f"to end it:     workbench stop {status.name}"
    )
    return _print(asdict(status), text, as_json=json)


def _status(name: str | None, *, json: bool) -> int:
    status = actions.status(actions.choose(name))
    return _print(asdict(status), commands_format.status_text(status), as_json=json)


def _list(*, all: bool, json: bool) -> int:  # noqa: A002  # as the option is called
    listing = actions.listing(everything=all)
    return _print(asdict(listing), commands_format.listing_text(listing, TERMINAL), as_json=json)


def _logs(name: str | None, rank: str | None, *, json: bool) -> int:
    text = actions.logs(name, rank)
    return _print({"logs": text}, text, as_json=json)


def _scale(ranks: str, name: str | None, *, json: bool) -> int:
    status = actions.scale(actions.choose(name), ranks)
    return _print(asdict(status), commands_format.status_line(status), as_json=json)


def _restart(name: str | None, *, json: bool) -> int:
    status = actions.restart(actions.choose(name))
    return _print(asdict(status), commands_format.status_line(status), as_json=json)


def _where(name: str | None, *, stacks: bool, json: bool) -> int:
    places = actions.where(actions.choose(name))
    return _print({"worlds": places}, commands_format.where_text(places, stacks=stacks), as_json=json)


def _metrics(name: str | None, table: str | None, out: str | None, *, json: bool) -> int:
    text = actions.metrics(actions.choose(name), table, out)
    return _print({"metrics": text}, text, as_json=json)


def _profile(name: str | None, *, json: bool) -> int:
    frame = profile(actions.choose(name))
    told = {"ranks": frame.to_dict("records"), "operations": frame.operations.to_dict("records")}
    return _print(told, str(frame), as_json=json)


def _dashboard(name: str | None, *, json: bool) -> int:
    from workbench.server.standalone import serve

    record = actions.choose(name)

    def tell(url: str) -> None:
        port = urlsplit(url).port
        text = (
            f"{url}\nThe link opens once, in one browser. Ctrl-C ends the dashboard; the cluster goes on.\n"
            f"For a browser on another machine, let it come here first: ssh -L {port}:127.0.0.1:{port} {gethostname()}"
        )
        _print({"url": url}, text, as_json=json)
        sys.stdout.flush()

    with suppress(KeyboardInterrupt):
        serve(record.name, tell)
    return 0


def _report(file: str, name: str | None, *, json: bool) -> int:
    text = report(file, name)
    return _print({"report": text}, text, as_json=json)


def _stop(name: str | None, *, all: bool, json: bool) -> int:  # noqa: A002  # as the option is called
    stopped = actions.stop(actions.targets(name, everything=all))
    _print(asdict(stopped), commands_format.stopped_text(stopped), as_json=json)
    return _fail(commands_format.failed_text(stopped, TERMINAL), EXIT_FAILED) if stopped.failed else 0


def _script(name: str | None, *, json: bool) -> int:
    text = actions.script(actions.choose(name))
    return _print({"script": text}, text, as_json=json)


def _doctor(name: str | None, mpi: str | None, *, json: bool) -> int:
    findings = []
    for finding in actions.doctor(name, mpi):
        findings.append(finding)
        if not json:
            print(commands_format.finding_text(finding, TERMINAL), flush=True)
    told = [asdict(finding) | {"remedy": hints.words(finding.remedy, TERMINAL)} for finding in findings]
    _print({"findings": told}, commands_format.findings_summary(findings), as_json=json)
    return EXIT_FAILED if any(finding.verdict == "failed" for finding in findings) else 0


def _demo(ranks: str | None, mpi: str | None, *, json: bool) -> int:
    from workbench.commands.demo import run
    from workbench.deploy.request import rank_count

    given = {} if ranks is None else {"ranks": rank_count(ranks)}
    result = run(**given, mpi=mpi or "auto", quiet=json)
    return _print(asdict(result), result.line(), as_json=json)
