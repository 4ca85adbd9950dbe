"""How clusters have ended: a small file for each, kept for some days.

::

    <jupyter data>/workbench/ended/NAME-ID.json     0600: why and when; its logs are in the folder ``logs/NAME-ID``
"""

from __future__ import annotations

import dataclasses
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workbench import config
from workbench.deploy.record import Record, logs_folder, typed
from workbench.errors import InvalidRequest
from workbench.files.private import check_private, make_private, replace_file
from workbench.log.printable import printable

STOPPED = "stopped"
"""State of a cluster that its user has ended."""
ENDED = "ended"
"""State of a cluster that has ended in order, without its user: idle, at the end of its walltime, by its scheduler."""
FAILED = "failed"
"""State of a cluster that did not start, that gave up, or whose head was killed."""

# Files and characters of a reason that are kept: a loop that starts clusters fills no disk.
_MOST, _LONGEST = 200, 1000
# What a file that was damaged is read with.
_DAMAGED = (OSError, ValueError, TypeError, RecursionError)


@dataclass(frozen=True)
class EndReason:
    """How one cluster has ended."""

    name: str
    """Its name, which another cluster may have by now."""
    id: str
    """Its identity."""
    state: str
    """`STOPPED`, `ENDED` or `FAILED`."""
    reason: str
    """Why it has ended, in words."""
    when: float
    """When it ended, or was found to have ended, in seconds since the epoch."""
    created: float
    """When it was asked for, in seconds since the epoch."""
    ranks: int
    """Ranks that it had in all worlds together."""

    @property
    def logs_folder(self) -> Path:
        """Folder of its logs, which are kept for a number of clusters."""
        return logs_folder() / _stem(self.name, self.id)


def folder() -> Path:
    """Return the folder of these files."""
    return config.data_folder() / "workbench" / "ended"


def note(record: Record, state: str, reason: str, when: float | None = None) -> None:
    """Keep how a cluster ends, unless that is known: the first to write knows most.

    Parameters
    ----------
    record
        The cluster.
    state
        `STOPPED`, `ENDED` or `FAILED`.
    reason
        Why; the first line of it is kept.
    when
        When, in seconds since the epoch; None: now.

    Notes
    -----
    Where it cannot be written, as on a full disk, the cluster ends all the same.
    """
    path = _path(record)
    words = reason.strip().partition("\n")[0][:_LONGEST]
    its = EndReason(record.name, record.id, state, words, when or time.time(), record.created, record.total)
    with suppress(OSError):
        make_private(path.parent)
        if not is_noted(record):
            replace_file(path, json.dumps(dataclasses.asdict(its)))
            _prune()


def is_noted(record: Record) -> bool:
    """Return whether it is known how a cluster ends."""
    return _path(record).exists()


def of(record: Record) -> EndReason | None:
    """Return how a cluster has ended, or None if that is not known."""
    return _read(_path(record))


def known() -> list[EndReason]:
    """Return how clusters have ended in the last days, the last one first; what cannot be read is left out.

    Raises
    ------
    RecordError
        If the folder belongs to somebody else, or is open to others.
    """
    with suppress(FileNotFoundError):
        check_private(folder())
    found = [its for path in folder().glob("*.json") if (its := _read(path)) is not None]
    since = time.time() - _kept()
    return sorted((its for its in found if its.when >= since), key=lambda its: its.when, reverse=True)


def last(name: str) -> EndReason | None:
    """Return how the last cluster of a name has ended, or None if that is not known; raises as `known`."""
    return next((its for its in known() if its.name == name), None)


def _kept() -> float:
    # A cluster does not fail to end for a setting that cannot be read.
    try:
        return config.seconds("keep-ended")
    except InvalidRequest:
        return 7 * 86400.0


def _path(record: Record) -> Path:
    return folder() / f"{_stem(record.name, record.id)}.json"


def _stem(name: str, key: str) -> str:
    return f"{name}-{key[:8]}"


def _read(path: Path) -> EndReason | None:
    try:
        its = typed(EndReason, json.loads(path.read_bytes()))
    except _DAMAGED:
        return None
    if path.stem != _stem(its.name, its.id) or its.state not in (STOPPED, ENDED, FAILED):
        return None
    # Anybody's words may be in it: of a scheduler, of a library that a rank has loaded.
    return dataclasses.replace(its, reason=printable(its.reason))


def _prune() -> None:
    ages = {}
    for path in folder().glob("*.json"):
        with suppress(FileNotFoundError):  # another cluster has just ended, too
            ages[path] = path.stat().st_mtime
    newest = sorted(ages, key=ages.__getitem__, reverse=True)
    since = time.time() - _kept()
    for place, path in enumerate(newest):
        if place >= _MOST or ages[path] < since:
            path.unlink(missing_ok=True)
