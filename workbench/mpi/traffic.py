"""Counts the traffic of a communicator, and the times at which ranks synchronize.

Rules define what each operation on buffers sends, and to which ranks of the communicator.

The rules do not depend on the way in which the MPI library moves the bytes. Only the sender counts:

- A message from rank to rank: the bytes to the destination, also if that is the sender; nothing to ``PROC_NULL``.
- ``Bcast``, ``Scatter``: the root sends a part to each other rank. ``Gather``, ``Reduce``: each other rank sends a
  contribution to the root.
- ``Allgather``, ``Allreduce``: each rank sends a contribution to every other rank. ``Alltoall``, ``Reduce_scatter``:
  each rank sends every other rank the block for that rank.
- ``Scan``, ``Exscan``: each rank sends a contribution to every later rank.
- Operations of neighbors: each rank sends to each neighbor, several times if the neighbor occurs several times.
- A rank's own block in a collective operation does not count. ``Barrier`` sends nothing.
- A block of zero bytes is a message too.

Bytes are those of the items, without gaps that a type may have. For objects they are those of the pickles, without
the few bytes of their lengths.
"""
# ruff: noqa: ARG001  (arguments are mpi4py's)

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Self

from mpi4py import MPI

from workbench.mpi.context import everyone
from workbench.mpi.counters import COLLECTIVE, KEYS, MAKERS, NEIGHBORS, STEP, Counters, size_bin
from workbench.mpi.message_size import item_bytes, nbytes, typed_nbytes, vector_nbytes

Destinations = int | tuple[int, int] | list[tuple[int, int]]
"""For an operation of all ranks: the bytes to every other rank, or ranks with the bytes to each of them. For a message
from rank to rank: the destination and the bytes. `MPI.PROC_NULL` gets nothing."""

Rule = Callable[..., Destinations]
"""Returns what this rank sends, from the counter of the communicator and the arguments of the operation."""

NOTHING: Destinations = []

_SENDING = ("send", "bsend", "ssend", "rsend", "sendrecv", "sendrecv_replace")
_COLLECTIVE = {name.lower() for name in (*COLLECTIVE, *NEIGHBORS, *MAKERS, "Agree", "Shrink")}


def traffic_rule(operation: str) -> Rule | None:
    """Return the rule of a blocking, non-blocking or persistent operation; None if it sends no buffers."""
    return _RULES.get(_plain(operation))


def is_collective(operation: str) -> bool:
    """Return whether an operation is collective, so that all ranks call it in the same order."""
    return _plain(operation).lower() in _COLLECTIVE


def _plain(operation: str) -> str:
    return (operation[1:].capitalize() if operation[0] == "I" else operation).removesuffix("_init")


def source_of(operation: str) -> Callable[..., int] | None:
    """Return the function that gets the source from the arguments of a non-blocking or persistent operation."""
    return _SOURCES.get(operation.lower().removeprefix("i").removesuffix("_init"))


def is_message(operation: str) -> bool:
    """Return whether a non-persistent operation sends a message to one rank, the second argument."""
    return operation.lower().removeprefix("i") in _SENDING


def destination(args: tuple[Any, ...], options: dict[str, Any]) -> int:
    """Return the rank to which an operation of `is_message` sends."""
    dest: int = args[1] if len(args) > 1 else options.get("dest", MPI.PROC_NULL)
    return dest


def to_each_other(counter: TrafficCounter, sizes: Sequence[int]) -> Destinations:
    """Return the destinations for the bytes of each rank, without the rank itself."""
    return [(rank, size) for rank, size in enumerate(sizes) if rank != counter.rank]


def to_later(counter: TrafficCounter, size: int) -> Destinations:
    """Return the destinations for `size` bytes to each later rank."""
    return [(rank, size) for rank in range(counter.rank + 1, counter.size)]


def to_neighbors(counter: TrafficCounter, sizes: Sequence[int]) -> Destinations:
    """Return the destinations for the bytes of each neighbor, without the rank itself."""
    return [pair for pair in zip(counter.neighbors, sizes, strict=False) if pair[0] != counter.rank]


def _in_place(buffer: Any) -> bool:
    # mpi4py treats None as in place.
    return buffer is None or buffer is MPI.IN_PLACE


# The arguments have mpi4py's names; * and ** take the unused ones.


def _send(_counter: TrafficCounter, buf: Any, dest: int, *_: Any, **__: Any) -> Destinations:
    return dest, nbytes(buf)


def _sendrecv(_counter: TrafficCounter, sendbuf: Any, dest: int, *_: Any, **__: Any) -> Destinations:
    return dest, nbytes(sendbuf)


def _psend(_counter: TrafficCounter, buf: Any, partitions: int, dest: int, *_: Any, **__: Any) -> Destinations:
    return dest, nbytes(buf, partitions) * partitions


def _bcast(counter: TrafficCounter, buf: Any, root: int = 0, *_: Any, **__: Any) -> Destinations:
    return nbytes(buf) if counter.rank == root else NOTHING


def _gather(counter: TrafficCounter, sendbuf: Any, recvbuf: Any, root: int = 0, *_: Any, **__: Any) -> Destinations:
    return [(root, nbytes(sendbuf))] if counter.rank != root else NOTHING


def _reduce(
    counter: TrafficCounter, sendbuf: Any, recvbuf: Any, op: Any = None, root: int = 0, *_: Any, **__: Any
) -> Destinations:
    return [(root, nbytes(sendbuf))] if counter.rank != root else NOTHING


def _scatter(counter: TrafficCounter, sendbuf: Any, recvbuf: Any, root: int = 0, *_: Any, **__: Any) -> Destinations:
    return nbytes(sendbuf, counter.size) if counter.rank == root else NOTHING


def _scatterv(counter: TrafficCounter, sendbuf: Any, recvbuf: Any, root: int = 0, *_: Any, **__: Any) -> Destinations:
    return to_each_other(counter, vector_nbytes(sendbuf, counter.size)) if counter.rank == root else NOTHING


def _allgather(counter: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return nbytes(recvbuf, counter.size) if _in_place(sendbuf) else nbytes(sendbuf)


def _allgatherv(counter: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return vector_nbytes(recvbuf, counter.size)[counter.rank] if _in_place(sendbuf) else nbytes(sendbuf)


def _allreduce(_counter: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return nbytes(recvbuf)


def _alltoall(counter: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return nbytes(recvbuf if _in_place(sendbuf) else sendbuf, counter.size)


def _alltoallv(counter: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return to_each_other(counter, vector_nbytes(recvbuf if _in_place(sendbuf) else sendbuf, counter.size))


def _alltoallw(counter: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return to_each_other(counter, typed_nbytes(recvbuf if _in_place(sendbuf) else sendbuf, counter.size))


def _reduce_scatter_block(counter: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return nbytes(recvbuf, counter.size if _in_place(sendbuf) else 1)


def reduce_scatter(
    counter: TrafficCounter, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, *_: Any, **__: Any
) -> Destinations:
    """Return what `Reduce_scatter` sends to each other rank, or nothing while the counts are unknown."""
    if recvcounts is None:
        return NOTHING
    size = item_bytes(recvbuf)
    return to_each_other(counter, [int(count) * size for count in recvcounts])


def _scan(counter: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return to_later(counter, nbytes(recvbuf))


def _neighbor_allgather(counter: TrafficCounter, sendbuf: Any, *_: Any, **__: Any) -> Destinations:
    return to_neighbors(counter, [nbytes(sendbuf)] * len(counter.neighbors))


def _neighbor_alltoall(counter: TrafficCounter, sendbuf: Any, *_: Any, **__: Any) -> Destinations:
    number = len(counter.neighbors)
    return to_neighbors(counter, [nbytes(sendbuf, number or 1)] * number)


def _neighbor_alltoallv(counter: TrafficCounter, sendbuf: Any, *_: Any, **__: Any) -> Destinations:
    return to_neighbors(counter, vector_nbytes(sendbuf, len(counter.neighbors)))


def _neighbor_alltoallw(counter: TrafficCounter, sendbuf: Any, *_: Any, **__: Any) -> Destinations:
    return to_neighbors(counter, typed_nbytes(sendbuf, len(counter.neighbors)))


def _recv(buf: Any = None, source: int = MPI.ANY_SOURCE, *_: Any, **__: Any) -> int:
    return source


def _precv(buf: Any, partitions: int, source: int = MPI.ANY_SOURCE, *_: Any, **__: Any) -> int:
    return source


def _sendrecv_source(
    sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = MPI.ANY_SOURCE, *_: Any, **__: Any
) -> int:
    return source


def _replace_source(buf: Any, dest: int, sendtag: int = 0, source: int = MPI.ANY_SOURCE, *_: Any, **__: Any) -> int:
    return source


_SOURCES: dict[str, Callable[..., int]] = {
    "recv": _recv,
    "precv": _precv,
    "sendrecv": _sendrecv_source,
    "sendrecv_replace": _replace_source,
}

_RULES: dict[str, Rule] = {
    **dict.fromkeys(("Send", "Bsend", "Ssend", "Rsend", "Sendrecv_replace"), _send),
    "Sendrecv": _sendrecv,
    "Psend": _psend,
    "Bcast": _bcast,
    "Gather": _gather,
    "Gatherv": _gather,
    "Scatter": _scatter,
    "Scatterv": _scatterv,
    "Allgather": _allgather,
    "Allgatherv": _allgatherv,
    "Alltoall": _alltoall,
    "Alltoallv": _alltoallv,
    "Alltoallw": _alltoallw,
    "Reduce": _reduce,
    "Allreduce": _allreduce,
    "Reduce_scatter_block": _reduce_scatter_block,
    "Reduce_scatter": reduce_scatter,
    "Scan": _scan,
    "Exscan": _scan,
    "Neighbor_allgather": _neighbor_allgather,
    "Neighbor_allgatherv": _neighbor_allgather,
    "Neighbor_alltoall": _neighbor_alltoall,
    "Neighbor_alltoallv": _neighbor_alltoallv,
    "Neighbor_alltoallw": _neighbor_alltoallw,
}


_PROC_NULL = MPI.PROC_NULL
# Operations that wait until the message is received.
_BLOCKING = {"Send", "Ssend", "Rsend", "send", "ssend"}


class TrafficCounter:
    """Counts the traffic of one communicator.

    Parameters
    ----------
    members
        The ranks of the world in the communicator, in the order of the communicator.
    rank
        This rank in the communicator.
    neighbors
        Ranks to which this rank sends as neighbors in a topology.
    key
        Identifies the communicator, with the same value on all ranks.
    counters
        The counters to use.

    Attributes
    ----------
    number : int
        Number of collective operations so far, times `STEP`, so the same on all ranks at the same point of the program.
        The code that begins an operation increases it.

    Notes
    -----
    Sender and receiver of a message synchronize too, so each numbers the messages between the two. If messages are not
    received in the order in which they were sent, which is possible with several tags, two messages are confused.
    """

    __slots__ = (
        "_derived", "_messages_from", "_messages_to", "_operations", "_pairs", "_sizes", "_uniform", "counters", "key",
        "members", "neighbors", "number", "others", "rank", "size",
    )  # fmt: skip

    def __init__(
        self, members: tuple[int, ...], rank: int, neighbors: tuple[int, ...], key: int, counters: Counters
    ) -> None:
        self.members, self.rank, self.neighbors, self.key = members, rank, neighbors, key
        self.size = len(members)
        self.others = members[:rank] + members[rank + 1 :]
        self.number = 0
        # Messages to and from each rank, times `STEP`; None after a receive whose source is not known.
        self._messages_to = [0] * self.size
        self._messages_from: list[int] | None = [0] * self.size
        self._derived: Counter[tuple[int, ...]] = Counter()
        self.use(counters)

    @classmethod
    def of(cls, comm: MPI.Intracomm, key: int, counters: Counters) -> Self:
        """Return the counter of a communicator; a local operation."""
        group, world = comm.Get_group(), everyone().Get_group()
        members = tuple(group.Translate_ranks(group=world))
        group.Free()
        world.Free()
        neighbors = tuple(comm.outedges) if isinstance(comm, MPI.Topocomm) else ()
        return cls(members, comm.rank, neighbors, key, counters)

    def use(self, counters: Counters) -> None:
        """Use other counters from now on."""
        self.counters = counters
        self._uniform: dict[str, list[int]] = {}
        self._operations, self._sizes, self._pairs = counters.operations, counters.sizes, counters.sent

    def for_derived(self, comm: MPI.Intracomm) -> TrafficCounter:
        """Return the counter of a communicator that was derived from this one."""
        counter = TrafficCounter.of(comm, 0, self.counters)
        counter.key = self._key(counter.members)
        return counter

    def for_duplicate(self) -> TrafficCounter:
        """Return the counter of a duplicate of this communicator."""
        return TrafficCounter(self.members, self.rank, self.neighbors, self._key(self.members), self.counters)

    def _key(self, members: tuple[int, ...]) -> int:
        # All these members have derived the same number of communicators with the same members from this one.
        self._derived[members] += 1
        return hash((self.key, self._derived[members], members)) & KEYS

    def sent(self, operation: str, sent: Destinations, entered: float) -> None:
        """Count the traffic of an operation; `entered` is a time of `time.monotonic`."""
        if isinstance(sent, int):
            uniform = self.to_others(operation)
            uniform[0] += sent
            uniform[size_bin(sent) + 1] += 1
            return
        counts = self._operations[operation]
        if isinstance(sent, list):
            for rank, nbytes in sent:
                self._to(rank, nbytes, counts)
        else:
            self.message(operation, *sent, entered)

    def message(self, operation: str, rank: int, nbytes: int, entered: float) -> None:
        """Count a message to a rank; `entered` is as for `sent`."""
        if rank == _PROC_NULL:
            return
        # This is `_to` inlined, because small messages take a microsecond.
        try:
            pair = self._pairs[self.members[rank]]
        except TypeError:  # mpi4py also takes 1.0, the result of a division
            rank = int(rank)
            pair = self._pairs[self.members[rank]]
        pair[0] += nbytes
        pair[1] += 1
        self._sizes[size_bin(nbytes)] += 1
        self._operations[operation][1] += nbytes
        self._messages_to[rank] = number = self._messages_to[rank] + STEP
        if not number & self.counters.mask and rank != self.rank:
            # An operation that does not wait has sent the message at its entry.
            left = time.monotonic() if operation in _BLOCKING else entered
            self.counters.synchronized(self._pair(self.rank, rank), number, operation, entered, left)

    def to_others(self, operation: str) -> list[int]:
        """Return the counts of equal traffic of an operation to every other rank, see `Counters.uniform`."""
        counts = self._uniform.get(operation)
        if counts is None:
            counts = self._uniform[operation] = self.counters.uniform[operation, self.others]
        return counts

    def _to(self, rank: int, nbytes: int, counts: list[float]) -> None:
        if rank != _PROC_NULL:
            pair = self._pairs[self.members[rank]]
            pair[0] += nbytes
            pair[1] += 1
            self._sizes[size_bin(nbytes)] += 1
            counts[1] += nbytes

    def message_received(self, source: int, operation: str = "", entered: float | None = None) -> None:
        """Count a message from a rank; `entered` is the time at which the wait for it began, if any."""
        received = self._messages_from
        if received is None or source == _PROC_NULL:
            return
        if source == MPI.ANY_SOURCE:
            self._messages_from = None
            return
        try:
            number = received[source] + STEP
        except TypeError:  # as in `message`
            source = int(source)
            number = received[source] + STEP
        received[source] = number
        if entered is not None and not number & self.counters.mask and source != self.rank:
            self.counters.synchronized(self._pair(source, self.rank), number, operation, entered, time.monotonic())

    def _pair(self, source: int, target: int) -> int:
        return hash((self.key, source, target)) & KEYS

    def synchronized(self, operation: str, entered: float) -> None:
        """Record the end of a collective operation; `entered` is as for `sent`."""
        if self.size > 1:
            self.counters.synchronized(self.key, self.number, operation, entered, time.monotonic())
