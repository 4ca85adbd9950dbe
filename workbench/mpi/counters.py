"""What a rank has sent and how long it was in MPI: counted as it happens, by the communicator of a call or a cell."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from workbench.mpi.size_bins import SIZES

MEETINGS = 32
"""That are remembered between two samples, at most."""

KEYS = 2**63 - 1
"""The largest key that tells a communicator, or a pair of its ranks, from others: an int64 has them in messages."""

STEP = 648_055
"""Between the numbers of two meetings: 2**20 divided by the golden ratio, so that their remainders are spread evenly
over a program, whatever it does again and again (Knuth, TAOCP 3, section 6.4). Were it 1, of a loop with two operations
only one would be in a sample of every second meeting."""

# Bits of a number, or of a key, that tell whether a meeting is in the sample: the highest of the remainder come first.
_ALL, _HIGHEST = (1 << 20) - 1, 1 << 19

Sites = dict[tuple[str, str], list[float]]
"""By operation and place in the code of the user: ``[calls, bytes, seconds]``."""


class Counters:
    """Counts of one call or cell on this rank.

    Parameters
    ----------
    meetings
        That are remembered between two samples, at most.
    locate
        Returns the place in the code of the user that has called an operation; None: nobody wants to know.

    Attributes
    ----------
    operations : dict of str to list
        By name: ``[calls, bytes, seconds]``.
    sent : dict of int to list
        By rank of the world that it was sent to: ``[bytes, messages]``.
    alike : dict of (str, tuple) to list
        What an operation has sent to several ranks of the world alike, by its name and these: bytes to each of them,
        and then messages to each by size. It is in none of the others until `spread` is called.
    sizes : list of int
        Messages by size, see `workbench.mpi.size_bins.size_bin`.
    meetings : list of tuple
        ``(key, number, operation, entered, left)``: when this rank has entered and left an operation (seconds of
        `time.monotonic`) that others, who have the same key and number, take part in. A sample of them: those whose
        number, a multiple of `STEP`, has no bit of `mask`, which gets one bit more when there are too many. So ranks
        with different masks have those of the larger one in common.

    Notes
    -----
    For the one thread that runs the call. Others may read it: what they see may be some operations late.
    """

    __slots__ = ("_most", "_placed", "alike", "locate", "mask", "meetings", "operations", "sent", "sites", "sizes")

    def __init__(self, meetings: int = MEETINGS, locate: Callable[[], str] | None = None) -> None:
        self._most, self.locate = meetings, locate
        self.sites: Sites = {}
        # bytes by operation that are in `sites` already
        self._placed: dict[str, float] = {}
        self.operations: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0])
        self.sent: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        self.alike: defaultdict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(lambda: [0] * (SIZES + 1))
        self.sizes = [0] * SIZES
        self.meetings: list[tuple[int, int, str, float, float]] = []
        self.mask = 0

    def called(self, operation: str, seconds: float) -> None:
        """Count a call of an operation that took so many seconds."""
        counts = self.operations[operation]
        counts[0] += 1
        counts[2] += seconds
        self.located(operation, seconds)

    def located(self, operation: str, seconds: float) -> None:
        """Count a call, which `operations` has already, at its place in the code of the user."""
        if self.locate is None:
            return
        site = self.sites.setdefault((operation, self.locate()), [0, 0, 0.0])
        site[0] += 1
        alike = sum(its[0] * len(ranks) for (name, ranks), its in self.alike.items() if name == operation)
        sent = self.operations[operation][1] + alike
        site[1] += sent - self._placed.get(operation, 0)
        self._placed[operation] = sent
        site[2] += seconds

    def flush_uniform(self) -> Self:
        """Move what `alike` has to where it belongs, and return this; for who counts here."""
        _spread(self, self.alike)
        for counts in self.alike.values():
            counts[:] = [0] * len(counts)
        return self

    def met(self, key: int, number: int, operation: str, entered: float, left: float) -> None:
        """Remember a meeting whose number has no bit of `mask`."""
        meetings = self.meetings
        if len(meetings) >= self._most:
            self.coarsen()
            meetings[:] = [its for its in meetings if not its[1] & self.mask]
        if not number & self.mask:
            meetings.append((key, number, operation, entered, left))

    def take_meetings(self) -> list[tuple[int, int, str, float, float]]:
        """Return the meetings since this was called last, and begin anew."""
        taken, self.meetings = self.meetings, []
        if len(taken) < self._most // 4:
            self.mask = self.mask << 1 & _ALL
        return taken

    def coarsen(self) -> None:
        """Have half as many meetings in the sample."""
        self.mask = self.mask >> 1 | _HIGHEST


class Meter:
    """The counters of a rank: those of calls that run, and what all others came to.

    Parameters
    ----------
    meetings
        That are remembered between two samples, at most.
    """

    def __init__(self, meetings: int = MEETINGS) -> None:
        self._most = meetings
        self._running: list[Counters] = []
        self._lock = threading.Lock()
        self.total = Counters(meetings)
        """Of all that have ended."""
        self.locate: Callable[[], str] | None = None
        """As of `Counters`, for calls that begin."""

    def open(self) -> Counters:
        """Return counters for a call that begins."""
        counters = Counters(self._most, self.locate)
        with self._lock:
            self._running.append(counters)
        return counters

    def close(self, counters: Counters) -> None:
        """Add the counters of a call that has ended to the total."""
        with self._lock:
            if counters in self._running:
                self._running.remove(counters)
                counters.flush_uniform()
                _add(self.total, counters, meetings=True)
                self._thin_out()

    def _thin_out(self) -> None:
        # Of many short calls some are kept with all their meetings: by their keys, so that ranks keep the same ones.
        total = self.total
        kept = [its for its in total.meetings if not its[0] & total.mask]
        while len(kept) > self._most and total.mask < _ALL:
            total.coarsen()
            kept = [its for its in kept if not its[0] & total.mask]
        total.meetings = kept[-self._most :]

    def snapshot(self) -> Counters:
        """Return the sum of everything so far, and the meetings since the last snapshot."""
        return self._sum(meetings=True)

    def sum(self) -> Counters:
        """Return the sum of everything so far, without meetings."""
        return self._sum(meetings=False)

    def _sum(self, *, meetings: bool) -> Counters:
        with self._lock:
            total = Counters()
            for each in (self.total, *self._running):
                _add(total, each, meetings=meetings)
            return total


def _add(total: Counters, more: Counters, *, meetings: bool) -> None:
    # list(): the thread that counts may come upon a new operation or rank meanwhile
    for name, counts in list(more.operations.items()):
        total.operations[name] = [one + other for one, other in zip(total.operations[name], counts, strict=True)]
    for where, counts in list(more.sites.items()):
        sums = total.sites.get(where, [0, 0, 0.0])
        total.sites[where] = [one + other for one, other in zip(sums, counts, strict=True)]
    for rank, (nbytes, messages) in list(more.sent.items()):
        _send(total, rank, nbytes, messages)
    total.sizes = [one + other for one, other in zip(total.sizes, more.sizes, strict=True)]
    _spread(total, dict(more.alike))
    if meetings:
        total.meetings += more.take_meetings()


def _spread(total: Counters, alike: Mapping[tuple[str, tuple[int, ...]], Sequence[int]]) -> None:
    for (name, ranks), (nbytes, *sizes) in alike.items():
        for rank in ranks:
            _send(total, rank, nbytes, sum(sizes))
        if any(sizes):
            total.operations[name][1] += nbytes * len(ranks)
            total.sizes = [one + len(ranks) * other for one, other in zip(total.sizes, sizes, strict=True)]


def _send(total: Counters, rank: int, nbytes: int, messages: int) -> None:
    if messages:
        pair = total.sent[rank]
        pair[0] += nbytes
        pair[1] += messages
