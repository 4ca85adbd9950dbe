"""Folders and files with keys, which only the user can open, whatever the umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from workbench.errors import RecordError
from workbench.files import atomic_file


def make_private(folder: Path) -> None:
    """Create a folder, and missing folders above it, that only this user can open."""
    if not folder.exists():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """Open a file, as an ``opener`` of ``open``; only this user can open a new file."""
    return os.open(path, flags, 0o600)


def replace_file(path: Path, text: str) -> None:
    """Write a file that only this user can open, as `atomic_file.replace`."""
    atomic_file.replace(path, text.encode(), 0o600)


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
            hint=f"Close the path with: chmod {mode} '{path}'",
        )


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise RecordError(
            f"{path} belongs to user {status.st_uid}, not to you ({os.geteuid()}).",
            hint=f"Only records that you own can be used. Remove {path}, or set JUPYTER_DATA_DIR to another folder.",
        )
