"""Memory that large messages are received into: aligned, and used again when nothing can see it any more.

Fresh memory costs a page fault for each of its pages, which halves the speed of a transfer. So a message leases
a slab, and the slab goes back to the pool when the last array, view or frame on it dies.

A lease is a chain: memoryview, ctypes array, token, slab. numpy shortens chains of arrays, but stops at the
ctypes array, so whatever sees the memory holds the lease. The token is an array that only the lease can reach.
The garbage collector does not follow arrays, so a token ends by its reference count alone. Of anything that the
collector follows, a weak reference would be told when a cycle is found to be garbage, and a ``__del__`` in that
cycle could still bring the memory back to life.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import time
import weakref
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LINE = 64
"""Bytes of a cache line, and of the widest vector register."""
PAGE = mmap.PAGESIZE
HUGE = 2 << 20
"""Bytes of a huge page."""


def aligned(nbytes: int) -> memoryview:
    """Return fresh memory for a small frame; it belongs to no pool.

    Parameters
    ----------
    nbytes
        Its length in bytes.

    Returns
    -------
    memoryview
        Writable, of one dimension and format ``"B"``, at a multiple of 64. What is in it is arbitrary.
    """
    memory = np.empty(nbytes + LINE, np.uint8)
    start = _padding(memory, LINE)
    return memory.data[start : start + nbytes]


def whole_lines(nbytes: int) -> int:
    """Return the bytes of so many cache lines that `nbytes` fit: what is laid out by them is aligned."""
    return -(-nbytes // LINE) * LINE


@dataclass(frozen=True)
class PoolStatistics:
    """What a pool holds, and what it has done since it was made."""

    leased: int
    """Bytes of the slabs that something can see."""
    leased_slabs: int
    """Number of those slabs."""
    idle: int
    """Bytes of the slabs that wait to be used again."""
    idle_slabs: int
    """Number of those slabs."""
    limit: int
    """Bytes that may be idle."""
    taken: int
    """Number of leases."""
    reused: int
    """Number of leases of a slab that was idle."""
    given_back: int
    """Bytes of the slabs that went back to the system."""


class Pool:
    """Slabs of memory, each leased to one message at a time.

    Parameters
    ----------
    limit
        Bytes that may be idle. What is leased has no limit.

    Notes
    -----
    Every method may be called from any thread. A lease may end in any thread and inside the garbage collector, so its
    end is only noted there; every method begins with putting the slabs of ended leases among the idle ones. Their
    age counts from then, and what exceeds the limit goes back to the system then.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._ended: deque[_End] = deque()
        self._leased: dict[_Slab, _End] = {}
        # by size, the one that has been idle longest first
        self._idle: defaultdict[int, deque[_Slab]] = defaultdict(deque)
        self._idle_bytes = self._taken = self._reused = self._given_back = 0

    def take(self, nbytes: int) -> memoryview:
        """Lease memory until nothing can see it any more.

        Parameters
        ----------
        nbytes
            Its length in bytes. It may exceed the limit.

        Returns
        -------
        memoryview
            Writable, of one dimension and format ``"B"``, at a multiple of 64, and of 2 MiB when it is as long. What
            is in it is arbitrary.

        Raises
        ------
        ValueError
            If `nbytes` is negative.
        MemoryError
            If the system refuses, even after everything idle went back to it.
        """
        if nbytes < 0:
            raise ValueError(f"{nbytes} bytes of receive memory were asked for; ask for 0 or more.")
        size = slab_size(nbytes)
        with self._lock:
            self._settle(self.limit)
            slab = self._reuse(size) if self._idle[size] else self._fresh(size)
            token = slab.memory.view()
            end = _End(token, self._ended.append)
            end.slab = slab
            self._leased[slab] = end
            self._taken += 1
        return memoryview(slab.lease.from_buffer(token.data)).cast("B")[:nbytes]

    def trim(self, keep: int = 0) -> int:
        """Give idle slabs back to the system, the longest idle first and of those the largest.

        Parameters
        ----------
        keep
            Bytes that may stay idle.

        Returns
        -------
        int
            The bytes given back.
        """
        with self._lock:
            return self._settle(min(keep, self.limit))

    def trim_older(self, seconds: float) -> int:
        """Give the slabs that have been idle for `seconds` or longer back to the system; return their bytes."""
        with self._lock:
            surplus = self._settle(self.limit)
            latest = time.monotonic() - seconds
            young = sum(slab.size for slabs in self._idle.values() for slab in slabs if slab.since > latest)
            return surplus + self._settle(young)

    def statistics(self) -> PoolStatistics:
        """Return what the pool holds now, and what it has done so far."""
        with self._lock:
            self._settle(self.limit)
            return PoolStatistics(
                leased=sum(slab.size for slab in self._leased),
                leased_slabs=len(self._leased),
                idle=self._idle_bytes,
                idle_slabs=sum(map(len, self._idle.values())),
                limit=self.limit,
                taken=self._taken,
                reused=self._reused,
                given_back=self._given_back,
            )

    # The lock is held where these three are called.

    def _reuse(self, size: int) -> _Slab:
        self._idle_bytes -= size
        self._reused += 1
        # the one used last: it is likeliest to be in a cache
        return self._idle[size].pop()

    def _fresh(self, size: int) -> _Slab:
        try:
            return _Slab(size)
        except (OSError, OverflowError):
            self._settle(0)
        try:
            return _Slab(size)
        except (OSError, OverflowError) as refused:
            raise MemoryError(
                f"The system refused {size} bytes of receive memory, and nothing is idle that could be given back; "
                f"{sum(slab.size for slab in self._leased)} bytes are in use by what was received before. "
                "Let go of some of it, send smaller pieces, or give the ranks more memory."
            ) from refused

    def _settle(self, keep: int) -> int:
        """Make the slabs of ended leases idle and give back all but `keep` bytes; return the bytes given back."""
        now = time.monotonic()
        while self._ended:
            slab = self._ended.popleft().slab
            del self._leased[slab]
            # what can never stay goes first, not at the cost of others
            slab.since = now if slab.size <= self.limit else 0.0
            self._idle[slab.size].append(slab)
            self._idle_bytes += slab.size
        before = self._idle_bytes
        while self._idle_bytes > keep:
            first = min((slabs[0] for slabs in self._idle.values() if slabs), key=lambda slab: (slab.since, -slab.size))
            self._idle_bytes -= self._idle[first.size].popleft().size
        given_back = before - self._idle_bytes
        self._given_back += given_back
        return given_back


class _Slab:
    """Memory straight from the system, which has it back when nothing refers to it."""

    __slots__ = ("lease", "memory", "since", "size")
    since: float

    def __init__(self, size: int) -> None:
        boundary = HUGE if size >= HUGE else PAGE
        mapping = mmap.mmap(-1, size + boundary - PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = np.frombuffer(mapping, np.uint8)
        start = _padding(memory, boundary)
        if boundary == HUGE:
            # not every system has huge pages, nor every Linux
            with contextlib.suppress(AttributeError, OSError):
                mapping.madvise(mmap.MADV_HUGEPAGE, start, size)
        self.memory = memory[start : start + size]
        self.size = size
        self.lease = ctypes.c_char * size


class _End(weakref.ref["NDArray[np.uint8]"]):
    """Tells a pool that a token died, and of which slab."""

    __slots__ = ("slab",)
    slab: _Slab


def slab_size(nbytes: int) -> int:
    """Return the bytes of the slab for a message: whole pages, and four sizes for each doubling."""
    step = 1 << ((max(nbytes, 8 * PAGE) - 1).bit_length() - 3)
    return -(-(nbytes or 1) // step) * step


def _padding(memory: NDArray[np.uint8], boundary: int) -> int:
    return -ctypes.addressof(ctypes.c_char.from_buffer(memory.data)) % boundary
