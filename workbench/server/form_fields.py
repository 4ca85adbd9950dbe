"""The options of ``workbench start`` as fields of a form, and what was filled in as words of a command line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.commands.table import verbs
from workbench.commands.verb import Argument
from workbench.errors import InvalidRequest, WorkbenchError, did_you_mean
from workbench.hints import PANEL, TERMINAL, label


@dataclass(frozen=True)
class Field:
    """One option, as a form shows it."""

    name: str
    """As ``ranks_per_node``."""
    option: str
    """As ``--ranks-per-node``; the number of ranks is a word without an option: ``ranks``."""
    label: str
    """For people."""
    help: str
    """A line more."""
    kind: str
    """``number``, ``text``, ``flag``, ``list`` or ``choice``."""
    batch_only: bool
    """Whether only batch schedulers can be asked for it."""

    @classmethod
    def of(cls, argument: Argument) -> Field:
        """Return the field of an option."""
        name = argument.name.lstrip("-").replace("-", "_")
        return cls(name, argument.name, label(name), argument.help, _kind(argument), argument.batch_only)

    def told(self) -> dict[str, Any]:
        """Return what a form shows of it."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "option"}

    def words(self, value: Any) -> list[str]:
        """Return what is typed for a value.

        Raises
        ------
        InvalidRequest
            If it is of the wrong type.
        """
        if value is None or value in ("", []):
            return []
        if self.kind == "flag":
            if not isinstance(value, bool):
                raise self._refusal(value, "true or false")
            return [self.option] if value else []
        if self.kind == "list":
            if not isinstance(value, list) or not all(isinstance(item, str) and item.isprintable() for item in value):
                raise self._refusal(value, "a list of texts, each on one line")
            return [f"{self.option}={item}" for item in value]
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).isprintable():
            raise self._refusal(value, "a text on one line, or a number")
        if self.option.startswith("-"):
            return [f"{self.option}={value}"]
        # It stands alone: nothing that looks like an option.
        if not re.fullmatch(r"-?[\w.]+", str(value)) or str(value) == "-h":
            raise self._refusal(value, "a whole number")
        return [str(value)]

    def _refusal(self, value: Any, allowed: str) -> InvalidRequest:
        return InvalidRequest(option=self.name, given=value, allowed=allowed)


def arguments() -> list[Argument]:
    """Return what ``workbench start`` can be given."""
    return [its for its in verbs(TERMINAL)["start"].arguments if its.name != "--dry-run"]


def _kind(argument: Argument) -> str:
    if argument.metavar is None:
        return "flag"
    if argument.many:
        return "list"
    if argument.values is not tuple:
        return "choice"
    return "number" if argument.number else "text"


def words_of(options: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return what is typed for options, and of those that cannot be typed why, by their names."""
    known = {field.name: field for field in map(Field.of, arguments())}
    words, errors = [], {}
    for name, value in options.items():
        if name not in known:
            errors[name] = f"no such option, {did_you_mean(name, known)}"
            continue
        try:
            words += known[name].words(value)
        except InvalidRequest as error:
            errors[name] = error.words(PANEL)
    return words, errors


def field_of(error: WorkbenchError) -> str:
    """Return the name of the field that an error is about, or nothing where it is about none."""
    return error.option if error.option in {field.name for field in map(Field.of, arguments())} else ""
