"""World and rank of this process, for the transport, and its messages per peer."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from workbench.mpi.counters import SIZES, size_bin

if TYPE_CHECKING:
    from mpi4py import MPI


# The MPI standard (section 9.1.2) guarantees tags only up to this one.
MAX_TAG = 32767


class Tags:
    """The tags of one receiver, each used by one frame at a time. Thread-safe."""

    def __init__(self, size: int = MAX_TAG + 1) -> None:
        self.size = size
        self._next = 0
        self.used: set[int] = set()
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """Return a free tag, the one with the longest time since its last use, or None if all are in use."""
        with self._lock:
            if len(self.used) == self.size:
                return None
            while self._next in self.used:
                self._next = (self._next + 1) % self.size
            tag = self._next
            self._next = (tag + 1) % self.size
            self.used.add(tag)
            return tag

    def give_back(self, tag: int) -> None:
        """Mark `tag` as free, after its frame was received."""
        with self._lock:
            self.used.remove(tag)


@dataclass(frozen=True)
class Membership:
    """A process's place in an MPI world."""

    communicator: MPI.Intracomm
    """The communicator of the transport."""
    rank: int
    """Rank in this communicator."""
    size: int
    """Number of members."""
    world: str
    """Unique name of the world."""
    tags: tuple[Tags, ...] = field(repr=False)
    """The tags of frames to each rank."""
    process: int = field(default_factory=os.getpid)
    """Id of the process that joined."""


# At most one.
_joined: list[Membership] = []


def current() -> Membership | None:
    """Return the membership of this process, or None."""
    # A process that is forked from a member is not a member, because it must not use MPI.
    return _joined[0] if _joined and _joined[0].process == os.getpid() else None


def join(communicator: MPI.Intracomm, world: str) -> None:
    """As `workbench.comm.join`."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            "The protocol mpi:// requires MPI_THREAD_MULTIPLE, which this MPI does not support. Use the protocol tcp."
        )
    if _joined:
        raise RuntimeError(f"This process has already joined the world {_joined[0].world!r}. Call leave() first.")
    size = communicator.Get_size()
    _joined.append(Membership(communicator, communicator.Get_rank(), size, world, tuple(Tags() for _ in range(size))))


def leave() -> None:
    """End the membership."""
    _joined.clear()


Way = Literal["mpi", "socket"]


class PeerTraffic:
    """Messages, bytes and seconds between this process and one peer on one way. Thread-safe."""

    __slots__ = ("_lock", "received", "sent", "sizes")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent = (0, 0, 0.0)
        self.received = (0, 0, 0.0)
        self.sizes = [0] * SIZES

    def add_sent(self, nbytes: int, seconds: float) -> None:
        """Count a message that was sent."""
        with self._lock:
            messages, total, time = self.sent
            self.sent = (messages + 1, total + nbytes, time + seconds)
            self.sizes[size_bin(nbytes)] += 1

    def add_received(self, nbytes: int, seconds: float) -> None:
        """Count a message that was received."""
        with self._lock:
            messages, total, time = self.received
            self.received = (messages + 1, total + nbytes, time + seconds)


_peers: dict[tuple[int | str, Way], PeerTraffic] = {}
_making = threading.Lock()


def peer_traffic(peer: int | str, way: Way) -> PeerTraffic:
    """Return the counters of a peer: a rank of the same world, or ``"outside"`` for all others together."""
    with _making:
        return _peers.setdefault((peer, way), PeerTraffic())


def message_sizes() -> list[int]:
    """As `workbench.comm.sizes`."""
    counts = [counters.sizes for (peer, _), counters in list(_peers.items()) if peer != "outside"]
    return [sum(bins) for bins in zip(*counts, strict=True)] or [0] * SIZES


def traffic_table() -> list[dict[str, Any]]:
    """As `workbench.comm.traffic`."""
    rows = []
    for (peer, way), counters in list(_peers.items()):
        row: dict[str, Any] = {"peer": peer, "way": way}
        for direction, counts in (("sent", counters.sent), ("received", counters.received)):
            row |= zip([f"{direction}_{unit}" for unit in ("messages", "bytes", "seconds")], counts, strict=True)
        rows.append(row)
    return rows
