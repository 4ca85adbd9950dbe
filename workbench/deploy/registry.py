"""The clusters of this user: list them, find one, and reserve a name; see `workbench.deploy.folder` for the files."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

from workbench import config
from workbench.deploy import ended
from workbench.deploy.folder import RECORD, ClusterFolder, clusters_folder, logs_folder, modified, read_record
from workbench.deploy.record import Record
from workbench.errors import (
    ClusterExists,
    ClusterNotFound,
    InvalidRequest,
    LaunchError,
    RecordError,
    WorkbenchError,
    did_you_mean,
)
from workbench.hints import Command, Option
from workbench.host import node_dirs
from workbench.host.files import check_closed, check_private, make_private
from workbench.text import printable

if TYPE_CHECKING:
    from workbench.deploy.job import ClusterJob
    from workbench.launch.interface import JobStatus

_ALLOWED = "1 to 40 letters, digits, '.', '_' and '-', the first a letter or digit"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
# Errors of `rename` to a name that exists.
_NAME_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def check_name(name: Any) -> str:
    """Return `name` if it can name a cluster, or raise `InvalidRequest`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(option="name", given=name, allowed=_ALLOWED)
    return name


def free_name() -> str:
    """Return a name that no cluster has: ``mpi``, ``mpi-2``, ``mpi-3``, ..."""
    clean()
    taken = set(names())
    return next(name for i in range(1, len(taken) + 2) if (name := "mpi" if i == 1 else f"mpi-{i}") not in taken)


def names() -> list[str]:
    """Return the names of all clusters that have a record, stale ones among them.

    Raises
    ------
    RecordError
        If their folder cannot be read, or is in one that others can change.
    """
    folder = clusters_folder()
    try:
        check_closed(folder.parent)
        return sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))
    except FileNotFoundError:
        return []
    except RecordError:
        raise
    except OSError as error:
        raise RecordError(
            f"{folder} cannot be read: {error}. The path must be a folder that you own and can read.",
            given=str(folder),
            hint="Check the folder, or set JUPYTER_DATA_DIR to another folder.",
        ) from error


def create(record: Record, folder: ClusterFolder | None = None) -> None:
    """Make the folder of a new cluster, by default the one of its record, and write its first record.

    Raises
    ------
    ClusterExists
        If a cluster of that name runs, or may run. The record of a cluster that has certainly ended is replaced.
    RecordError
        If the folders of the registry are open to other users.
    """
    check_name(record.name)
    folder = folder or ClusterFolder.of(record)
    check_closed(folder.path.parent.parent)
    for private in (folder.path.parent, folder.logs.parent):
        make_private(private)
        check_private(private)
    if folder.path.exists():
        _forget_if_stale(folder.path)
    try:
        folder.make(record)
    except OSError as error:
        if error.errno in _NAME_TAKEN:
            raise _exists(record.name) from None
        raise
    folder.logs.mkdir(mode=0o700, exist_ok=True)


def check_free(name: str) -> None:
    """Raise an error unless a new cluster can have the name; no scheduler is asked.

    Raises
    ------
    InvalidRequest
        If the name is not valid; `ClusterExists` if a cluster has it. If the registry cannot be read, as `names`.
    """
    taken = check_name(name) in names()
    try:
        if not taken or read(name).alive() is False:
            return
    except ClusterNotFound:
        return  # the cluster has ended since
    except RecordError:
        pass  # its owner is not known
    raise _exists(name)


def _exists(name: str) -> ClusterExists:
    return ClusterExists(
        f"a cluster named {name!r} already exists.",
        option="name",
        given=name,
        hint=(
            "Use that cluster (",
            Command("attach", name),
            "), stop that cluster (",
            Command("stop", name),
            "), or choose another ",
            Option("name"),
            ".",
        ),
    )


def read(name: str) -> Record:
    """Return the record of cluster `name`.

    Raises
    ------
    ClusterNotFound
        If no cluster has this name.
    RecordError
        If the record is corrupt, of another version, another user's, readable by others, or in a folder that others can
        change.
    """
    check_name(name)
    try:
        return read_record(clusters_folder() / name)
    except FileNotFoundError:
        known = names()
        raise ClusterNotFound(
            f"cluster {name!r} does not exist" + (f"; {did_you_mean(name, known)}." if known else "."),
            option="name",
            given=name,
            allowed=known,
            hint=() if known else ("No cluster runs. Start a cluster with ", Command("start"), "."),
        ) from None


def running(name: str, *, ending: bool = False) -> Record:
    """Return the record of cluster `name` unless the cluster has ended; then the record is removed.

    Parameters
    ----------
    name
        Name of the cluster.
    ending
        Return also the record of a cluster that has ended or failed, and that `clean` does not remove, because the
        scheduler does not confirm the end of its jobs: such a cluster keeps its name until `stop` ends it.

    Raises
    ------
    ClusterNotFound
        If no cluster has this name, or it has ended: the message names the folder of its logs.
    RecordError
        As `read` does.
    """
    try:
        record = read(name)
    except ClusterNotFound as error:
        logs = _newest_logs(name)
        if logs is None:
            raise
        end = ended.last(name)
        raise _ended(name, logs, end.reason if end is not None and end.logs_folder == logs else "") from error
    job = _job(record)
    if job.alive() is not False and record.state != "failed":
        return record
    clean()
    remains = False
    with suppress(OSError):  # the file server does not answer
        remains = job.folder.owns_lease()
    if remains and ending:
        return record
    end = job.folder.end()
    raise _ended(name, job.folder.logs, printable(record.message) if end is None else end.reason, remains=remains)


def _ended(name: str, logs: Path, reason: str, *, remains: bool = False) -> ClusterNotFound:
    why = f" ({reason})" if reason else ""
    jobs = ", but its jobs may not have ended" if remains else ""
    hint = (
        ("End its jobs with ", Command("stop", name), ".")
        if remains
        else ("Start a new cluster with ", Command("start", f"--name {name}"), ".")
    )
    return ClusterNotFound(
        f"cluster {name!r} has ended{why}{jobs}. Its logs are in {logs}.", option="name", given=name, hint=hint
    )


def _job(record: Record) -> ClusterJob:
    # Ranks and heads never ask, and need not load the launchers.
    from workbench.deploy.job import ClusterJob

    return ClusterJob(record)


def _forget_if_stale(path: Path, job_statuses: Mapping[str, JobStatus] = MappingProxyType({})) -> bool:
    """Remove the files of a cluster that was killed with its head; return whether they were removed."""
    try:
        file = open(path / RECORD, "r+b")  # noqa: SIM115  (closed below)
    except OSError:
        return False
    with file:
        try:
            record = read_record(path)
        except (RecordError, FileNotFoundError):
            return False
        job, status = _job(record), job_statuses.get(record.id)
        if job.alive(status) is not False or not _is_ours_to_remove(file, path / RECORD):
            return False
        try:
            if job.batch:
                job.cancel()  # other queued jobs of the cluster outlast the head
        except LaunchError:
            return False  # without the record no user could find a job that is still queued
        if record.process.is_local:
            node_dirs.remove(record.id)
        job.note_end(status)
        doomed = job.folder.take_away()
    # NFS keeps the folder of an open file, so the record is closed first.
    if doomed is not None:
        shutil.rmtree(doomed, ignore_errors=True)
    return doomed is not None


def _is_ours_to_remove(file: BinaryIO, path: Path) -> bool:
    """Return whether no other process is removing the folder of an open record, or has removed it.

    Notes
    -----
    Otherwise the second process that finds a stale cluster would remove the new cluster of the first.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def records() -> dict[str, Record | WorkbenchError]:
    """Return the records of all clusters of this user by their names, or why a record cannot be used."""
    return {name: record for name in names() if (record := find(name)) is not None}


def find(name: str) -> Record | WorkbenchError | None:
    """Return the record of a cluster, why the record cannot be used, or None: the cluster has ended."""
    try:
        return read(name)
    except ClusterNotFound:
        return None
    except (RecordError, InvalidRequest) as error:
        return error


def clean(job_statuses: Mapping[str, JobStatus] | None = None) -> list[str]:
    """Remove the records of clusters that have certainly ended; return their names.

    Parameters
    ----------
    job_statuses
        As of `ask_schedulers`; None: the schedulers are asked.
    """
    job_statuses = ask_schedulers(suspended=False) if job_statuses is None else job_statuses
    folder = clusters_folder()
    return [name for name in names() if _forget_if_stale(folder / name, job_statuses)]


def ask_schedulers(*, suspended: bool = True) -> dict[str, JobStatus]:
    """Return the statuses of jobs that show more than the records, by the ids of the clusters.

    Parameters
    ----------
    suspended
        Whether to ask for jobs whose head runs on this host, too: they may be suspended.

    Notes
    -----
    Each scheduler is asked once.
    """
    from workbench.deploy.job import ClusterJob, ask_all

    needed = ClusterJob.shows_more if suspended else ClusterJob.decides
    all_jobs = [ClusterJob(record) for record in records().values() if isinstance(record, Record)]
    return ask_all(job for job in all_jobs if needed(job))


def logs_of(name: str, key: str | None = None) -> Path:
    """Return the folder of the logs of cluster `name` with the id `key`, by default of the latest one.

    Raises
    ------
    ClusterNotFound
        If no such cluster or no logs are found.
    """
    if key is None:
        try:
            return ClusterFolder.of(read(name)).logs
        except ClusterNotFound:
            if (newest := _newest_logs(name)) is None:
                raise
            return newest
    path = logs_folder() / f"{check_name(name)}-{key[:8]}"
    if not re.fullmatch(r"[0-9a-f]{8,32}", key) or not path.is_dir():
        raise ClusterNotFound(f"cluster {name!r} with the id {key!r} has no logs. The logs may have been removed.")
    return path


def _newest_logs(name: str) -> Path | None:
    """Return the folder of logs of the cluster that last had this name, or None."""
    folders = [path for path in logs_folder().glob(f"{name}-????????") if path.is_dir()]
    return max(folders, key=modified, default=None)


def await_record(name: str, identity: str | None = None) -> Record:
    """Return the record of cluster `name`; wait until it appears, which takes a while on network file systems.

    Parameters
    ----------
    identity
        Begin of the cluster's id: a job that was queued for long must not take another cluster's record. None: any.

    Raises
    ------
    ClusterNotFound
        If it has not appeared after ``workbench.record-timeout``.
    """
    timeout = config.seconds("record-timeout")
    deadline = time.monotonic() + timeout
    while True:
        try:
            return _read_with_id(name, identity)
        except ClusterNotFound as error:
            if time.monotonic() > deadline:
                message = (
                    f"{error} {socket.gethostname()} has waited {timeout:.0f} s for "
                    f"{clusters_folder() / name / RECORD} (the setting workbench.record-timeout)."
                )
                raise error.converted(ClusterNotFound, message, hint=()) from None
        time.sleep(0.05)


def _read_with_id(name: str, identity: str | None) -> Record:
    record = read(name)
    if not record.id.startswith(identity or ""):
        message = f"the name {name!r} now belongs to another cluster, with the id {record.id}."
        raise ClusterNotFound(message, given=identity)
    return record
