"""The board of a node: memory that its ranks share, where each writes what it has counted, and one reads for all."""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

# Of a slot: most bytes of what a rank writes. The file is sparse: a page that nobody writes to takes no memory.
_SLOT = 64 * 1024
# Ahead of it: how many bytes there are, and their checksum.
_HEADER = struct.Struct("<QI")


class Board:
    """A file that the ranks of a world on one node have in memory, with a slot for each rank of the world.

    Parameters
    ----------
    path
        The file, in memory of this node; made by whoever comes first.
    size
        Ranks of the world.

    Notes
    -----
    A rank writes its own slot only. Whoever reads one while it is written finds that the checksum does not fit, and
    takes it as if nothing were new: nobody waits for anybody, and a rank that is killed in the middle holds up no one.
    """

    def __init__(self, path: Path, size: int) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # the same for all who come, so it does not matter who is first
            os.ftruncate(file, size * _SLOT)
            self._memory = mmap.mmap(file, size * _SLOT)
        finally:
            os.close(file)

    def write(self, rank: int, told: Any) -> None:
        """Write what a rank tells: numbers, text, lists and dicts of these; what has no room is not written."""
        text = pickle.dumps(told, pickle.HIGHEST_PROTOCOL)
        if len(text) > _SLOT - _HEADER.size:
            return
        at = rank * _SLOT
        self._memory[at : at + _HEADER.size] = _HEADER.pack(len(text), zlib.crc32(text))
        self._memory[at + _HEADER.size : at + _HEADER.size + len(text)] = text

    def read(self, rank: int) -> Any:
        """Return what a rank has written last; None if that is nothing, or is being written."""
        at = rank * _SLOT
        length, checksum = _HEADER.unpack(self._memory[at : at + _HEADER.size])
        if not 0 < length <= _SLOT - _HEADER.size:
            return None
        text = self._memory[at + _HEADER.size : at + _HEADER.size + length]
        return pickle.loads(text) if zlib.crc32(text) == checksum else None  # noqa: S301  (of this user's own ranks)

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
