"""Parts of the log files of a cluster, also after its end."""

from __future__ import annotations

import codecs
import os
from typing import Any, BinaryIO

from workbench import logs
from workbench.errors import ClusterNotFound, did_you_mean
from workbench.printable import printable

# Bytes of a part.
_PART = 256 << 10


def listing(name: str) -> list[dict[str, Any]]:
    """Return names and sizes of the log files of cluster `name`, or of the one that last had the name.

    Raises
    ------
    ClusterNotFound
        If there never was one.
    """
    try:
        return [
            {"name": entry.name.removesuffix(".log"), "size": entry.stat(follow_symlinks=False).st_size}
            for entry in sorted(os.scandir(logs.folder(name)), key=lambda entry: entry.name)
            if entry.name.endswith(".log") and entry.is_file(follow_symlinks=False)
        ]
    except FileNotFoundError:
        return []  # it was asked for a moment ago, or is being removed


def part(name: str, file: str, begin: int, *, raw: bool = False) -> dict[str, Any]:
    """Return a part of a log file.

    Parameters
    ----------
    name
        The cluster.
    file
        As of `listing`; never a path.
    begin
        Its first byte; below zero: so many before the end.
    raw
        Return the text as it is in the file, not as a page may show it.

    Returns
    -------
    part : dict
        ``text`` of at most 256 KiB of the file, ``next``: the first byte of what follows, ``size`` of the file in
        bytes.

    Raises
    ------
    ClusterNotFound
        If there is no such cluster or file.
    """
    files = [its["name"] for its in listing(name)]
    if file not in files:
        raise ClusterNotFound(f"cluster {name!r} has no log {file!r}; {did_you_mean(file, files)}")
    path = logs.folder(name) / f"{file}.log"
    with open(path, "rb") as opened:
        its = _read(opened, begin)
    return its if raw else its | {"text": printable(its["text"])}


def _read(file: BinaryIO, begin: int) -> dict[str, Any]:
    size = file.seek(0, os.SEEK_END)
    # A file that was begun anew is shorter than what has been read of it.
    start = file.seek(max(0, size + begin) if begin < 0 else min(begin, size))
    read = file.read(_PART)
    # A character that is cut off at the end belongs to the next part.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(read)
    return {"text": text, "next": start + len(read) - len(decoder.getstate()[0]), "size": size}
