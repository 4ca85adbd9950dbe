"""Memory that the ranks of a node share: each rank writes its sample, and one rank reads all of them."""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.mpi.counters import Sites

_SLOT_BYTES = 64 * 1024
# A slot begins with the length of the sample and its checksum.
_HEADER = struct.Struct("<QI")


class SharedSlots:
    """A file in shared memory with a slot for each rank of a world; the first rank of the node creates the file.

    Raises
    ------
    OSError
        If the file cannot be created; from `write` also if the memory is full.

    Notes
    -----
    A rank writes only its own slot. While a slot is being written its checksum does not match, and a reader treats the
    slot as empty: no rank waits for another, and a rank that is killed while it writes blocks no reader.
    The file is not mapped: access to a mapped page would kill the process when the memory is full.
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
        # Only processes of this user can open the file, so the pickle is trusted.
        return pickle.loads(text) if length and zlib.crc32(text) == checksum else None  # noqa: S301

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@dataclass(frozen=True)
class FinishedCall:
    """A call or cell that has ended on this rank."""

    call: str
    """Identity."""
    what: str
    begin: float
    """Seconds of `time.monotonic`, like `end`."""
    end: float
    mpi: float
    """Seconds in MPI."""
    operations: float
    bytes: float
    """Bytes sent over MPI."""


@dataclass(frozen=True)
class RankSample:
    """A rank in the last tick, and its totals; times are seconds of `time.monotonic` of its node."""

    time: float
    pid: int
    values: Mapping[str, float]
    """By the names of `workbench.metrics.schema.SAMPLED`."""
    what: str = ""
    operation: str | None = None
    since: float = 0.0
    sent: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    """Bytes and messages so far, by kind (an index of `KINDS`) and by rank of the world."""
    sizes: tuple[list[int], ...] = ()
    """Messages so far by size, for each of `KINDS`."""
    operations: dict[str, list[float]] = field(default_factory=dict)
    """Calls, bytes and seconds so far."""
    synchronizations: list[tuple[int, int, str, float, float]] = field(default_factory=list)
    """`Counters.synchronizations` of the last ticks."""
    ended: list[FinishedCall] = field(default_factory=list)
    """The latest calls that have ended; each is in several samples."""


@dataclass(frozen=True)
class RankTotals:
    """The counts of a rank so far."""

    time: float
    """Time of the measurement, in seconds of `time.monotonic`."""
    busy: float = 0.0
    """Seconds in user code."""
    messages: int = 0
    """Messages sent over MPI."""
    operations: Mapping[str, list[float]] = field(default_factory=dict)
    """By name: calls, bytes, and seconds, including those of the operation in progress."""
    sites: Sites = field(default_factory=dict)
