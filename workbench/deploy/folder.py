"""The folder of one cluster under Jupyter's data directory, as a value with its paths and operations.

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
import json
import os
import shutil
import stat
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workbench import config, hints
from workbench.deploy import ended
from workbench.deploy.ended import EndReason
from workbench.deploy.record import DAMAGED, Record, parse
from workbench.errors import ClusterMoves, ClusterNotFound, HeadUnreachable, RecordError
from workbench.hints import Command, Hint
from workbench.host import files
from workbench.host.files import check_closed, check_private, make_private, replace_file
from workbench.text import clock, printable

RECORD = "record.json"
"""Name of the file of a record."""
# The mode of a record that its head cannot replace, on a full disk: a change of the mode needs no space, and the sticky
# bit of a file has no other meaning.
_OLD = 0o1600
# Seconds between two checks of the lease.
_LEASE_INTERVAL_S = 2.0
# Owners in the place of all users while an NFS server or its client cannot map names of users.
_NOBODY = (65534, 2**32 - 2)
_MAX_REASON_LENGTH = 1000


def clusters_folder() -> Path:
    """Return the folder of all cluster records of this user."""
    return config.data_folder() / "workbench" / "clusters"


def logs_folder() -> Path:
    """Return the folder of all logs of this user's clusters."""
    return config.data_folder() / "workbench" / "logs"


@dataclass(frozen=True)
class ClusterFolder:
    """The paths of one cluster, and the operations on its files."""

    id: str
    """Id of the cluster."""
    data: Path
    """Jupyter's data directory."""
    path: Path
    """Folder of the cluster, which has its name."""
    logs: Path
    """Folder of the log files, which are kept after the end of the cluster."""
    end_note: Path
    """File with the reason of the end of the cluster."""

    @classmethod
    def of(cls, record: Record) -> ClusterFolder:
        """Return the folder of a cluster; the data directory is the present one of this process."""
        data = config.data_folder()
        workbench, stem = data / "workbench", f"{record.name}-{record.id[:8]}"
        return cls(
            id=record.id,
            data=data,
            path=workbench / "clusters" / record.name,
            logs=workbench / "logs" / stem,
            end_note=workbench / "ended" / f"{stem}.json",
        )

    # -- record ------------------------------------------------------------------------------------------------

    def make(self, record: Record) -> None:
        """Make the folder with the first record; raises OSError, also if the folder exists."""
        # The folder is renamed with the record inside: a start that is killed here leaves no folder without a record.
        draft = self.path.with_name(f".{self.path.name}.{self.id}")
        try:
            draft.mkdir(mode=0o700)
            _write(draft, record)
            draft.rename(self.path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def read(self) -> Record:
        """Return the record in the folder; raises as `read_record`."""
        return read_record(self.path)

    def write(self, record: Record) -> None:
        """Replace the record on disk in one step: a reader gets the old one or the new one, never a part.

        Raises FileNotFoundError if the folder is gone; it is never created again.
        """
        _write(self.path, record)

    def update(self, record: Record) -> None:
        """Write the record of a running cluster, unless its folder has become another cluster's; raises as `write`."""
        if self.owns_lease():
            try:
                self.write(record)
            except OSError:
                with suppress(OSError):
                    (self.path / RECORD).chmod(_OLD)
                raise

    def written(self) -> float | None:
        """Return when the record was written, if its head could not replace it since; None if it is up to date."""
        return _written(self.path)

    def script(self) -> str:
        """Return the submitted script of the cluster's job; raises ClusterNotFound if the cluster has ended."""
        try:
            return (self.path / "job.sh").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ClusterNotFound(
                f"cluster {self.path.name!r} has ended, and its script was removed. Its logs are in {self.logs}."
            ) from None

    # -- lease -------------------------------------------------------------------------------------------------

    def owns_lease(self) -> bool:
        """Return whether the folder exists and belongs to the cluster.

        Raises
        ------
        OSError
            If this is not known: the file server does not answer, or does not know the owners of files.
        """
        try:
            owner = self.path.lstat().st_uid
            if owner != os.geteuid():
                if owner in _NOBODY:
                    raise OSError(errno.EIO, f"{self.path} belongs to user {owner}, which stands for any user")
                return False
            return self._is_record_in(self.path)
        except FileNotFoundError:
            return False

    def _is_record_in(self, folder: Path) -> bool:
        content = files.read(folder / RECORD)
        try:
            return bool(json.loads(content)["id"] == self.id)
        except DAMAGED:
            # A damaged record belongs to no other cluster, and the head replaces it with the next change.
            return True

    async def wait_until_lost(self) -> None:
        """Return when the lease is lost."""
        # asyncio loads logging, without which the command, which imports this module, starts faster.
        import asyncio

        missed = 0
        while missed < 2:  # a second check, because some network file systems do not replace files atomically
            await asyncio.sleep(_LEASE_INTERVAL_S if not missed else _LEASE_INTERVAL_S / 4)
            try:
                owned = await asyncio.to_thread(self.owns_lease)
            except OSError:
                continue  # the file server does not answer, so the state is unknown
            missed = 0 if owned else missed + 1

    # -- end ---------------------------------------------------------------------------------------------------

    def note(self, record: Record, state: str, reason: str, when: float | None = None, hint: Hint = ()) -> None:
        """Note how the cluster ends, unless a note exists: the first process to write one knows most.

        The state is one of `workbench.deploy.ended`, and only the first line of the reason is kept. A note that cannot
        be written, for example on a full disk, is omitted.
        """
        # The reason may have text of a scheduler, or of a library that a rank has loaded.
        line = printable(reason.strip().partition("\n")[0][:_MAX_REASON_LENGTH])
        what = tuple(hints.to_json(hint))
        when = when or time.time()
        end = EndReason(record.name, record.id, state, line, when, record.created, record.total, hint=what)
        with suppress(OSError):
            make_private(self.end_note.parent)
            if not self.end_note.exists():
                replace_file(self.end_note, json.dumps(dataclasses.asdict(end)))
                ended.prune(self.end_note.parent)

    def withdraw_note(self, *, age: float = 0.0) -> None:
        """Remove the note of the end of a cluster that still runs, if the note is at least `age` seconds old."""
        end = self.end()
        with suppress(OSError):
            # A note that is written after this look stays.
            if not age or (end is not None and time.time() - end.when >= age):
                self.end_note.unlink(missing_ok=True)

    def end(self) -> EndReason | None:
        """Return how the cluster has ended, or None if unknown."""
        return ended.read(self.end_note)

    def lost(self, reason: str) -> HeadUnreachable:
        """Return the error of a request to the cluster, which has ended for a known reason."""
        name = self.path.name
        return HeadUnreachable(
            f"cluster {name!r} has ended ({reason}). Its logs are in {self.logs}.",
            hint=("Start a new cluster with ", Command("start", f"--name {name}"), "."),
        )

    def moves(self, reason: str) -> ClusterMoves:
        """Return the error of a request to the cluster while its next job has not begun."""
        return ClusterMoves(
            f"cluster {self.path.name!r} moves to its next job ({reason}).",
            hint=("Repeat the request when the next job runs: ", Command("list"), " shows the job."),
        )

    # -- removal -----------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Remove the folder, key included, if it is still this cluster's; the logs stay."""
        doomed = self.take_away()
        if doomed is not None:
            shutil.rmtree(doomed, ignore_errors=True)
        self._prune_logs()

    def take_away(self) -> Path | None:
        """Rename the folder if it is still this cluster's; return its new path, or None if it was not."""
        if not self.owns_lease():
            return None
        # Renamed first, in one step: no process may find a folder that has its name but no record.
        doomed = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")
        try:
            self.path.rename(doomed)
        except FileNotFoundError:
            return None
        with suppress(FileNotFoundError):
            if not self._is_record_in(doomed):
                # On a file system without locks another process has removed the folder, and a new cluster has the name.
                doomed.rename(self.path)
                return None
        return doomed

    def _prune_logs(self) -> None:
        kept = config.get("keep-logs")
        if not isinstance(kept, int) or kept < 0:
            return  # a setting that is not valid must neither keep a cluster from ending nor remove logs
        # Listed before the names, so that the logs of a cluster that is being created are not in the list.
        folders = list(self.logs.parent.glob("*"))
        # No record of another cluster is read: its file server may hang, and the name says enough.
        taken = {path.name for path in self.path.parent.glob("*")}
        old = sorted((path for path in folders if path.name[: -len("-12345678")] not in taken), key=modified)
        for path in old[: max(0, len(old) - kept)]:
            shutil.rmtree(path, ignore_errors=True)


def read_record(folder: Path) -> Record:
    """Return the record in the folder of a cluster.

    Raises
    ------
    FileNotFoundError
        If the folder does not exist.
    RecordError
        If the record is corrupt, of another version, another user's, readable by others, or in a folder that others can
        change.
    """
    name, path = folder.name, folder / RECORD
    try:
        check_closed(folder.parent.parent)
        check_private(folder)
        check_private(path)
        content = files.read(path)
    except (FileNotFoundError, RecordError):
        raise
    except OSError as error:
        raise RecordError(
            f"the record of cluster {name!r} cannot be read ({error}).",
            given=name,
            hint=f"Remove {folder} if the cluster has ended.",
        ) from error
    try:
        record = parse(content, name)
    except DAMAGED as error:
        raise RecordError(
            f"the record of cluster {name!r} cannot be read ({error}): {path}.",
            given=name,
            hint="Another version has written the record, or the record is damaged. Remove its folder if the cluster "
            "has ended (the removal stops a cluster that still runs).",
        ) from error
    # The message of the last states is the reason of the end, whenever the head has written the record.
    if (when := _written(folder)) is None or record.state in ("failed", "closing"):
        return record
    old = f"this was the state at {clock(when)}, and its head could not write its record since"
    return record.replace(message="; ".join(filter(None, (record.message, old))))


def _write(folder: Path, record: Record) -> None:
    replace_file(folder / RECORD, json.dumps(dataclasses.asdict(record), indent=1))


def _written(folder: Path) -> float | None:
    try:
        status = (folder / RECORD).stat()
    except OSError:
        return None
    return status.st_mtime if stat.S_IMODE(status.st_mode) == _OLD else None


def modified(path: Path) -> float:
    """Return when a folder was modified; 0.0 if another process has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
