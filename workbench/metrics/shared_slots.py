"""Memory that the ranks of a node share: each rank writes its sample, and one rank reads all of them."""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

# Bytes of a slot.
_SLOT_BYTES = 64 * 1024
# At the begin of a slot: the number of bytes of the sample, and their checksum.
_HEADER = struct.Struct("<QI")


class SharedSlots:
    """A file in memory with a slot for each rank of a world, which the ranks of one node share.

    Parameters
    ----------
    path
        The file, in memory of this node; the first rank makes it.

    Raises
    ------
    OSError
        If the file cannot be made; from `write` also if the memory is full.

    Notes
    -----
    A rank writes its own slot only. A reader of a slot that is being written finds that the checksum does not fit, and
    treats the slot as empty: no rank waits for another, and a rank that is killed while it writes blocks none.
    The file is not mapped: to touch a page of a mapping for which there is no memory would kill the process.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, rank: int, sample: Any) -> None:
        """Write the sample of a rank; a sample that is larger than a slot is not written."""
        text = pickle.dumps(sample, pickle.HIGHEST_PROTOCOL)
        if len(text) <= _SLOT_BYTES - _HEADER.size:
            os.pwrite(self._file, _HEADER.pack(len(text), zlib.crc32(text)) + text, rank * _SLOT_BYTES)

    def read(self, rank: int) -> Any:
        """Return the last sample of a rank; None if there is none, or it is being written."""
        slot = os.pread(self._file, _SLOT_BYTES, rank * _SLOT_BYTES)
        if len(slot) < _HEADER.size:
            return None
        length, checksum = _HEADER.unpack_from(slot)
        text = slot[_HEADER.size : _HEADER.size + length]
        # of this user's own ranks: nobody else can open the file
        return pickle.loads(text) if length and zlib.crc32(text) == checksum else None  # noqa: S301

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
