"""Parts of the log files of a cluster, also after its end."""

from __future__ import annotations

import codecs
import errno
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

from workbench.deploy import registry
from workbench.errors import ClusterNotFound, did_you_mean
from workbench.text import colored

# Names of log files, without their ending: never a path.
_FILE = re.compile(r"[A-Za-z0-9][\w.-]*")
# Bytes of a part.
_PART = 256 << 10
# The beginning of an escape sequence for a color.
_HALF_COLOR = re.compile(r"\x1b(\[[0-9;]{0,20})?\Z")


def listing(name: str, key: str | None = None) -> list[dict[str, Any]]:
    """Return names and sizes of the log files of a cluster; parameters as of `workbench.deploy.registry.logs_of`."""
    return _listing(registry.logs_of(name, key))


def _listing(folder: Path) -> list[dict[str, Any]]:
    try:
        return [
            {"name": entry.name.removesuffix(".log"), "size": entry.stat(follow_symlinks=False).st_size}
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)
            if entry.name.endswith(".log") and entry.is_file(follow_symlinks=False)
        ]
    except FileNotFoundError:
        return []  # the folder does not exist yet, or is being removed


def block(folder: Path, file: str, begin: int) -> tuple[bytes, int, int]:
    """Return at most 256 KiB of a log file, their offset, and the size of the file in bytes.

    Parameters
    ----------
    folder
        The logs of a cluster, as `workbench.deploy.registry.logs_of` returns them.
    file
        As of `listing`; never a path.
    begin
        Offset of the first byte; a negative offset is relative to the end.

    Raises
    ------
    ClusterNotFound
        If the file does not exist.
    """
    try:
        # Not by a listing, since a folder has a log for each rank.
        opened = _open(folder / f"{file}.log") if _FILE.fullmatch(file) else None
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        opened = None
    if opened is None:
        files = [entry["name"] for entry in _listing(folder)]
        raise ClusterNotFound(f"log {file!r} does not exist in {folder}: {did_you_mean(file, files)}", given=file)
    with opened:
        size = opened.seek(0, os.SEEK_END)
        # A truncated file may be shorter than the offset.
        start = opened.seek(max(0, size + begin) if begin < 0 else min(begin, size))
        return opened.read(_PART), start, size


def part(name: str, file: str, begin: int, *, key: str | None = None) -> dict[str, Any]:
    """Return a part of a log file as a page shows it.

    Parameters
    ----------
    name, key
        The cluster, as of `workbench.deploy.registry.logs_of`.
    file, begin
        As of `block`.

    Returns
    -------
    part : dict
        ``text``, as of `workbench.text.colored`, of at most 256 KiB of the file, ``next``: the first byte
        of what follows, ``size`` of the file in bytes.

    Raises
    ------
    ClusterNotFound
        If the cluster or the file does not exist.
    """
    content, start, size = block(registry.logs_of(name, key), file, begin)
    # A character or a color that is incomplete at the end belongs to the next part.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(content)
    complete = _HALF_COLOR.sub("", text)
    cut_off = len(decoder.getstate()[0]) + len(text) - len(complete)
    return {"text": colored(complete), "next": start + len(content) - cut_off, "size": size}


def _open(path: Path) -> BinaryIO | None:
    """Open a regular file, or return None; links are not followed, and a pipe does not block."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(number).st_mode):
        return os.fdopen(number, "rb")
    os.close(number)
    return None
