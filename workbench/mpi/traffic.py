"""Counts what a communicator sends, and who meets whom on it when.

Rules say what each operation on buffers sends, and to which ranks of its communicator.

It does not depend on how the MPI library moves the bytes. What is sent is counted at the sender alone:

- A message from rank to rank: its bytes to its destination, also where that is the sender; none to ``PROC_NULL``.
- ``Bcast``, ``Scatter``: the root to each other rank what that one gets. ``Gather``, ``Reduce``: each other rank to the
  root what it contributes.
- ``Allgather``, ``Allreduce``: each rank to every other what it contributes. ``Alltoall``, ``Reduce_scatter``: the
  block of that one.
- ``Scan``, ``Exscan``: each rank to every later one what it contributes.
- Operations of neighbours: each rank to each that it has as a neighbour, once for each time that it has.
- Collective operations count no rank's own block. ``Barrier`` sends nothing.
- A block of no bytes is a message too.

Bytes are those of the items, without the gaps that a type may have between them. Of objects they are those of their
pickles; the few that tell how long these are do not count.
"""
# ruff: noqa: ARG001  (arguments are mpi4py's)

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Self

from mpi4py import MPI

from workbench.mpi.counters import KEYS, STEP, Counters
from workbench.mpi.message_size import item_bytes, nbytes, typed_nbytes, vector_nbytes
from workbench.mpi.operation_names import COLLECTIVE, MAKERS, NEIGHBOURS
from workbench.mpi.size_bins import size_bin

Destinations = int | tuple[int, int] | list[tuple[int, int]]
"""Of an operation of all ranks: the bytes that go to every other one, or ranks and the bytes that go to each. Of a
message from rank to rank: its destination, and its bytes. `MPI.PROC_NULL` gets nothing."""

Rule = Callable[..., Destinations]
"""Returns of the communicator, and of the arguments of an operation on it, what this rank sends."""

NOTHING: Destinations = []

_SENDING = ("send", "bsend", "ssend", "rsend", "sendrecv", "sendrecv_replace")
_COLLECTIVE = {name.lower() for name in (*COLLECTIVE, *NEIGHBOURS, *MAKERS, "Agree", "Shrink")}


def traffic_rule(operation: str) -> Rule | None:
    """Return the rule of an operation, also a non-blocking or persistent one; None where buffers send nothing."""
    return _RULES.get(_plain(operation))


def is_collective(operation: str) -> bool:
    """Tell whether all ranks of a communicator take part in an operation, in the same order as in all such."""
    return _plain(operation).lower() in _COLLECTIVE


def _plain(operation: str) -> str:
    return (operation[1:].capitalize() if operation[0] == "I" else operation).removesuffix("_init")


def source_of(operation: str) -> Callable[..., int] | None:
    """Return what tells, of the arguments of a non-blocking or persistent operation, from whom it receives."""
    return _SOURCES.get(operation.lower().removeprefix("i").removesuffix("_init"))


def is_message(operation: str) -> bool:
    """Tell whether an operation sends a message to one rank, which is its second argument; not a persistent one."""
    return operation.lower().removeprefix("i") in _SENDING


def destination(args: tuple[Any, ...], options: dict[str, Any]) -> int:
    """Return to whom such an operation sends."""
    found: int = args[1] if len(args) > 1 else options.get("dest", MPI.PROC_NULL)
    return found


def to_each_other(its: TrafficCounter, sizes: Sequence[int]) -> Destinations:
    """Return what goes to every other rank, of the bytes for all ranks in their order."""
    return [(rank, size) for rank, size in enumerate(sizes) if rank != its.rank]


def to_later(its: TrafficCounter, size: int) -> Destinations:
    """Return so many bytes for each rank that comes later."""
    return [(rank, size) for rank in range(its.rank + 1, its.size)]


def to_neighbours(its: TrafficCounter, sizes: Sequence[int]) -> Destinations:
    """Return what goes to the neighbours, of the bytes for all of them in their order."""
    return [pair for pair in zip(its.neighbours, sizes, strict=False) if pair[0] != its.rank]


def _in_place(buffer: Any) -> bool:
    # for mpi4py nothing is in place, too
    return buffer is None or buffer is MPI.IN_PLACE


# As mpi4py names the arguments; what does not matter is left to * and **.


def _send(_its: TrafficCounter, buf: Any, dest: int, *_: Any, **__: Any) -> Destinations:
    return dest, nbytes(buf)


def _sendrecv(_its: TrafficCounter, sendbuf: Any, dest: int, *_: Any, **__: Any) -> Destinations:
    return dest, nbytes(sendbuf)


def _psend(_its: TrafficCounter, buf: Any, partitions: int, dest: int, *_: Any, **__: Any) -> Destinations:
    return dest, nbytes(buf, partitions) * partitions


def _bcast(its: TrafficCounter, buf: Any, root: int = 0, *_: Any, **__: Any) -> Destinations:
    return nbytes(buf) if its.rank == root else NOTHING


def _gather(its: TrafficCounter, sendbuf: Any, recvbuf: Any, root: int = 0, *_: Any, **__: Any) -> Destinations:
    return [(root, nbytes(sendbuf))] if its.rank != root else NOTHING


def _reduce(
    its: TrafficCounter, sendbuf: Any, recvbuf: Any, op: Any = None, root: int = 0, *_: Any, **__: Any
) -> Destinations:
    return [(root, nbytes(sendbuf))] if its.rank != root else NOTHING


def _scatter(its: TrafficCounter, sendbuf: Any, recvbuf: Any, root: int = 0, *_: Any, **__: Any) -> Destinations:
    return nbytes(sendbuf, its.size) if its.rank == root else NOTHING


def _scatterv(its: TrafficCounter, sendbuf: Any, recvbuf: Any, root: int = 0, *_: Any, **__: Any) -> Destinations:
    return to_each_other(its, vector_nbytes(sendbuf, its.size)) if its.rank == root else NOTHING


def _allgather(its: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return nbytes(recvbuf, its.size) if _in_place(sendbuf) else nbytes(sendbuf)


def _allgatherv(its: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return vector_nbytes(recvbuf, its.size)[its.rank] if _in_place(sendbuf) else nbytes(sendbuf)


def _allreduce(_its: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return nbytes(recvbuf)


def _alltoall(its: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return nbytes(recvbuf if _in_place(sendbuf) else sendbuf, its.size)


def _alltoallv(its: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return to_each_other(its, vector_nbytes(recvbuf if _in_place(sendbuf) else sendbuf, its.size))


def _alltoallw(its: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return to_each_other(its, typed_nbytes(recvbuf if _in_place(sendbuf) else sendbuf, its.size))


def _reduce_scatter_block(its: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return nbytes(recvbuf, its.size if _in_place(sendbuf) else 1)


def reduce_scatter(
    its: TrafficCounter, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, *_: Any, **__: Any
) -> Destinations:
    """Return what `Reduce_scatter` sends to each other rank; nothing as long as the counts are not known."""
    if recvcounts is None:
        return NOTHING
    size = item_bytes(recvbuf)
    return to_each_other(its, [int(count) * size for count in recvcounts])


def _scan(its: TrafficCounter, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Destinations:
    return to_later(its, nbytes(recvbuf))


def _neighbor_allgather(its: TrafficCounter, sendbuf: Any, *_: Any, **__: Any) -> Destinations:
    return to_neighbours(its, [nbytes(sendbuf)] * len(its.neighbours))


def _neighbor_alltoall(its: TrafficCounter, sendbuf: Any, *_: Any, **__: Any) -> Destinations:
    number = len(its.neighbours)
    return to_neighbours(its, [nbytes(sendbuf, number or 1)] * number)


def _neighbor_alltoallv(its: TrafficCounter, sendbuf: Any, *_: Any, **__: Any) -> Destinations:
    return to_neighbours(its, vector_nbytes(sendbuf, len(its.neighbours)))


def _neighbor_alltoallw(its: TrafficCounter, sendbuf: Any, *_: Any, **__: Any) -> Destinations:
    return to_neighbours(its, typed_nbytes(sendbuf, len(its.neighbours)))


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


_NOBODY = MPI.PROC_NULL
# What waits until somebody takes the message.
_BLOCKING = {"Send", "Ssend", "Rsend", "send", "ssend"}


class TrafficCounter:
    """Counts for one communicator.

    Parameters
    ----------
    members
        The ranks of the world that belong to it, in its order.
    rank
        This one's in it.
    neighbours
        Ranks of it that this one sends to as neighbours, where it has a topology.
    key
        Tells it from all other communicators, the same on all its ranks.
    counters
        Where to count.

    Attributes
    ----------
    number : int
        Collective operations so far, times `STEP`: the same on all ranks, at the same place of the program. Who begins
        one adds it.

    Notes
    -----
    Those who send and receive a message meet, too: each numbers the messages between the two. Where messages are not
    received in the order in which they were sent, as may be with several tags, one is taken for another.
    """

    __slots__ = (
        "_alike", "_given", "_made", "_operations", "_pairs", "_sizes", "_taken", "counters", "key", "members",
        "neighbours", "number", "others", "rank", "size",
    )  # fmt: skip

    def __init__(
        self, members: tuple[int, ...], rank: int, neighbours: tuple[int, ...], key: int, counters: Counters
    ) -> None:
        self.members, self.rank, self.neighbours, self.key = members, rank, neighbours, key
        self.size = len(members)
        self.others = members[:rank] + members[rank + 1 :]
        self.number = 0
        # Messages to and from each rank, times `STEP`; None once there was one of which nobody knows whose it will be.
        self._given = [0] * self.size
        self._taken: list[int] | None = [0] * self.size
        self._made: Counter[tuple[int, ...]] = Counter()
        self.use(counters)

    @classmethod
    def of(cls, comm: MPI.Intracomm, key: int, counters: Counters) -> Self:
        """Return what counts for a communicator; a local operation."""
        group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
        members = tuple(group.Translate_ranks(group=world))
        group.Free()
        world.Free()
        neighbours = tuple(comm.outedges) if isinstance(comm, MPI.Topocomm) else ()
        return cls(members, comm.rank, neighbours, key, counters)

    def use(self, counters: Counters) -> None:
        """Count there from now on."""
        self.counters = counters
        self._alike: dict[str, list[int]] = {}
        self._operations, self._sizes, self._pairs = counters.operations, counters.sizes, counters.sent

    def for_derived(self, made: MPI.Intracomm) -> TrafficCounter:
        """Return what counts for a communicator that was made from this one."""
        its = TrafficCounter.of(made, 0, self.counters)
        its.key = self._key(its.members)
        return its

    def for_duplicate(self) -> TrafficCounter:
        """Return what counts for a duplicate of this one."""
        return TrafficCounter(self.members, self.rank, self.neighbours, self._key(self.members), self.counters)

    def _key(self, members: tuple[int, ...]) -> int:
        # All ranks that have a communicator of these members have made the same number of such from this one.
        self._made[members] += 1
        return hash((self.key, self._made[members], members)) & KEYS

    def sent(self, operation: str, sent: Destinations, entered: float) -> None:
        """Count what an operation has sent that was entered at a time of `time.monotonic`."""
        if isinstance(sent, int):
            each = self.to_others(operation)
            each[0] += sent
            each[size_bin(sent) + 1] += 1
            return
        counts = self._operations[operation]
        if isinstance(sent, list):
            for rank, nbytes in sent:
                self._to(rank, nbytes, counts)
        else:
            self.message(operation, *sent, entered)

    def message(self, operation: str, rank: int, nbytes: int, entered: float) -> None:
        """Count a message to a rank, of an operation that was entered at a time of `time.monotonic`."""
        if rank == _NOBODY:
            return
        # as `_to`, but for a call less: small messages take a microsecond
        pair = self._pairs[self.members[rank]]
        pair[0] += nbytes
        pair[1] += 1
        self._sizes[size_bin(nbytes)] += 1
        self._operations[operation][1] += nbytes
        self._given[rank] = number = self._given[rank] + STEP
        if not number & self.counters.mask and rank != self.rank:
            # what does not wait for the other tells when the message was there
            left = time.monotonic() if operation in _BLOCKING else entered
            self.counters.synchronized(self._pair(self.rank, rank), number, operation, entered, left)

    def to_others(self, operation: str) -> list[int]:
        """Return where to count what an operation sends to every other rank alike, see `Counters.uniform`."""
        each = self._alike.get(operation)
        if each is None:
            each = self._alike[operation] = self.counters.uniform[operation, self.others]
        return each

    def _to(self, rank: int, nbytes: int, counts: list[float]) -> None:
        if rank != _NOBODY:
            pair = self._pairs[self.members[rank]]
            pair[0] += nbytes
            pair[1] += 1
            self._sizes[size_bin(nbytes)] += 1
            counts[1] += nbytes

    def message_received(self, source: int, operation: str = "", entered: float | None = None) -> None:
        """Count a message from a rank; of one that was waited for, since when."""
        taken = self._taken
        if taken is None or source == _NOBODY:
            return
        if source == MPI.ANY_SOURCE:
            self._taken = None
            return
        taken[source] = number = taken[source] + STEP
        if entered is not None and not number & self.counters.mask and source != self.rank:
            self.counters.synchronized(self._pair(source, self.rank), number, operation, entered, time.monotonic())

    def _pair(self, source: int, target: int) -> int:
        return hash((self.key, source, target)) & KEYS

    def synchronised(self, operation: str, entered: float) -> None:
        """Note that a collective operation is over, which was entered at a time of `time.monotonic`."""
        if self.size > 1:
            self.counters.synchronized(self.key, self.number, operation, entered, time.monotonic())
