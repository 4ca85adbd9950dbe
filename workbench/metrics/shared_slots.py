"""The board of a node: memory that its ranks share, where each writes what it has counted, and one reads for all."""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

# Of a slot: most bytes of what a rank writes.
_SLOT = 64 * 1024
# Ahead of it: how many bytes there are, and their checksum.
_HEADER = struct.Struct("<QI")


class Board:
    """A file in memory with a slot for each rank of a world, which the ranks of one node share.

    Parameters
    ----------
    path
        The file, in memory of this node; made by whoever comes first.

    Raises
    ------
    OSError
        If it cannot be made; from `write` also if the memory is full.

    Notes
    -----
    A rank writes its own slot only. Whoever reads one while it is written finds that the checksum does not fit, and
    takes it as if nothing were new: nobody waits for anybody, and a rank that is killed in the middle holds up no one.
    It is not mapped: to touch a page of a mapping for which there is no memory would kill the process.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, rank: int, told: Any) -> None:
        """Write what a rank tells; what has no room in a slot is not written."""
        text = pickle.dumps(told, pickle.HIGHEST_PROTOCOL)
        if len(text) <= _SLOT - _HEADER.size:
            os.pwrite(self._file, _HEADER.pack(len(text), zlib.crc32(text)) + text, rank * _SLOT)

    def read(self, rank: int) -> Any:
        """Return what a rank has written last; None if that is nothing, or is being written."""
        slot = os.pread(self._file, _SLOT, rank * _SLOT)
        if len(slot) < _HEADER.size:
            return None
        length, checksum = _HEADER.unpack_from(slot)
        text = slot[_HEADER.size : _HEADER.size + length]
        # of this user's own ranks: nobody else can open the file
        return pickle.loads(text) if length and zlib.crc32(text) == checksum else None  # noqa: S301

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)
