"""Parts of the log files of a cluster, also after its end."""

from __future__ import annotations

import codecs
import errno
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

from workbench.deploy import logs
from workbench.errors import ClusterNotFound, did_you_mean
from workbench.log.printable import coloured

# Names of log files, without their ending: never a path.
_FILE = re.compile(r"[A-Za-z0-9][\w.-]*")
# Bytes of a part.
_PART = 256 << 10
# What may become a colour when more is written.
_HALF_COLOUR = re.compile(r"\x1b(\[[0-9;]{0,20})?\Z")


def listing(name: str, key: str | None = None) -> list[dict[str, Any]]:
    """Return names and sizes of the log files of a cluster; `name` and `key` as of `workbench.deploy.logs.folder`.

    Raises
    ------
    ClusterNotFound
        If there never was one.
    """
    return _listing(logs.folder(name, key))


def _listing(folder: Path) -> list[dict[str, Any]]:
    try:
        return [
            {"name": entry.name.removesuffix(".log"), "size": entry.stat(follow_symlinks=False).st_size}
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)
            if entry.name.endswith(".log") and entry.is_file(follow_symlinks=False)
        ]
    except FileNotFoundError:
        return []  # it was asked for a moment ago, or is being removed


def block(folder: Path, file: str, begin: int) -> tuple[bytes, int, int]:
    """Return 256 KiB of a log file, or what there is to its end, their first byte, and the size of the file in bytes.

    Parameters
    ----------
    folder
        The logs of a cluster, as `workbench.deploy.logs.folder` returns them.
    file
        As of `listing`; never a path.
    begin
        The first byte; below zero: so many before the end.

    Raises
    ------
    ClusterNotFound
        If there is no such file.
    """
    try:
        # There is a log for each rank: they are listed only for who asks for the list.
        opened = _open(folder / f"{file}.log") if _FILE.fullmatch(file) else None
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        opened = None
    if opened is None:
        files = [its["name"] for its in _listing(folder)]
        raise ClusterNotFound(f"there is no log {file!r} in {folder}; {did_you_mean(file, files)}")
    with opened:
        size = opened.seek(0, os.SEEK_END)
        # A file that was begun anew is shorter than what has been read of it.
        start = opened.seek(max(0, size + begin) if begin < 0 else min(begin, size))
        return opened.read(_PART), start, size


def part(name: str, file: str, begin: int, *, key: str | None = None) -> dict[str, Any]:
    """Return a part of a log file as a page shows it.

    Parameters
    ----------
    name, key
        The cluster, as of `workbench.deploy.logs.folder`.
    file, begin
        As of `block`.

    Returns
    -------
    part : dict
        ``text``, as of `workbench.log.printable.coloured`, of at most 256 KiB of the file, ``next``: the first byte
        of what follows, ``size`` of the file in bytes.

    Raises
    ------
    ClusterNotFound
        If there is no such cluster or file.
    """
    read, start, size = block(logs.folder(name, key), file, begin)
    # A character or a colour that is cut off at the end belongs to the next part.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(read)
    shown = _HALF_COLOUR.sub("", text)
    cut_off = len(decoder.getstate()[0]) + len(text) - len(shown)
    return {"text": coloured(shown), "next": start + len(read) - cut_off, "size": size}


def _open(path: Path) -> BinaryIO | None:
    """Open a file, or return None if it is none; where a link leads to is not read, and nobody waits for a pipe."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(number).st_mode):
        return os.fdopen(number, "rb")
    os.close(number)
    return None
