"""The options of ``workbench start`` as fields of a form, and the values of a form as a command line.

``python -m workbench.lab.server.form_fields`` prints the contents of the form as JSON in a separate process, which
loads dask-jobqueue and queries schedulers.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from workbench import config
from workbench.commands.subcommand import Argument
from workbench.commands.table import subcommands
from workbench.errors import InvalidRequest, WorkbenchError, did_you_mean
from workbench.hints import PANEL, TERMINAL, label
from workbench.host import debug_log
from workbench.launch import launchers
from workbench.launch.mpi_library import available_cores
from workbench.launch.options import GROUPS


@dataclass(frozen=True)
class Field:
    """The field of one option."""

    name: str
    """For example ``ranks_per_node``."""
    option: str
    """For example ``--ranks-per-node``; the number of ranks is a positional argument: ``ranks``."""
    label: str
    """Label of the field."""
    help: str
    """Help text of one line."""
    kind: str
    """``number``, ``text``, ``list`` or ``choice``."""
    batch_only: bool
    """Whether the option needs a batch scheduler."""
    group: str
    """Group of the option in the help."""

    @classmethod
    def of(cls, argument: Argument) -> Field:
        """Return the field of an option."""
        name = argument.name.lstrip("-").replace("-", "_")
        return cls(
            name, argument.name, label(name), argument.help, _kind(argument), argument.batch_only, argument.group
        )

    def describe(self) -> dict[str, Any]:
        """Return the values for the form."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "option"}

    def to_argv(self, value: Any) -> list[str]:
        """Return the command-line arguments for a value.

        Raises
        ------
        InvalidRequest
            If the value has the wrong type.
        """
        if value in (None, "") or (value == [] and self.kind == "list"):
            return []
        if self.kind == "list":
            if not isinstance(value, list) or not all(isinstance(item, str) and item.isprintable() for item in value):
                raise self._refusal(value, "a list of texts, each on one line")
            return [f"{self.option}={item}" for item in value]
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).isprintable():
            raise self._refusal(value, "a text on one line, or a number")
        if self.option.startswith("-"):
            return [f"{self.option}={value}"]
        # A positional argument must not have the form of an option.
        if not re.fullmatch(r"-?[\w.]+", str(value)) or str(value) == "-h":
            raise self._refusal(value, "a whole number")
        return [str(value)]

    def _refusal(self, value: Any, allowed: str) -> InvalidRequest:
        return InvalidRequest(option=self.name, given=value, allowed=allowed)


def arguments() -> list[Argument]:
    """Return the arguments of ``workbench start``."""
    return [argument for argument in subcommands(TERMINAL)["start"].arguments if argument.name != "--dry-run"]


def _kind(argument: Argument) -> str:
    if argument.many:
        return "list"
    if argument.values is not tuple:
        return "choice"
    return "number" if argument.number else "text"


def to_argv(options: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return the command-line arguments for options, and the errors of options that are not valid, by their names."""
    fields = {field.name: field for field in map(Field.of, arguments())}
    argv, errors = [], {}
    for name, value in options.items():
        if name not in fields:
            errors[name] = f"no such option, {did_you_mean(name, fields)}"
            continue
        try:
            argv += fields[name].to_argv(value)
        except InvalidRequest as error:
            errors[name] = error.words(PANEL)
    return argv, errors


def field_of(error: WorkbenchError) -> str:
    """Return the name of the field with an error, or an empty string if the error concerns no field."""
    return error.option if error.option in {field.name for field in map(Field.of, arguments())} else ""


def form() -> dict[str, Any]:
    """Return schedulers, fields and the cores of this host."""
    usable = launchers.usable()
    default = config.get("scheduler")
    if default == "auto":
        default = next((name for name in launchers.COMMANDS if usable[name]), "local")
    fields = [Field.of(argument).describe() | {"choices": _choices(argument)} for argument in arguments()]
    return {
        "schedulers": [
            {"name": name, "there": there, "batch": launchers.launcher(name).batch} for name, there in usable.items()
        ],
        "default_scheduler": default,
        "fields": fields,
        "groups": list(GROUPS),
        "cores": available_cores(),
    }


def _choices(argument: Argument) -> list[str]:
    # the check of the form reports a preset that cannot be read
    with suppress(WorkbenchError):
        return list(argument.values())
    return []


if __name__ == "__main__":
    debug_log.set_up()
    try:
        with config.unreadable_file_in_words():
            json.dump(form(), sys.stdout)
    except WorkbenchError as failure:
        json.dump({"error": failure.fields()}, sys.stdout)
        sys.exit(1)
