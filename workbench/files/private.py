"""Folders and files that guard keys have to be the user's alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from workbench.errors import RecordError
from workbench.files import atomic_file


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone."""
    if not folder.exists():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """Open a file as ``open`` does that has this ``opener``: one that is made is this user's alone."""
    return os.open(path, flags, 0o600)


def replace_file(path: Path, text: str) -> None:
    """Write a file of this user alone in one step: a reader sees the old one or the new one, never a part.

    Raises
    ------
    FileNotFoundError
        If its folder is gone; it is never made.
    """
    atomic_file.replace(path, text.encode(), 0o600)


def check_closed(folder: Path) -> None:
    """Return if `folder` belongs to this user and nobody else can change what is in it, or if there is none.

    Raises
    ------
    RecordError
        If it is not so: others could put a folder of theirs in the place of one that guards keys.
    """
    try:
        status = folder.stat()
    except FileNotFoundError:
        return
    _check_owner(folder, status)
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise RecordError(
            f"{folder} can be changed by other users (mode {stat.S_IMODE(status.st_mode):o}, allowed 700), and what "
            f"guards the clusters' keys is in it.",
            hint=f"Close it with: chmod 700 '{folder}'",
        )


def check_private(path: Path) -> None:
    """Return if `path` belongs to this user and nobody else can open it.

    Raises
    ------
    RecordError
        If it is not so.
    FileNotFoundError
        If there is none.
    """
    status = path.lstat()
    _check_owner(path, status)
    if stat.S_IMODE(status.st_mode) & 0o077:
        mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
        raise RecordError(
            f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):o}, allowed {mode}), and it guards "
            f"the cluster's key.",
            hint=f"Close it with: chmod {mode} '{path}'",
        )


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise RecordError(
            f"{path} belongs to user {status.st_uid}, not to you ({os.geteuid()}).",
            hint="Only your records are used. Remove it, or set JUPYTER_DATA_DIR to your folder.",
        )
