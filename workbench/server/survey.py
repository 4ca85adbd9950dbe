"""The registry as browsers see it: looked at again and again, and read only where it has changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from workbench.commands.actions import Gone
from workbench.deploy import ended, jobs, registry
from workbench.deploy.record import Record, clusters_folder
from workbench.errors import RecordError, WorkbenchError
from workbench.hints import PANEL
from workbench.launch.interface import UNKNOWN, JobState, JobStatus
from workbench.launch.poller import poller

# Seconds: between two times that records of clusters which have ended are removed, and for their starters to read why.
_CLEAN, _READ = 10.0, 3.0
# Clusters that have ended, of which browsers are told.
_SHOWN = 20
# States of records in which a head has not spoken yet, or has told its end.
_SAID = ("submitted", "closing", "failed")


@dataclass(frozen=True)
class RegistrySnapshot:
    """The clusters of this user."""

    clusters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name, as plain values."""
    broken: list[dict[str, str]] = field(default_factory=list)
    """Those whose record cannot be used, each ``name`` and ``error``; nameless: the registry itself."""
    headed: frozenset[str] = frozenset()
    """Names of those whose head can be asked."""
    ended: list[dict[str, Any]] = field(default_factory=list)
    """Those that have ended in the last days, as plain values, the last one first."""
    starters: dict[int, str] = field(default_factory=dict)
    """Names of those that wait for their head, by the process of this host that has asked for them."""


class RegistryScanner:
    """Looks at the registry.

    Parameters
    ----------
    asked
        Returns what is known of a job, by its scheduler and id, without waiting for an answer.

    Notes
    -----
    It may block, and be used from any thread.
    """

    def __init__(self, asked: Callable[[str, str], JobStatus] = poller.status) -> None:
        self._asked = asked
        # By name: when its files have changed, and its record or why there is none to be used.
        self._read: dict[str, tuple[tuple[int, ...], Record | WorkbenchError | None]] = {}
        # By name: the record, what is known of its job and its head, and all that as plain values.
        self._described: dict[str, tuple[Record, tuple[JobStatus, bool | None], dict[str, Any]]] = {}
        # When the folder of those that have ended has changed, and what is in it.
        self._gone: tuple[tuple[int, ...], list[dict[str, Any]]] = ((), [])
        # Ids of clusters that have ended, and when that was seen first.
        self._ended: dict[str, float] = {}
        self._cleaned = -_CLEAN
        self._cleaning: threading.Thread | None = None
        self._looking = threading.Lock()

    def scan(self) -> RegistrySnapshot:
        """Return how things stand; records of clusters that have ended are removed now and then, meanwhile.

        Raises
        ------
        OSError
            If the registry cannot be read, mostly a `RecordError`.
        """
        with self._looking:
            now = time.monotonic()
            seen = self._look(now)
            if now - self._cleaned > _CLEAN and any(now - since > _READ for since in self._ended.values()):
                self._clean(now)
            return seen

    def _clean(self, now: float) -> None:
        # Schedulers are asked about every job whose head is elsewhere, and may take their time: nobody waits for that.
        if self._cleaning is None or not self._cleaning.is_alive():
            self._cleaned = now
            self._cleaning = threading.Thread(target=_clean, name="registry-cleaner", daemon=True)
            self._cleaning.start()

    def _look(self, now: float) -> RegistrySnapshot:
        folder = str(clusters_folder())
        self._read = {name: self._record(name, f"{folder}/{name}") for name in registry.names()}
        clusters, broken, headed, starters, over = {}, [], set(), {}, {}
        self._described = {name: its for name, its in self._described.items() if name in self._read}
        for name, (_, record) in self._read.items():
            if isinstance(record, WorkbenchError):
                broken.append({"name": name, "error": record.words(PANEL)})
            elif record is not None:
                told = self._status(record)
                alive = record.alive()
                if alive is False or told.finished:
                    over[record.id] = self._ended.get(record.id, now)
                clusters[name] = self._describe(record, told, alive)
                if record.state == "submitted" and record.process.is_local:
                    starters[record.process.pid] = name
                elif record.address is not None and alive is not False:
                    headed.add(name)
        self._ended = over
        there = {its["id"] for its in clusters.values()}
        gone = [its for its in self._all_gone() if its["id"] not in there][:_SHOWN]
        return RegistrySnapshot(clusters, broken, frozenset(headed), gone, starters)

    def _all_gone(self) -> list[dict[str, Any]]:
        stamp = _stamp(str(ended.folder()))
        if stamp != self._gone[0]:
            with suppress(RecordError):  # it is open to others, as `workbench list --all` tells
                self._gone = stamp, [asdict(Gone.of(its)) for its in ended.known()]
        return self._gone[1]

    def _record(self, name: str, folder: str) -> tuple[tuple[int, ...], Record | WorkbenchError | None]:
        # The folder's, too: jobs leave receipts in it.
        stamp = (*_stamp(folder), *_stamp(f"{folder}/{registry.RECORD}"))
        known = self._read.get(name)
        # What could not be read may be read now, as when a file server was away.
        if known is not None and known[0] == stamp and not isinstance(known[1], WorkbenchError):
            return known
        return stamp, registry.find(name)

    def _describe(self, record: Record, told: JobStatus, alive: bool | None) -> dict[str, Any]:
        known = self._described.get(record.name)
        if known is None or known[0] is not record or known[1] != (told, alive):
            known = self._described[record.name] = record, (told, alive), described(record, told, alive)
        return known[2]

    def _status(self, record: Record) -> JobStatus:
        # A head on another host is seen by its job alone.
        if jobs.is_batch(record) and (record.state == "submitted" or record.alive() is None):
            job = jobs.job_id(record)
            return UNKNOWN if job is None else jobs.of(record, self._asked(record.scheduler, job))
        return UNKNOWN


def _clean() -> None:
    with suppress(WorkbenchError, OSError):  # told by the next look
        registry.clean()


def _stamp(path: str) -> tuple[int, ...]:
    try:
        its = os.stat(path)  # noqa: PTH116  (hundreds of them, each second)
    except OSError:
        return ()
    # Records are replaced, not written into; the time of the change tells of permissions, too.
    return its.st_ino, its.st_ctime_ns


def described(record: Record, told: JobStatus, alive: bool | None = None) -> dict[str, Any]:
    """Return a cluster as plain values.

    Parameters
    ----------
    record
        What its head, or its starter, tells.
    told
        What its scheduler tells of its job.
    alive
        Whether its head, or its starter, is there; None: that cannot be seen from here.
    """
    state, message, up = record.state, record.message, record.up
    if state not in _SAID and (alive is False or told.finished):
        # Its record stays for a moment, and nobody is there who could write into it.
        state, message, up = "failed", registry.why_gone(record, told), 0
    if state == "submitted" and told.state is not JobState.UNKNOWN:
        state, message = told.state.value, jobs.words(told)
    elif state == "submitted" and told.reason:
        message = jobs.words(told)
    waits = told.state is JobState.QUEUED
    return jobs.plain(record) | {
        "id": record.id,
        "state": state,
        "message": message,
        "up": up,
        "created": record.created,
        "reason": told.reason or None if waits else None,
        "expected": told.start if waits else None,
    }
