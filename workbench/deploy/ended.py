"""The reasons of the ends of clusters: a small file for each, kept for some days.

::

    <jupyter data>/workbench/ended/NAME-ID.json     0600: reason and time; the logs are in ``logs/NAME-ID``
"""

from __future__ import annotations

import dataclasses
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench import config, hints
from workbench.deploy.record import typed
from workbench.hints import NOTEBOOK
from workbench.host.files import check_private
from workbench.text import printable

STOPPED = "stopped"
"""State of a cluster that its user has stopped."""
ENDED = "ended"
"""State of a cluster that has ended in order by itself: idle, at the end of its walltime, by its scheduler."""
FAILED = "failed"
"""State of a cluster that did not start, that gave up, or whose head was killed."""

# A loop that starts clusters must not fill the disk.
_MAX_FILES = 200
# Seconds for which an end is listed.
_KEPT = 7 * 86400.0
# Errors of reading a damaged file.
_DAMAGED = (OSError, ValueError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class EndReason:
    """The end of one cluster."""

    name: str
    """Its name, which another cluster may have by now."""
    id: str
    """Its identity."""
    state: str
    """`STOPPED`, `ENDED` or `FAILED`."""
    reason: str
    """Description of the reason."""
    when: float
    """When it ended, or was found to have ended, in seconds since the epoch."""
    created: float
    """When it was requested, in seconds since the epoch."""
    ranks: int
    """Number of its ranks."""
    hint: tuple[Any, ...] = field(default=(), kw_only=True)
    """What to do, from `workbench.hints.to_json`; empty in a file of an earlier version."""

    def words(self, place: str) -> str:
        """Return the reason and the hint for a place: `hints.NOTEBOOK`, `hints.TERMINAL` or `hints.PANEL`."""
        return f"{self.reason} {printable(hints.words(hints.from_json(self.hint), place))}".rstrip()

    @property
    def logs_folder(self) -> Path:
        """Folder of its logs, which are kept for a number of clusters."""
        return config.data_folder() / "workbench" / "logs" / self.stem

    @property
    def stem(self) -> str:
        """Name of its folder of logs, and of its file without the ending."""
        return f"{self.name}-{self.id[:8]}"


def folder() -> Path:
    """Return the folder of these files."""
    return config.data_folder() / "workbench" / "ended"


def known() -> list[EndReason]:
    """Return how clusters have ended in the last days, the latest first; damaged files are omitted.

    Raises
    ------
    RecordError
        If the folder belongs to another user, or is open to others.
    """
    ends_folder, since = folder(), time.time() - _KEPT
    with suppress(FileNotFoundError):
        check_private(ends_folder)
    ends = [end for path in ends_folder.glob("*.json") if (end := read(path)) is not None and end.when >= since]
    return sorted(ends, key=lambda end: end.when, reverse=True)


def last(name: str) -> EndReason | None:
    """Return how the last cluster of a name has ended, or None if unknown; raises as `known`."""
    return next((end for end in known() if end.name == name), None)


def read(path: Path) -> EndReason | None:
    """Return the reason in a file; None if there is no file, or a damaged one."""
    try:
        values = json.loads(path.read_bytes())
        end = typed(EndReason, {**values, "hint": tuple(values.get("hint", ()))})
        end.words(NOTEBOOK)  # raises one of these errors for a hint that is damaged
    except _DAMAGED:
        return None
    if path.stem != end.stem or end.state not in (STOPPED, ENDED, FAILED):
        return None
    # Another program may have written the file.
    return dataclasses.replace(end, reason=printable(end.reason))


def prune(folder: Path) -> None:
    """Remove the files of the earliest ends."""
    ages = {}
    for path in folder.glob("*.json"):
        with suppress(FileNotFoundError):  # another cluster that has just ended has removed the file
            ages[path] = path.stat().st_mtime
    newest = sorted(ages, key=ages.__getitem__, reverse=True)
    since = time.time() - _KEPT
    for position, path in enumerate(newest):
        if position >= _MAX_FILES or ages[path] < since:
            path.unlink(missing_ok=True)
