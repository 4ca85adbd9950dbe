"""Subcommands and checks that the core does not import: those of its wings and of other distributions."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from workbench.errors import WorkbenchError

SUBCOMMANDS, CHECKS = "workbench.subcommands", "workbench.checks"
"""Groups of entry points."""
DISTRIBUTION = "mpi-workbench"
"""The distribution of the core."""


class EntryPoint(NamedTuple):
    """A line of the metadata of a distribution."""

    distribution: str
    name: str
    value: str
    """The object, as ``module:name``."""

    def load(self, kind: Any) -> Any:
        """Return the object, which is an instance of `kind`; raises what its module raises."""
        module, _, name = self.value.partition(":")
        found = getattr(import_module(module), name)
        if not isinstance(found, kind):
            raise TypeError(f"{self.value} is no {kind.__name__}")
        return found


def load(
    group: str, kind: Any, *, only: str | None = None, taken: Collection[str] = ()
) -> Iterator[tuple[EntryPoint, Any]]:
    """Yield entry points by name, each with its object, or with a `WorkbenchError` that says why it cannot be used.

    Parameters
    ----------
    group
        `SUBCOMMANDS` or `CHECKS`.
    kind
        Class of the objects.
    only
        The one name to load.
    taken
        Names that the core has.
    """
    owners = {name: [DISTRIBUTION] for name in taken}
    points = sorted((each for each in _installed(group) if only in {None, each.name}), key=lambda each: each.name)
    for point in points:
        owners.setdefault(point.name, []).append(point.distribution)
    for point in points:
        what = f"the {group.removeprefix('workbench.')[:-1]} {point.name!r} of {point.distribution} cannot be"
        hint = f"Install another version of {point.distribution}, or uninstall it; everything else works."
        try:
            if len(owners[point.name]) > 1:
                yield point, WorkbenchError(f"{what} used: {' and '.join(owners[point.name])} have it.", hint=hint)
            else:
                yield point, point.load(kind)
        except Exception as error:  # noqa: BLE001  (whatever a module of another distribution raises)
            yield point, WorkbenchError(f"{what} loaded ({type(error).__name__}: {error}).", hint=hint)


def _installed(group: str) -> Iterator[EntryPoint]:
    """Yield the entry points of a group.

    Notes
    -----
    With `importlib.metadata`, which parses the files of all distributions, ``workbench --help`` takes a fifth longer.
    """
    seen = set()
    for folder in dict.fromkeys(path or "." for path in sys.path):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".dist-info", ".egg-info")):
                    name = entry.name.rpartition(".")[0].partition("-")[0]
                    if name not in seen:
                        seen.add(name)
                        yield from _parsed(f"{entry.path}/entry_points.txt", group, name.replace("_", "-"))


def _parsed(path: str, group: str, distribution: str) -> Iterator[EntryPoint]:
    try:
        with open(path, "rb", buffering=0) as file:
            content = file.read()
    except OSError:
        return
    if f"[{group}]".encode() not in content:
        return
    section = ""
    for line in content.decode(errors="replace").splitlines():
        name, equals, value = line.partition("=")
        if line.startswith("["):
            section = line.strip("[] ")
        elif section == group and equals:
            yield EntryPoint(distribution, name.strip(), value.partition("[")[0].strip())
