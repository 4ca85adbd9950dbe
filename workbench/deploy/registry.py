"""The clusters of this user: one folder each, under Jupyter's data directory.

::

    <jupyter data>/workbench/clusters/NAME/    0700: record.json, certificate.pem, key.pem, job.sh, dask.yaml
    <jupyter data>/workbench/logs/NAME-ID/     0700: head.log, world-0.log, rank-0.log, rank-1.log, ...
    <jupyter data>/workbench/ended/            0700: how each cluster has ended, see `workbench.deploy.ended`

The folder reserves the cluster's name (it is created atomically), holds its key and is its *lease*: the head ends the
cluster when the folder is gone or belongs to another cluster. Logs outlive the folder.

Until the head runs the starter writes the record; from then on the head alone does.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import re
import shutil
import socket
import stat
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

from workbench import config, hints
from workbench.deploy import ended
from workbench.deploy.record import (
    DAMAGED,
    RECORD,
    SCHEMA,
    Record,
    clusters_folder,
    from_dict,
    is_of,
    logs_folder,
    owns_lease,
)
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
from workbench.host import files, node_dirs
from workbench.host.files import check_closed, check_private, make_private, replace_file
from workbench.text import clock, printable

if TYPE_CHECKING:
    from workbench.launch.interface import JobStatus

_ALLOWED = "1 to 40 letters, digits, '.', '_' and '-', the first a letter or digit"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
# Errors of `rename` to a name that exists.
_NAME_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
# The mode of a record that its head cannot replace, on a full disk: a change of the mode needs no space, and the sticky
# bit of a file has no other meaning.
_OLD = 0o1600


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
    try:
        check_closed(clusters_folder().parent)
        return sorted(path.name for path in clusters_folder().iterdir() if _NAME.fullmatch(path.name))
    except FileNotFoundError:
        return []
    except RecordError:
        raise
    except OSError as error:
        raise RecordError(
            f"{clusters_folder()} cannot be read: {error}. The path must be a folder that you own and can read.",
            hint="Check the folder, or set JUPYTER_DATA_DIR to another folder.",
        ) from error


def create(record: Record) -> None:
    """Make the folder of a new cluster and write its first record.

    Raises
    ------
    ClusterExists
        If a cluster of that name runs, or may run. The record of a cluster that has certainly ended is replaced.
    RecordError
        If the folders of the registry are open to other users.
    """
    check_name(record.name)
    check_closed(clusters_folder().parent)
    for folder in (clusters_folder(), logs_folder()):
        make_private(folder)
        check_private(folder)
    if record.name in names():
        _forget_if_stale(record.name)
    # The folder is renamed with the record inside: a start that is killed here leaves no folder without a record.
    draft = record.folder.with_name(f".{record.name}.{record.id}")
    try:
        draft.mkdir(mode=0o700)
        _write(draft, record)
        draft.rename(record.folder)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _NAME_TAKEN:
            raise _exists(record.name) from None
        raise
    record.logs.mkdir(mode=0o700, exist_ok=True)


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


def write(record: Record) -> None:
    """Replace the record on disk in one step: a reader gets the old one or the new one, never a part.

    Raises
    ------
    FileNotFoundError
        If the cluster's folder is gone; it is never created again.
    """
    _write(record.folder, record)


def _write(folder: Path, record: Record) -> None:
    replace_file(folder / RECORD, json.dumps(dataclasses.asdict(record), indent=1))


def update(record: Record) -> None:
    """Write the record of a running cluster, unless its folder has become another cluster's.

    Raises
    ------
    FileNotFoundError
        If the folder is gone.
    """
    if owns_lease(record):
        try:
            write(record)
        except OSError:
            with suppress(OSError):
                (record.folder / RECORD).chmod(_OLD)
            raise


def written(record: Record) -> float | None:
    """Return when the record on disk was written, if its head could not replace it since; None if it is up to date."""
    try:
        status = (record.folder / RECORD).stat()
    except OSError:
        return None
    return status.st_mtime if stat.S_IMODE(status.st_mode) == _OLD else None


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
    folder = clusters_folder() / name
    try:
        check_closed(folder.parent.parent)
        check_private(folder)
        path = folder / RECORD
        check_private(path)
        content = files.read(path)
    except FileNotFoundError:
        known = names()
        raise ClusterNotFound(
            f"cluster {name!r} does not exist" + (f"; {did_you_mean(name, known)}." if known else "."),
            option="name",
            given=name,
            allowed=known,
            hint=() if known else ("No cluster runs. Start a cluster with ", Command("start"), "."),
        ) from None
    except RecordError:
        raise
    except OSError as error:
        raise RecordError(
            f"the record of cluster {name!r} cannot be read ({error}).",
            hint=f"Remove {folder} if the cluster has ended.",
        ) from error
    try:
        record = _parse(content, name)
    except DAMAGED as error:
        raise RecordError(
            f"the record of cluster {name!r} cannot be read ({error}): {path}.",
            hint="Another version has written the record, or the record is damaged. Remove its folder if the cluster "
            "has ended (the removal stops a cluster that still runs).",
        ) from error
    # The message of the last states is the reason of the end, whenever the head has written the record.
    if (when := written(record)) is None or record.state in ("failed", "closing"):
        return record
    old = f"this was the state at {clock(when)}, and its head could not write its record since"
    return record.replace(message="; ".join(filter(None, (record.message, old))))


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
        logs = newest_logs(name)
        if logs is None:
            raise
        end = ended.last(name)
        raise _ended(name, logs, end.reason if end is not None and end.logs_folder == logs else "") from error
    if _alive(record) is not False and record.state != "failed":
        return record
    clean()
    remains = False
    with suppress(OSError):  # the file server does not answer
        remains = owns_lease(record)
    if remains and ending:
        return record
    end = ended.of(record)
    raise _ended(name, record.logs, printable(record.message) if end is None else end.reason, remains=remains)


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


def _alive(record: Record, job: JobStatus | None = None) -> bool | None:
    # Ranks and heads never ask, and need not load the launchers.
    from workbench.deploy import jobs

    return jobs.alive(record, job)


def _parse(content: bytes, name: str) -> Record:
    values = json.loads(content)
    if not isinstance(values, dict):
        raise TypeError("the record is not a JSON object")
    if values.get("schema") != SCHEMA:
        raise ValueError(f"the record has schema {values.get('schema')!r}, and this version reads schema {SCHEMA}")
    if values["name"] != name:
        raise ValueError(f"the record names cluster {values['name']!r}")
    return from_dict(values)


def _forget_if_stale(name: str, job_statuses: Mapping[str, JobStatus] = MappingProxyType({})) -> bool:
    """Remove the files of a cluster that was killed with its head; return whether they were removed."""
    path = clusters_folder() / name / RECORD
    try:
        file = open(path, "r+b")  # noqa: SIM115  (closed below)
    except OSError:
        return False
    with file:
        try:
            record = read(name)
        except (RecordError, ClusterNotFound):
            return False
        job = job_statuses.get(record.id)
        if _alive(record, job) is not False or not _is_ours_to_remove(file, path):
            return False
        try:
            _cancel(record)
        except LaunchError:
            return False  # without the record nobody could find a job that is still queued
        if record.process.is_local:
            node_dirs.remove(record.id)
        note_end(record, job)
        doomed = _take_away(record)
    # NFS keeps the folder of an open file, so the record is closed first.
    return _destroy(doomed)


def note_end(record: Record, job: JobStatus | None = None) -> None:
    """Note how a cluster has ended if its head could not.

    Parameters
    ----------
    record
        The cluster.
    job
        Status of its job; None: the scheduler is asked.
    """
    if ended.is_noted(record):
        return
    from workbench.deploy import jobs
    from workbench.launch.interface import UNKNOWN

    if record.state in ("closing", "failed"):
        state = ended.ENDED if record.state == "closing" else ended.FAILED
        ended.note(record, state, record.message, hint=hints.from_json(record.failure.get("hint", ())))
        return
    job = UNKNOWN if job is None else job
    if jobs.is_batch(record) and not job.finished:
        job = jobs.status(record)
    ended.note(record, ended.FAILED, why_gone(record, job), job.end if job.finished else None)


def why_gone(record: Record, job: JobStatus) -> str:
    """Describe, by the status of its job, the end of a cluster whose head has written no reason."""
    from workbench.deploy import jobs

    if job.finished:
        return f"its job {jobs.job_id(record)} has ended: {jobs.describe(job)}"
    if record.state == "submitted":
        return "its start was cancelled"
    return f"its head, process {record.process.pid} on {record.process.host}, was killed or crashed"


def _cancel(record: Record) -> None:
    """Cancel the remaining jobs of a cluster: queued jobs of later worlds outlast its head."""
    from workbench.deploy import jobs

    if jobs.is_batch(record):
        jobs.cancel(record)


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


def remove(record: Record) -> None:
    """Remove the cluster's folder, key included, if it is still this cluster's; its logs stay."""
    _destroy(_take_away(record))
    _prune_logs()


def _take_away(record: Record) -> Path | None:
    """Rename the folder of a cluster if it is still this cluster's; return its new path, or None if it was not."""
    if not owns_lease(record):
        return None
    # Renamed first, in one step: nobody may find a folder that has its name but no record.
    doomed = record.folder.with_name(f".{record.name}.{uuid.uuid4().hex}")
    try:
        record.folder.rename(doomed)
    except FileNotFoundError:
        return None
    with suppress(FileNotFoundError):
        if not is_of(doomed, record):
            # On a file system without locks another process has removed the folder, and a new cluster has the name.
            doomed.rename(record.folder)
            return None
    return doomed


def _destroy(folder: Path | None) -> bool:
    """Remove a folder with its content; return whether there was one to remove."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return folder is not None


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
    return [name for name in names() if _forget_if_stale(name, job_statuses)]


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
    from workbench.deploy import jobs

    needed = jobs.shows_more if suspended else jobs.decides
    return jobs.ask_all(record for record in records().values() if isinstance(record, Record) and needed(record))


def newest_logs(name: str) -> Path | None:
    """Return the folder of logs of the cluster that last had this name, or None."""
    folders = [path for path in logs_folder().glob(f"{name}-????????") if path.is_dir()]
    return max(folders, key=_modified, default=None)


def _prune_logs() -> None:
    kept = config.get("keep-logs")
    if not isinstance(kept, int) or kept < 0:
        return  # a setting that is not valid must neither keep a cluster from ending nor remove logs
    # Listed before the names, so that the logs of a cluster that is being created are not in the list.
    folders = list(logs_folder().glob("*"))
    # No record of another cluster is read: its file server may hang, and the name says enough.
    taken = set(names())
    old = sorted((path for path in folders if path.name[: -len("-12345678")] not in taken), key=_modified)
    for path in old[: max(0, len(old) - kept)]:
        shutil.rmtree(path, ignore_errors=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # removed by another cluster that has just ended


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
                raise ClusterNotFound(
                    f"{error} {socket.gethostname()} has waited {timeout:.0f} s for "
                    f"{clusters_folder() / name / RECORD} (the setting workbench.record-timeout)."
                ) from None
        time.sleep(0.05)


def _read_with_id(name: str, identity: str | None) -> Record:
    record = read(name)
    if not record.id.startswith(identity or ""):
        raise ClusterNotFound(f"the name {name!r} now belongs to another cluster, with the id {record.id}.")
    return record
