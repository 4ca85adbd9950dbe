"""What a bench has measured: all rows, the named figures, and the machine they come from."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from workbench.launch.mpi_library import MPI, available_cores
from workbench.text import table_lines


@dataclass(frozen=True)
class Report:
    """The result of one bench."""

    bench: str
    """Name of the bench."""
    machine: dict[str, Any]
    """Facts without which the numbers mean nothing; see `machine`."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """One measurement each, in the order they were made, all with the same keys."""
    summary: dict[str, Any] = field(default_factory=dict)
    """The named figures."""

    def json(self) -> str:
        """Return the report as one JSON object."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def facts(self) -> str:
        """Return the facts of the machine as one line: numbers before their names, as in ``2 cores``."""
        named = self.machine.items()
        return ", ".join(f"{value} {key}" if isinstance(value, int) else f"{key} {value}" for key, value in named)

    def table(self) -> str:
        """Return the report as text for people."""
        parts = [f"{self.bench} on {self.facts()}", ""]
        if self.rows:
            heads = list(self.rows[0])
            cells = [heads, *([_words(row[head]) for head in heads] for row in self.rows)]
            parts += [*table_lines(cells, str.rjust), ""]
        parts += [f"{key}: {_words(value)}" for key, value in self.summary.items()]
        return "\n".join(parts)


def machine(mpi: MPI) -> dict[str, Any]:
    """Return the facts of this machine and environment that measurements depend on."""
    facts = {"cores": available_cores(), "system": platform.platform(terse=True), "mpi": str(mpi)}
    packages = ("mpi4py", "dask", "distributed")
    return facts | {"python": platform.python_version()} | {package: version(package) for package in packages}


def positive(text: str) -> int:
    """Return the whole number above zero that an option gives.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is something else.
    """
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not valid. Choose a whole number above zero")
    return int(text)


def above_zero(text: str) -> float:
    """Return the number above zero that an option gives.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is something else.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not valid. Choose a number above zero")
    return number


def alternate(arms: Sequence[str], rounds: int) -> list[tuple[int, str]]:
    """Return round and arm of every measurement, the arms of each round as `order` has them.

    Round 0 warms up caches and is not to be counted.

    Examples
    --------
    >>> alternate(["ours", "theirs"], 1)
    [(0, 'ours'), (0, 'theirs'), (1, 'theirs'), (1, 'ours')]
    """
    return [(number, arm) for number in range(rounds + 1) for arm in order(arms, number)]


def order(arms: Sequence[str], number: int) -> list[str]:
    """Return in which order the arms take their turns in a round.

    Notes
    -----
    Williams' design: in 2 n rounds of n arms every arm comes directly after each other one twice, as caches and cores
    are not left by all of them in the same state.

    Examples
    --------
    >>> [order("abc", number) for number in range(2)]
    [['a', 'b', 'c'], ['c', 'b', 'a']]
    """
    count = len(arms)
    shift, mirrored = divmod(number, 2)
    zigzag = [0, *((step + 1) // 2 if step % 2 else -(step // 2) for step in range(1, count))]
    row = [arms[(place + shift) % count] for place in zigzag]
    return row[::-1] if mirrored else row


def _words(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
