"""Counts what one communicator sends, and who meets whom on it when."""

from __future__ import annotations

import time
from collections import Counter
from typing import Self

from mpi4py import MPI

from workbench.metrics.counters import KEYS, STEP, Counters
from workbench.metrics.schema import size_bin
from workbench.mpi.sending import Sent

_NOBODY = MPI.PROC_NULL
# What waits until somebody takes the message.
_BLOCKING = {"Send", "Ssend", "Rsend", "send", "ssend"}


class Counting:
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

    def offspring(self, made: MPI.Intracomm) -> Counting:
        """Return what counts for a communicator that was made from this one."""
        its = Counting.of(made, 0, self.counters)
        its.key = self._key(its.members)
        return its

    def twin(self) -> Counting:
        """Return what counts for a duplicate of this one."""
        return Counting(self.members, self.rank, self.neighbours, self._key(self.members), self.counters)

    def _key(self, members: tuple[int, ...]) -> int:
        # All ranks that have a communicator of these members have made the same number of such from this one.
        self._made[members] += 1
        return hash((self.key, self._made[members], members)) & KEYS

    def sent(self, operation: str, sent: Sent, entered: float) -> None:
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
            self.counters.met(self._pair(self.rank, rank), number, operation, entered, left)

    def to_others(self, operation: str) -> list[int]:
        """Return where to count what an operation sends to every other rank alike, see `Counters.alike`."""
        each = self._alike.get(operation)
        if each is None:
            each = self._alike[operation] = self.counters.alike[operation, self.others]
        return each

    def _to(self, rank: int, nbytes: int, counts: list[float]) -> None:
        if rank != _NOBODY:
            pair = self._pairs[self.members[rank]]
            pair[0] += nbytes
            pair[1] += 1
            self._sizes[size_bin(nbytes)] += 1
            counts[1] += nbytes

    def taken(self, source: int, operation: str = "", entered: float | None = None) -> None:
        """Count a message from a rank; of one that was waited for, since when."""
        taken = self._taken
        if taken is None or source == _NOBODY:
            return
        if source == MPI.ANY_SOURCE:
            self._taken = None
            return
        taken[source] = number = taken[source] + STEP
        if entered is not None and not number & self.counters.mask and source != self.rank:
            self.counters.met(self._pair(source, self.rank), number, operation, entered, time.monotonic())

    def _pair(self, source: int, target: int) -> int:
        return hash((self.key, source, target)) & KEYS

    def met(self, operation: str, entered: float) -> None:
        """Note that a collective operation is over, which was entered at a time of `time.monotonic`."""
        if self.size > 1:
            self.counters.met(self.key, self.number, operation, entered, time.monotonic())
