"""Counters of the traffic and the MPI time of a rank, for the communicators of SPMD calls and cells."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

SIZES = 48
"""Bins of message sizes: bin 0 is for empty messages, bin b for 2**(b - 1) to 2**b - 1 bytes, the last for the rest."""

SIZE_BEGINS = (0, *(1 << (number - 1) for number in range(1, SIZES)))
"""The fewest bytes of the messages of each bin."""


def size_bin(nbytes: int) -> int:
    """Return the bin of a message of `nbytes` bytes."""
    # min() would be slower, and this function runs for each message.
    return number if (number := nbytes.bit_length()) < SIZES else SIZES - 1


SYNCHRONIZATIONS_KEPT = 32
"""Synchronizations that are kept between two samples, at most."""

KEYS = 2**63 - 1
"""The largest key of a communicator, or of a pair of its ranks: messages hold keys as int64."""

STEP = 648_055
"""Difference between the numbers of two synchronizations: 2**20 divided by the golden ratio, which spreads their
remainders evenly over any repeating program (Knuth, TAOCP 3, section 6.4). With 1, a sample of every second
synchronization would contain only one of the two operations of a loop."""

# Bits of a number, or of a key, that decide whether a synchronization is in the sample, from the highest bit down.
_ALL, _HIGHEST = (1 << 20) - 1, 1 << 19

Sites = dict[tuple[str, str], list[float]]
"""By operation and call site in the code of the user: ``[calls, bytes, seconds]``."""


class Counters:
    """Counts of one call or cell on this rank; only the thread that runs the call writes them, other threads may read.

    Parameters
    ----------
    limit
        Synchronizations that are kept between two samples, at most.
    locate
        Returns the call site of the current operation; None: call sites are not counted.

    Attributes
    ----------
    operations : dict of str to list
        By name: ``[calls, bytes, seconds]``.
    sent : dict of int to list
        By target rank of the world: ``[bytes, messages]``.
    uniform : dict of (str, tuple) to list
        Equal traffic of an operation to several ranks of the world, by the operation and these ranks: bytes to each
        rank, and then messages to each rank by size. The other counts do not contain it before `flush_uniform`.
    sizes : list of int
        Messages by size, see `workbench.mpi.counters.size_bin`.
    synchronizations : list of tuple
        ``(key, number, operation, entered, left)``: the times, in seconds of `time.monotonic`, at which this rank
        entered and left an operation; the other ranks in the operation use the same key and number. The list is a
        sample: the numbers, multiples of `STEP`, without a bit of `mask`. When the list is full, `mask` gets
        another bit, so ranks with different masks have the numbers of the larger mask in common.
    """

    __slots__ = (
        "_bytes_at_sites",
        "_limit",
        "locate",
        "mask",
        "operations",
        "sent",
        "sites",
        "sizes",
        "synchronizations",
        "uniform",
    )

    def __init__(self, limit: int = SYNCHRONIZATIONS_KEPT, locate: Callable[[], str] | None = None) -> None:
        self._limit, self.locate = limit, locate
        self.sites: Sites = {}
        # Bytes of each operation that `sites` contains already.
        self._bytes_at_sites: dict[str, float] = {}
        self.operations: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0])
        self.sent: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        self.uniform: defaultdict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(lambda: [0] * (SIZES + 1))
        self.sizes = [0] * SIZES
        self.synchronizations: list[tuple[int, int, str, float, float]] = []
        self.mask = 0

    def called(self, operation: str, seconds: float) -> None:
        """Count a call of an operation, and its seconds."""
        counts = self.operations[operation]
        counts[0] += 1
        counts[2] += seconds
        self.count_call_site(operation, seconds)

    def count_call_site(self, operation: str, seconds: float) -> None:
        """Count a call, which `operations` contains already, at its call site."""
        if self.locate is None:
            return
        site = self.sites.setdefault((operation, self.locate()), [0, 0, 0.0])
        site[0] += 1
        uniform = sum(counts[0] * len(ranks) for (name, ranks), counts in self.uniform.items() if name == operation)
        sent = self.operations[operation][1] + uniform
        site[1] += sent - self._bytes_at_sites.get(operation, 0)
        self._bytes_at_sites[operation] = sent
        site[2] += seconds

    def flush_uniform(self) -> Self:
        """Add `uniform` to the other counts, and return the counters; for the thread of the call."""
        _add_uniform(self, self.uniform)
        for counts in self.uniform.values():
            counts[:] = [0] * len(counts)
        return self

    def synchronized(self, key: int, number: int, operation: str, entered: float, left: float) -> None:
        """Keep a synchronization if its number has no bit of `mask`."""
        sample = self.synchronizations
        if len(sample) >= self._limit:
            self.halve_sampling()
            sample[:] = [entry for entry in sample if not entry[1] & self.mask]
        if not number & self.mask:
            sample.append((key, number, operation, entered, left))

    def take_synchronizations(self) -> list[tuple[int, int, str, float, float]]:
        """Return and remove the synchronizations."""
        taken, self.synchronizations = self.synchronizations, []
        if len(taken) < self._limit // 4:
            self.mask = self.mask << 1 & _ALL
        return taken

    def halve_sampling(self) -> None:
        """Sample half as many synchronizations."""
        self.mask = self.mask >> 1 | _HIGHEST


class Meter:
    """The counters of a rank: those of running calls, and the sums of all finished calls."""

    def __init__(self, limit: int = SYNCHRONIZATIONS_KEPT) -> None:
        self._limit = limit
        self._running: list[Counters] = []
        self._lock = threading.Lock()
        self.total = Counters(limit)
        """Sums of all finished calls."""
        self.locate: Callable[[], str] | None = None
        """`Counters.locate` of calls that begin."""

    def open(self) -> Counters:
        """Return counters for a call that begins."""
        counters = Counters(self._limit, self.locate)
        with self._lock:
            self._running.append(counters)
        return counters

    def close(self, counters: Counters) -> None:
        """Add the counters of a call that has ended to the total."""
        with self._lock:
            if counters in self._running:
                self._running.remove(counters)
                counters.flush_uniform()
                _add(self.total, counters)
                self.total.synchronizations += counters.take_synchronizations()
                self._thin_out()

    def _thin_out(self) -> None:
        # The keys of calls select all synchronizations of some calls, and the same ones on all ranks.
        total = self.total
        sample = [entry for entry in total.synchronizations if not entry[0] & total.mask]
        while len(sample) > self._limit and total.mask < _ALL:
            total.halve_sampling()
            sample = [entry for entry in sample if not entry[0] & total.mask]
        total.synchronizations = sample[-self._limit :]

    def snapshot(self) -> Counters:
        """Return the sum of all counters so far, with the synchronizations since the last snapshot."""
        with self._lock:
            total = self._sum()
            for counters in (self.total, *self._running):
                total.synchronizations += counters.take_synchronizations()
            return total

    def sum(self) -> Counters:
        """Return the sum of all counters so far, without synchronizations."""
        with self._lock:
            return self._sum()

    def _sum(self) -> Counters:
        total = Counters()
        for counters in (self.total, *self._running):
            _add(total, counters)
        return total


def _add(total: Counters, more: Counters) -> None:
    # list() makes copies, because the thread of the call may add an operation or a rank at the same time.
    for name, counts in list(more.operations.items()):
        total.operations[name] = _sums(total.operations[name], counts)
    for site, counts in list(more.sites.items()):
        total.sites[site] = _sums(total.sites.get(site, [0, 0, 0.0]), counts)
    for rank, (nbytes, messages) in list(more.sent.items()):
        _add_sent(total, rank, nbytes, messages)
    total.sizes = _sums(total.sizes, more.sizes)
    _add_uniform(total, dict(more.uniform))


def _add_uniform(total: Counters, uniform: Mapping[tuple[str, tuple[int, ...]], Sequence[int]]) -> None:
    for (name, ranks), (nbytes, *sizes) in uniform.items():
        for rank in ranks:
            _add_sent(total, rank, nbytes, sum(sizes))
        if any(sizes):
            total.operations[name][1] += nbytes * len(ranks)
            total.sizes = _sums(total.sizes, [len(ranks) * messages for messages in sizes])


def _sums(counts: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    return [count + other for count, other in zip(counts, more, strict=True)]


def _add_sent(total: Counters, rank: int, nbytes: int, messages: int) -> None:
    if messages:
        pair = total.sent[rank]
        pair[0] += nbytes
        pair[1] += messages


COLLECTIVE = (
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall",
    "Alltoallv", "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan",
)  # fmt: skip
"""Operations of all ranks on buffers."""

NEIGHBORS = tuple(f"Neighbor_{name}" for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"))
"""Operations of neighbors in a topology on buffers."""

MAKERS = (
    "Dup", "Dup_with_info", "Clone", "Idup", "Create", "Split", "Split_type", "Create_cart", "Create_graph",
    "Create_dist_graph", "Create_dist_graph_adjacent", "Sub",
)  # fmt: skip
"""Operations of all ranks that make a communicator."""

OPERATIONS = (
    "other",
    *COLLECTIVE,
    *NEIGHBORS,
    *(f"I{name.lower()}" for name in (*COLLECTIVE, *NEIGHBORS)),
    *(f"{name}_init" for name in (*COLLECTIVE, *NEIGHBORS)),
    "barrier", "bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan",
    "neighbor_allgather", "neighbor_alltoall",
    "Send", "Bsend", "Ssend", "Rsend", "Recv", "Sendrecv", "Sendrecv_replace", "Probe", "Mprobe",
    "send", "bsend", "ssend", "recv", "sendrecv", "probe", "mprobe",
    "Isend", "Ibsend", "Issend", "Irsend", "Irecv", "Isendrecv", "Isendrecv_replace",
    "isend", "ibsend", "issend", "irecv",
    "Send_init", "Bsend_init", "Ssend_init", "Rsend_init", "Recv_init", "Psend_init", "Precv_init",
    "Start", "Startall", "Wait", "Waitany", "Waitall", "Waitsome", "wait", "waitany", "waitall", "waitsome",
    *MAKERS, "Create_group", "Agree", "Iagree", "Shrink", "Ishrink", "Iflush_buffer",
)  # fmt: skip
"""Operations of a communicator that are counted separately, by their names in mpi4py. All others are ``"other"``."""

WAITS = frozenset(
    ("Wait", "Waitany", "Waitall", "Waitsome", "wait", "waitany", "waitall", "waitsome", "Probe", "probe", "Mprobe",
     "mprobe")
)  # fmt: skip
"""Operations that only wait: all their time counts as wait time, including the time of the transfer.

To separate the two, a synchronization would need the time of the post besides the time of the wait, and it has only one
time of entry."""
