"""Folders and files that guard keys have to be the user's alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from workbench.errors import RecordError


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
    if status.st_uid != os.geteuid():
        raise RecordError(
            f"{path} belongs to user {status.st_uid}, not to you ({os.geteuid()}). "
            "Only records of your own are used; remove it or set JUPYTER_DATA_DIR to a folder of yours."
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
        raise RecordError(
            f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):o}, allowed {mode}), and it guards "
            f"the cluster's key. Close it with: chmod {mode} '{path}'"
        )


def make_private(path: Path) -> None:
    """Make a folder in which nobody else can put a folder of theirs in the place of one of this user's.

    Raises
    ------
    RecordError
        If it belongs to another user.
    """
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir(mode=0o755, exist_ok=True)  # whatever the umask: others may look, and rename nothing
    path.mkdir(mode=0o700, exist_ok=True)
    # It may be a link to a file system with more room.
    path = path.resolve()
    if path.stat().st_uid == os.geteuid():
        path.chmod(0o700)  # an earlier version left that to the umask
    check_private(path)


def open_to_append(path: Path) -> int:
    """Return the descriptor of a file that nobody else can read, made if need be."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
