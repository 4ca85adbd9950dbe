"""Hints as values, whose text has the command or the button of the place where the user reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

NOTEBOOK = "%mpicluster"
"""A notebook, and the beginning of commands there."""
TERMINAL = "workbench"
"""A terminal, and the beginning of commands there."""
PANEL = "panel"
"""JupyterLab's panel, with buttons and fields in place of commands."""

BUTTONS = {
    "start": "New cluster",
    "attach": "Insert code",
    "scale": "Scale",
    "restart": "Restart the ranks",
    "stop": "Stop",
    "logs": "Show the logs",
    "dashboard": "Open the dashboard",
}
"""Labels of the panel's buttons by subcommand."""
_IN_NOTEBOOKS = {"attach", "checkpoint"}  # and nowhere else
_LABELS = {"mpi": "MPI", "gpus_per_rank": "GPUs per rank", "ssh_tunnel": "SSH tunnel"}


@dataclass(frozen=True)
class Command:
    """A subcommand with its arguments."""

    subcommand: str
    """The subcommand, as in ``%mpicluster SUBCOMMAND`` and ``workbench SUBCOMMAND``."""
    words: str = ""
    """The arguments, as typed."""

    def at(self, place: str) -> str:
        """Return its text in a place."""
        typed = f"{self.subcommand} {self.words}".rstrip()
        if place == NOTEBOOK:
            return f"{NOTEBOOK} {typed}"
        if place == PANEL and self.subcommand == "list":
            return "the list of clusters"
        if place == PANEL and self.subcommand in BUTTONS:
            return f'the button "{BUTTONS[self.subcommand]}"'
        if self.subcommand in _IN_NOTEBOOKS:
            return f"{NOTEBOOK} {typed} in a notebook"
        return f"`{TERMINAL} {typed}`" + (" in a terminal" if place == PANEL else "")


@dataclass(frozen=True)
class Option:
    """An option of a start."""

    name: str
    """Name of the option, for example ``ranks_per_node``."""

    def at(self, place: str) -> str:
        """Return its text in a place."""
        return f'"{label(self.name)}"' if place == PANEL else f"--{self.name.replace('_', '-')}"


Part: TypeAlias = str | Command | Option
Hint: TypeAlias = Part | Sequence[Part]
"""A sentence whose commands and options are values."""

AGAIN = "Start the ranks again: cluster.restart() or ", Command("restart"), "; results in their memory are lost."
"""The hint for errors without another solution."""
LISTED = Command("list"), " shows which clusters exist."
"""The hint for a cluster that does not answer."""


def label(option: str) -> str:
    """Return the label of an option in a form."""
    return _LABELS.get(option, option.replace("_", " ").capitalize())


def parts(hint: Hint) -> tuple[Part, ...]:
    """Return the parts of a hint."""
    if isinstance(hint, str | Command | Option):
        return (hint,) if hint else ()
    return tuple(hint)


def words(hint: Hint, place: str) -> str:
    """Return the text of a hint for a place.

    Examples
    --------
    >>> hint = ("Start one with ", Command("start"), ".")
    >>> words(hint, NOTEBOOK), words(hint, TERMINAL)
    ('Start one with %mpicluster start.', 'Start one with `workbench start`.')
    >>> words(hint, PANEL)
    'Start one with the button "New cluster".'
    """
    return "".join(part if isinstance(part, str) else part.at(place) for part in parts(hint))


def to_json(hint: Hint) -> list[str | dict[str, str]]:
    """Return a hint as plain values: texts, ``{"subcommand", "words"}`` of commands and ``{"option"}``."""
    return [_plain(part) for part in parts(hint)]


def _plain(part: Part) -> str | dict[str, str]:
    match part:
        case Command(subcommand, typed):
            return {"subcommand": subcommand, "words": typed}
        case Option(name):
            return {"option": name}
        case _:
            return part


def from_json(values: Sequence[str | Mapping[str, Any]]) -> tuple[Part, ...]:
    """Return the hint of values from `to_json`."""
    return tuple(
        value if isinstance(value, str) else Option(value["option"]) if "option" in value else Command(**value)
        for value in values
    )
