"""The verbs of the terminal as processes, and their answers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError, from_fields
from workbench.lab.server.log import logger
from workbench.lab.server.process import Process, ProcessResult


@dataclass(frozen=True)
class ExecutionContext:
    """Interpreter, folder and variables of a verb's process."""

    python: str = sys.executable
    """The interpreter."""
    directory: Path | None = None
    """The working directory; None: the server's."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to the server's."""

    def run(self, verb: str, arguments: Sequence[str]) -> Process:
        """Start ``workbench VERB --json ARGUMENTS``."""
        # -P: a file in the working directory must not shadow a module
        argv = [self.python, "-P", "-m", "workbench", verb, "--json", *arguments]
        return Process(argv, directory=self.directory, environment={**os.environ, **self.environment})


def answer(result: ProcessResult, command: str, *names: str) -> dict[str, Any]:
    """Return the answer of a verb, or of a module that answers in the same form.

    Parameters
    ----------
    result
        Result of the process.
    command
        The command, for messages.
    names
        Keys that the answer must have; the workbench of another environment may have another version.

    Raises
    ------
    WorkbenchError
        The error of the verb.
    """
    errors = result.errors.strip()
    try:
        response = json.loads(result.out)
    except ValueError:
        response = None
    match response:
        # `stop` also reports the clusters that it could not end.
        case {"error": {"message": str()} as fields} | {"failed": [{"error": {"message": str()} as fields}, *_]}:
            raise _error(fields)
        case dict() if result.code == 0 and response.keys() >= set(names):
            return response
    if result.code == 0:
        raise WorkbenchError(
            f"this version cannot read the answer of `{command}`.",
            log=f"{result.out.strip()}\n{errors}".strip(),
        )
    logger.error("`%s` failed with exit code %d:\n%s", command, result.code, errors)
    raise WorkbenchError(f"`{command}` failed (exit code {result.code}).", hint="See the log of the server.")


def _error(fields: Mapping[str, Any]) -> WorkbenchError:
    try:
        return from_fields(fields)
    except (TypeError, KeyError):  # of another version
        return WorkbenchError(fields["message"])
