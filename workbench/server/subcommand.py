"""The verbs of the terminal as command lines, and what comes of them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError, from_fields
from workbench.server.log import logger
from workbench.server.process import Process, ProcessResult


@dataclass(frozen=True)
class ExecutionContext:
    """Where a verb runs."""

    python: str = sys.executable
    """The interpreter."""
    directory: Path | None = None
    """The working directory; None: the server's."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside the server's."""

    def run(self, verb: str, words: Sequence[str]) -> Process:
        """Start ``workbench VERB WORDS --json``."""
        # -P: no file in the working directory takes the place of a module
        argv = [self.python, "-P", "-m", "workbench", verb, "--json", *words]
        return Process(argv, directory=self.directory, environment={**os.environ, **self.environment})


def answer(ended: ProcessResult, verb: str, *names: str) -> dict[str, Any]:
    """Return what a verb has answered.

    Parameters
    ----------
    ended
        Its process.
    verb
        The verb.
    names
        What has to be in the answer; the workbench of another environment may be of another version.

    Raises
    ------
    WorkbenchError
        The error with which it has failed.
    """
    said = ended.errors.strip()
    try:
        told = json.loads(ended.out)
    except ValueError:
        told = None
    match told:
        # `stop` reports what it could not end beside what it has ended.
        case {"error": {"message": str()} as fields} | {"failed": [{"error": {"message": str()} as fields}, *_]}:
            raise _error(fields)
        case dict() if ended.code == 0 and told.keys() >= set(names):
            return told
    if ended.code == 0:
        raise WorkbenchError(
            f"`workbench {verb}` has answered what this version cannot read.",
            log=f"{ended.out.strip()}\n{said}".strip(),
        )
    logger.error("`workbench %s` has ended with %d:\n%s", verb, ended.code, said)
    raise WorkbenchError(f"`workbench {verb}` broke off (exit code {ended.code}).", hint="See the server's log.")


def _error(fields: Mapping[str, Any]) -> WorkbenchError:
    try:
        return from_fields(fields)
    except (TypeError, KeyError):  # of another version
        return WorkbenchError(fields["message"])
