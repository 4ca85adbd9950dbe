"""The options of ``workbench start`` as fields of a form, and what was filled in as words of a command line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.errors import did_you_mean
from workbench.resources import Resources
from workbench.verbs.table import TERMINAL, Argument, verbs

# What stands for whole numbers in help.
_NUMBERS = frozenset("NKRGT")
_LABELS = {"mpi": "MPI", "gpus_per_rank": "GPUs per rank", "ssh_tunnel": "SSH tunnel"}
_OF_JOBS = {each.name for each in dataclasses.fields(Resources)} - {"gpus"} | {"gpus_per_rank"}


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
        label = _LABELS.get(name, name.replace("_", " ").capitalize())
        return cls(name, argument.name, label, argument.help, _kind(argument), name in _OF_JOBS)

    def told(self) -> dict[str, Any]:
        """Return what a form shows of it."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "option"}

    def words(self, value: Any) -> list[str]:
        """Return what is typed for a value.

        Raises
        ------
        TypeError
            If it is of the wrong type; the message tells which are allowed.
        """
        if value is None or value in ("", []):
            return []
        if self.kind == "flag":
            if not isinstance(value, bool):
                raise TypeError("true or false")
            return [self.option] if value else []
        if self.kind == "list":
            if not isinstance(value, list) or not all(isinstance(item, str) and item.isprintable() for item in value):
                raise TypeError("a list of texts, each on one line")
            return [f"{self.option}={item}" for item in value]
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).isprintable():
            raise TypeError("a text on one line, or a number")
        if self.option.startswith("-"):
            return [f"{self.option}={value}"]
        # It stands alone: nothing that looks like an option.
        if not re.fullmatch(r"-?[\w.]+", str(value)) or str(value) == "-h":
            raise TypeError("a whole number")
        return [str(value)]


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
    return "number" if argument.metavar in _NUMBERS else "text"


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
        except TypeError as error:
            errors[name] = f"{name} {value!r}: allowed is {error}."
    return words, errors


def field_of(message: str) -> str:
    """Return the name of the option that a refusal is about, or nothing where that cannot be told.

    Examples
    --------
    >>> field_of("ranks-per-node 0: allowed is a whole number"), field_of("--extra '-J': leave it out")
    ('ranks_per_node', 'extra')
    """
    first = re.match(r"(?:cluster |how many )?(?:--)?([a-z][a-z_-]*)", message)
    name = first[1].replace("-", "_") if first else ""
    return name if name in {field.name for field in map(Field.of, arguments())} else ""
