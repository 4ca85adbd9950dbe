"""A file that a verb writes for who asks: it is there when it is complete, and what was there stays until then."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from workbench.errors import InvalidRequest


def checked(what: str, file: str) -> Path:
    """Return the path of a file that is to be written, and refuse what can be none before anything is asked.

    Parameters
    ----------
    what
        What the file is named by, for messages: a verb or an option.
    file
        As it was named, maybe from the home folder on.

    Raises
    ------
    InvalidRequest
        If there can be no such file.
    """
    path = Path(file).expanduser()
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # told below, where it matters
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{what} {file!r}: no file can have that name ({error}); name another file") from error
    if path.is_dir():
        raise InvalidRequest(f"{what} {file}: it is a folder; name a file")
    if not path.parent.is_dir():
        raise InvalidRequest(f"{what} {file}: there is no folder {path.parent}; make it, or name another file")
    # what is written is a new file beside it
    if not (_is_device(path) or os.access(path.resolve().parent, os.W_OK | os.X_OK)):
        raise InvalidRequest(f"{what} {file}: you may not write there; name another file")
    return path


def write(what: str, path: Path, content: bytes) -> None:
    """Write a file, or replace the one that is there; a link stays one.

    Parameters
    ----------
    what
        As of `checked`.
    path
        The file.
    content
        All that it is to have.

    Raises
    ------
    InvalidRequest
        If it cannot be written; what was there is as it was.
    """
    try:
        if _is_device(path):
            path.write_bytes(content)
        else:
            replace(path.resolve(), content, 0o666)
    except OSError as error:
        raise InvalidRequest(f"{what} {path}: it cannot be written ({error.strerror}); name another file") from error


def _is_device(path: Path) -> bool:
    """Tell whether it is a terminal, a pipe or the like, which nothing can take the place of."""
    return path.exists() and not path.is_file()


def replace(path: Path, content: bytes, mode: int) -> None:
    """Write a file in one step: a reader sees the old one or the new one, never a part.

    Parameters
    ----------
    path, content
        As of `write`, but a link is replaced.
    mode
        Of a new file, less the umask.

    Raises
    ------
    FileNotFoundError
        If its folder is gone; it is never made.
    """
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
