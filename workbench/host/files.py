"""Files of one user: written atomically and with their permissions, and checked before they are read."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from contextlib import suppress
from pathlib import Path

from workbench.errors import InvalidRequest, RecordError

# Attempts to read a file that is replaced during each of the earlier ones.
_ATTEMPTS = 5


def validate(argument: str, file: str) -> Path:
    """Return the path of a file to write; raise InvalidRequest, with the subcommand or option, if it is not valid."""
    path = Path(file).expanduser()
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # the checks below report these errors
    except (OSError, ValueError) as error:
        raise _refused(argument, repr(file), f"the name is not valid ({error}). Name another file.") from error
    if path.is_dir():
        raise _refused(argument, file, "the path is a folder. Name a file.")
    if not path.parent.is_dir():
        raise _refused(
            argument, file, f"the folder {path.parent} does not exist. Create the folder, or name another file."
        )
    # The new file is written beside the old one.
    if not (_is_device(path) or os.access(path.resolve().parent, os.W_OK | os.X_OK)):
        raise _refused(argument, file, "you have no permission to write there. Name another file.")
    return path


def _refused(argument: str, file: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{argument} {file}: {why}", option=argument.lstrip("-"), given=file)


def write(argument: str, path: Path, content: bytes | memoryview) -> None:
    """Write or replace a file, through links; if that fails, raise InvalidRequest and keep the old file."""
    try:
        if _is_device(path):
            path.write_bytes(content)
        else:
            replace(path.resolve(), content, 0o666)
    except OSError as error:
        why = f"the file cannot be written ({error.strerror}). Name another file."
        raise _refused(argument, str(path), why) from error


def _is_device(path: Path) -> bool:
    """Return whether the path is a terminal or a pipe, for example, which cannot be replaced."""
    return path.exists() and not path.is_file()


def replace(path: Path, content: bytes | memoryview, mode: int) -> None:
    """Write a file, or replace it or a link, in one step; `mode` is masked by the umask, and the folder must exist."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write the names of the files in a folder to the disk: otherwise a power loss may bring back a replaced file."""
    with suppress(OSError):  # some file systems cannot, and do it by themselves; the files are there
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def read(path: Path) -> bytes:
    """Return the content of a file that `replace` may replace at the same time, also on another host.

    Notes
    -----
    A server of NFS version 3 does not know that a file is open. If another host replaces the file between the open and
    the read of this host, the read fails with ESTALE, and another attempt opens the new file.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return path.read_bytes()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return path.read_bytes()


def make_private(folder: Path) -> None:
    """Create a folder, and missing folders above it, that only this user can open."""
    if not folder.exists():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """Open a file, as an ``opener`` of ``open``; only this user can open a new file."""
    return os.open(path, flags, 0o600)


def replace_file(path: Path, text: str) -> None:
    """Write a file that only this user can open, as `replace`."""
    replace(path, text.encode(), 0o600)


def check_closed(folder: Path) -> None:
    """Raise RecordError if `folder` exists and another user owns or can change it, and so could replace keys."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return
    _check_owner(folder, status)
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise RecordError(
            f"{folder} can be changed by other users (mode {stat.S_IMODE(status.st_mode):o}, allowed 700), and the "
            "folder contains the keys of the clusters.",
            given=f"{stat.S_IMODE(status.st_mode):o}",
            hint=f"Close the folder and its content with: chmod -R go-rwx '{folder}'",
        )


def check_private(path: Path) -> None:
    """Raise RecordError if another user owns or can open `path`, which must exist."""
    status = path.lstat()
    _check_owner(path, status)
    if stat.S_IMODE(status.st_mode) & 0o077:
        mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
        raise RecordError(
            f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):o}, allowed {mode}), and this path "
            "protects the key of the cluster.",
            given=f"{stat.S_IMODE(status.st_mode):o}",
            allowed=mode,
            hint=f"Close the path with: chmod {mode} '{path}'",
        )


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise RecordError(
            f"{path} belongs to user {status.st_uid}, not to you ({os.geteuid()}).",
            given=status.st_uid,
            hint=f"Only records that you own can be used. Remove {path}, or set JUPYTER_DATA_DIR to another folder.",
        )
