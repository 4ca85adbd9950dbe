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
from workbench.deploy.record import Record, logs_folder, typed
from workbench.errors import HeadUnreachable
from workbench.hints import NOTEBOOK, Command, Hint
from workbench.host.files import check_private, make_private, replace_file
from workbench.text import printable

STOPPED = "stopped"
"""State of a cluster that its user has stopped."""
ENDED = "ended"
"""State of a cluster that has ended in order by itself: idle, at the end of its walltime, by its scheduler."""
FAILED = "failed"
"""State of a cluster that did not start, that gave up, or whose head was killed."""

# A loop that starts clusters must not fill the disk.
_MAX_FILES, _MAX_REASON_LENGTH = 200, 1000
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
    """Ranks that it had in all worlds together."""
    hint: tuple[Any, ...] = field(default=(), kw_only=True)
    """What to do, from `workbench.hints.to_json`; empty in a file of an earlier version."""

    def words(self, place: str) -> str:
        """Return the reason and the hint for a place: `hints.NOTEBOOK`, `hints.TERMINAL` or `hints.PANEL`."""
        return f"{self.reason} {printable(hints.words(hints.from_json(self.hint), place))}".rstrip()

    @property
    def logs_folder(self) -> Path:
        """Folder of its logs, which are kept for a number of clusters."""
        return logs_folder() / _stem(self.name, self.id)


def lost(record: Record, reason: str) -> HeadUnreachable:
    """Return the error of a request to a cluster that has ended for a known reason."""
    return HeadUnreachable(
        f"cluster {record.name!r} has ended ({reason}). Its logs are in {record.logs}.",
        hint=("Start a new cluster with ", Command("start", f"--name {record.name}"), "."),
    )


def folder() -> Path:
    """Return the folder of these files."""
    return config.data_folder() / "workbench" / "ended"


def note(record: Record, state: str, reason: str, when: float | None = None, hint: Hint = ()) -> None:
    """Note how a cluster ends, unless a note exists: the first process to write one knows most.

    Parameters
    ----------
    record
        The cluster.
    state
        `STOPPED`, `ENDED` or `FAILED`.
    reason
        The reason; its first line is kept.
    when
        Time in seconds since the epoch; None: now.
    hint
        What to do.

    Notes
    -----
    A note that cannot be written, for example on a full disk, is omitted.
    """
    path = _path(record)
    # The reason may have text of a scheduler, or of a library that a rank has loaded.
    line = printable(reason.strip().partition("\n")[0][:_MAX_REASON_LENGTH])
    what = tuple(hints.to_json(hint))
    end = EndReason(record.name, record.id, state, line, when or time.time(), record.created, record.total, hint=what)
    with suppress(OSError):
        make_private(path.parent)
        if not is_noted(record):
            replace_file(path, json.dumps(dataclasses.asdict(end)))
            _prune()


def withdraw(record: Record, *, age: float = 0.0) -> None:
    """Remove the note of the end of a cluster that goes on, if the note is at least `age` seconds old."""
    end = of(record)
    with suppress(OSError):
        # A note that is written after this look stays.
        if not age or (end is not None and time.time() - end.when >= age):
            _path(record).unlink(missing_ok=True)


def is_noted(record: Record) -> bool:
    """Return whether a note of the end of a cluster exists."""
    return _path(record).exists()


def of(record: Record) -> EndReason | None:
    """Return how a cluster has ended, or None if unknown."""
    return _read(_path(record))


def known() -> list[EndReason]:
    """Return how clusters have ended in the last days, the latest first; damaged files are omitted.

    Raises
    ------
    RecordError
        If the folder belongs to another user, or is open to others.
    """
    with suppress(FileNotFoundError):
        check_private(folder())
    since = time.time() - _KEPT
    ends = [end for path in folder().glob("*.json") if (end := _read(path)) is not None and end.when >= since]
    return sorted(ends, key=lambda end: end.when, reverse=True)


def last(name: str) -> EndReason | None:
    """Return how the last cluster of a name has ended, or None if unknown; raises as `known`."""
    return next((end for end in known() if end.name == name), None)


def _path(record: Record) -> Path:
    return folder() / f"{_stem(record.name, record.id)}.json"


def _stem(name: str, key: str) -> str:
    return f"{name}-{key[:8]}"


def _read(path: Path) -> EndReason | None:
    try:
        values = json.loads(path.read_bytes())
        end = typed(EndReason, {**values, "hint": tuple(values.get("hint", ()))})
        end.words(NOTEBOOK)  # raises one of these errors for a hint that is damaged
    except _DAMAGED:
        return None
    if path.stem != _stem(end.name, end.id) or end.state not in (STOPPED, ENDED, FAILED):
        return None
    # Another program may have written the file.
    return dataclasses.replace(end, reason=printable(end.reason))


def _prune() -> None:
    ages = {}
    for path in folder().glob("*.json"):
        with suppress(FileNotFoundError):  # another cluster that has just ended has removed the file
            ages[path] = path.stat().st_mtime
    newest = sorted(ages, key=ages.__getitem__, reverse=True)
    since = time.time() - _KEPT
    for position, path in enumerate(newest):
        if position >= _MAX_FILES or ages[path] < since:
            path.unlink(missing_ok=True)
