"""Snapshots of the registry for browsers, also if its file server hangs; a scan reads what has changed."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

from workbench.commands.actions import Gone
from workbench.deploy import ended, registry
from workbench.deploy import folder as folders
from workbench.deploy.job import ClusterJob
from workbench.deploy.record import Record
from workbench.errors import RecordError, WorkbenchError, from_fields
from workbench.hints import PANEL
from workbench.launch.interface import UNKNOWN, JobState, JobStatus, describe
from workbench.launch.launchers import poller

# Seconds between two removals of the records of ended clusters, and for their starters to read the reason before.
_CLEAN, _READ = 10.0, 3.0
# Most ended clusters in a snapshot.
_SHOWN = 20
# States of records in which the absence of a process is no failure: the head has not started, or has reported its end.
_FINAL_OR_EARLY = ("submitted", "closing", "failed")


@dataclass(frozen=True)
class RegistrySnapshot:
    """The clusters of this user."""

    clusters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Clusters by name, as plain values."""
    broken: list[dict[str, str]] = field(default_factory=list)
    """Clusters whose record cannot be read, each with ``name`` and ``error``; an empty name: the registry itself."""
    headed: frozenset[str] = frozenset()
    """Names of clusters with a head."""
    ended: list[dict[str, Any]] = field(default_factory=list)
    """Clusters that ended in the last days, as plain values, the last one first."""
    starters: dict[int, str] = field(default_factory=dict)
    """Names of clusters that wait for their head, by the PID of their starter on this host."""


class RegistryScanner:
    """Scans the registry; thread-safe, but may block.

    Parameters
    ----------
    job_status
        Returns the last known status of a job, by its scheduler and id, without waiting for an answer.
    """

    def __init__(self, job_status: Callable[[str, str], JobStatus] = poller.status) -> None:
        self._job_status = job_status
        # name -> (stat stamp, Record or the error that reading it raised)
        self._records: dict[str, tuple[tuple[int, ...], Record | WorkbenchError | None]] = {}
        # name -> (Record, status of its job and whether its head lives, plain values)
        self._described: dict[str, tuple[Record, tuple[JobStatus, bool | None], dict[str, Any]]] = {}
        # Stat stamp of the folder of ended clusters, and their plain values.
        self._gone: tuple[tuple[int, ...], list[dict[str, Any]]] = ((), [])
        # Ids of ended clusters in the registry, and the time of the first scan that found the end.
        self._ended: dict[str, float] = {}
        self._cleaned = -_CLEAN
        self._cleaner: threading.Thread | None = None
        self._lock = threading.Lock()

    def scan(self) -> RegistrySnapshot:
        """Return a snapshot; from time to time a scan also starts the removal of records of ended clusters.

        Raises
        ------
        OSError
            If the registry cannot be read, mostly a `RecordError`.
        """
        with self._lock:
            now = time.monotonic()
            snapshot = self._scan(now)
            if now - self._cleaned > _CLEAN and any(now - since > _READ for since in self._ended.values()):
                self._clean(now)
            return snapshot

    def _clean(self, now: float) -> None:
        # In a thread, since it queries schedulers for every job whose head is on another host.
        if self._cleaner is None or not self._cleaner.is_alive():
            self._cleaned = now
            self._cleaner = threading.Thread(target=_clean, name="registry-cleaner", daemon=True)
            self._cleaner.start()

    def _scan(self, now: float) -> RegistrySnapshot:
        folder = str(folders.clusters_folder())
        self._records = {name: self._read(name, f"{folder}/{name}") for name in registry.names()}
        clusters, broken, headed, starters, over = {}, [], set(), {}, {}
        self._described = {name: entry for name, entry in self._described.items() if name in self._records}
        for name, (_, record) in self._records.items():
            if isinstance(record, WorkbenchError):
                broken.append({"name": name, "error": record.words(PANEL)})
            elif record is not None:
                status = self._status(record)
                alive = record.alive()
                if _has_ended(record, status, alive):
                    over[record.id] = self._ended.get(record.id, now)
                clusters[name] = self._describe(record, status, alive)
                if record.state == "submitted" and record.process.is_local:
                    starters[record.process.pid] = name
                elif record.address is not None and alive is not False:
                    headed.add(name)
        self._ended = over
        present = {cluster["id"] for cluster in clusters.values()}
        gone = [cluster for cluster in self._all_gone() if cluster["id"] not in present][:_SHOWN]
        return RegistrySnapshot(clusters, broken, frozenset(headed), gone, starters)

    def _all_gone(self) -> list[dict[str, Any]]:
        stamp = _stamp(str(ended.folder()))
        if stamp != self._gone[0]:
            with suppress(RecordError):  # other users can open the folder, as `workbench list --all` reports
                self._gone = stamp, [_plain(Gone.of(cluster)) for cluster in ended.known()]
        return self._gone[1]

    def _read(self, name: str, folder: str) -> tuple[tuple[int, ...], Record | WorkbenchError | None]:
        # With the folder's stamp, since jobs write receipts into the folder.
        stamp = (*_stamp(folder), *_stamp(f"{folder}/{folders.RECORD}"))
        entry = self._records.get(name)
        # Errors are read again, since a file server may have recovered.
        if entry is not None and entry[0] == stamp and not isinstance(entry[1], WorkbenchError):
            return entry
        return stamp, registry.find(name)

    def _describe(self, record: Record, status: JobStatus, alive: bool | None) -> dict[str, Any]:
        entry = self._described.get(record.name)
        if entry is None or entry[0] is not record or entry[1] != (status, alive):
            entry = self._described[record.name] = record, (status, alive), described(record, status, alive)
        return entry[2]

    def _status(self, record: Record) -> JobStatus:
        job = ClusterJob(record)
        if job.shows_more() and (number := job.job_id()) is not None:
            return job.verified(self._job_status(record.scheduler, number))
        return UNKNOWN


def _clean() -> None:
    with suppress(WorkbenchError, OSError):  # the next scan reports the error
        registry.clean()


def _plain(gone: Gone) -> dict[str, Any]:
    values = asdict(gone) | {"reason": gone.words(PANEL)}
    del values["hint"]  # the reason has it, worded for the panel
    return values


def _stamp(path: str) -> tuple[int, ...]:
    try:
        stat = os.stat(path)  # noqa: PTH116  (faster: there may be hundreds of files per second)
    except OSError:
        return ()
    # Records are replaced, never changed in place; ctime also shows a change of permissions.
    return stat.st_ino, stat.st_ctime_ns


def _has_ended(record: Record, status: JobStatus, alive: bool | None) -> bool:
    # A scheduler may have forgotten the job of a head that runs on this host.
    return alive is False or (status.finished and (alive is None or record.state == "submitted"))


def described(record: Record, status: JobStatus, alive: bool | None = None) -> dict[str, Any]:
    """Return a cluster as plain values.

    Parameters
    ----------
    record
        Record of the cluster.
    status
        Status of the cluster's job.
    alive
        Whether the process of the head, or of the starter, exists; None: unknown.
    """
    job = ClusterJob(record)
    state, message = job.shown(status)
    up = record.up
    if record.failure:
        message = from_fields(record.failure).words(PANEL)
    if record.state not in _FINAL_OR_EARLY and _has_ended(record, status, alive):
        # The record stays for a moment, but no process can update it.
        state, message, up = "failed", job.why_gone(status), 0
    if state == "submitted" and status.reason:
        message = describe(status)
    waits = status.state.waits
    return job.plain() | {
        "id": record.id,
        "state": state,
        "message": message,
        "up": up,
        "created": record.created,
        "reason": status.reason or None if waits else None,
        "expected": status.start if status.state is JobState.QUEUED else None,
    }


# Seconds for a read, with those before it. A browser closes a connection that is silent for 20 s.
_PATIENCE = 10.0

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
# Reads in order; None ends the thread.
_Queue: TypeAlias = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class FilesystemTimeout(WorkbenchError, TimeoutError):
    """A read of files did not end in time."""


class DeadlineReader:
    """Reads the files of one file server in a thread.

    Parameters
    ----------
    location
        Returns the location of the files, as text or as a path.

    Notes
    -----
    For the event loops of one thread. There is only one thread for reads: while one read hangs, the others are queued
    and give up at their deadlines. The thread is a daemon, and ends when this object is garbage-collected.
    """

    def __init__(self, location: Callable[[], object]) -> None:
        self._location = location
        self._queue: _Queue = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def read(self, function: Callable[_Args, _Result], *args: _Args.args, **options: _Args.kwargs) -> _Result:
        """Return the result of a function that only reads files, and may block.

        Raises
        ------
        FilesystemTimeout
            If the function does not return in time.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=_run, args=(self._queue,), name="files", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._queue.put, None)
        future: Future[_Result] = Future()
        self._queue.put((future, partial(function, *args, **options)))
        deadline = asyncio.timeout(_PATIENCE)
        try:
            async with deadline:
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if not deadline.expired():
                raise  # an error of the operating system
            raise FilesystemTimeout(
                f"{self._location()} has not answered for {_PATIENCE:.0f} s: its file server hangs, or is very slow. "
                "Clusters continue to run; try again when the file server answers."
            ) from None


def _run(queue: _Queue) -> None:
    while (item := queue.get()) is not None:
        future, function = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001  (raised in the caller of `read`)
                future.set_exception(error)


records = DeadlineReader(folders.clusters_folder)
"""Records and logs of this user's clusters."""
