"""Counters of sent and received messages, per peer and way."""

from __future__ import annotations

import threading
from typing import Any, Literal

from workbench.mpi.size_bins import SIZES, size_bin

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


def sizes() -> list[int]:
    """As `workbench.comm.sizes`."""
    counts = [counters.sizes for (peer, _), counters in list(_peers.items()) if peer != "outside"]
    return [sum(bins) for bins in zip(*counts, strict=True)] or [0] * SIZES


def table() -> list[dict[str, Any]]:
    """As `workbench.comm.traffic`."""
    rows = []
    for (peer, way), counters in list(_peers.items()):
        row: dict[str, Any] = {"peer": peer, "way": way}
        for direction, counts in (("sent", counters.sent), ("received", counters.received)):
            row |= zip([f"{direction}_{unit}" for unit in ("messages", "bytes", "seconds")], counts, strict=True)
        rows.append(row)
    return rows
