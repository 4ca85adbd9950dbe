"""Who this process is in its MPI world, for the transport."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

# The MPI standard (section 9.1.2) promises tags up to this one, and no more.
MAX_TAG = 32767


class Tags:
    """The tags of one receiver: each is in use by one frame at a time.

    Notes
    -----
    Thread-safe.
    """

    def __init__(self, size: int = MAX_TAG + 1) -> None:
        self._size = size
        self._next = 0
        self._used: set[int] = set()
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """Return a tag that no frame on its way has, the one longest out of use first; None if there is none."""
        with self._lock:
            if len(self._used) == self._size:
                return None
            while self._next in self._used:
                self._next = (self._next + 1) % self._size
            tag = self._next
            self._next = (tag + 1) % self._size
            self._used.add(tag)
            return tag

    def give_back(self, tag: int) -> None:
        """Let `tag` be used again: its frame was received."""
        with self._lock:
            self._used.remove(tag)


@dataclass(frozen=True)
class Membership:
    """A process's place in an MPI world."""

    communicator: MPI.Intracomm
    """The transport's own communicator."""
    rank: int
    """Rank in it."""
    size: int
    """Number of members."""
    world: str
    """Name of the world, which no other world has."""
    tags: tuple[Tags, ...] = field(repr=False)
    """The tags of frames to each rank."""
    process: int = field(default_factory=os.getpid)
    """The process that joined."""


# At most one.
_joined: list[Membership] = []


def current() -> Membership | None:
    """Return the membership of this process, or None."""
    # A process that is forked from a member is none: MPI is not for it.
    return _joined[0] if _joined and _joined[0].process == os.getpid() else None


def join(communicator: MPI.Intracomm, world: str) -> None:
    """As `workbench.comm.join`."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            "the mpi:// protocol needs MPI_THREAD_MULTIPLE, which this MPI does not give: use protocol tcp"
        )
    if _joined:
        raise RuntimeError(f"this process has joined the world {_joined[0].world!r} already: call leave() first")
    size = communicator.Get_size()
    _joined.append(Membership(communicator, communicator.Get_rank(), size, world, tuple(Tags() for _ in range(size))))


def leave() -> None:
    """End the membership."""
    _joined.clear()
