"""Aligned memory for large messages, reused when nothing references it: the one pool of this process.

Fresh memory costs one page fault per page, which halves the speed of a transfer. So a message leases a slab, and the
slab returns to the pool when the last array, view or frame on the slab is deleted.

A lease is a chain: memoryview, ctypes array, token, slab. NumPy shortens chains of arrays, but stops at the
ctypes array, so every view of the memory holds the lease. The token is an array that only the lease references.
The garbage collector does not track arrays, so only the reference count ends a token. If the collector tracked the
token, it would call the weak reference when it detects a cycle, and a ``__del__`` in that cycle could still resurrect
the memory.

The timer runs only while the pool holds memory, so an idle process does not poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import mmap
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workbench.comm import framing

if TYPE_CHECKING:
    from numpy.typing import NDArray


LINE = 64
"""Bytes of a cache line, and of the widest vector register."""
PAGE = mmap.PAGESIZE
HUGE = 2 << 20
"""Bytes of a huge page."""


def aligned(nbytes: int) -> memoryview:
    """Return fresh memory for a small frame, writable, uninitialized and aligned to 64 bytes, outside of pools."""
    memory = np.empty(nbytes + LINE, np.uint8)
    start = _padding(memory, LINE)
    return memory.data[start : start + nbytes]


def whole_lines(nbytes: int) -> int:
    """Round `nbytes` up to whole cache lines, so that frames stored one after the other are aligned."""
    return -(-nbytes // LINE) * LINE


@dataclass(frozen=True)
class PoolStatistics:
    """The slabs of a pool, and counts since the pool was made."""

    leased: int
    """Bytes of the referenced slabs."""
    leased_slabs: int
    """Number of referenced slabs."""
    idle: int
    """Bytes of the slabs that can be reused."""
    idle_slabs: int
    """Number of slabs that can be reused."""
    limit: int
    """Bytes that may be idle."""
    taken: int
    """Number of leases."""
    reused: int
    """Number of leases of a slab that was idle."""
    given_back: int
    """Bytes of the slabs that were returned to the system."""


class Pool:
    """Slabs of memory, each leased to one message at a time.

    Parameters
    ----------
    limit
        Bytes that may be idle. Leased memory has no limit.

    Notes
    -----
    Thread-safe. A lease may end in any thread and inside the garbage collector, so its end is only recorded there.
    Each method first moves the slabs of ended leases to the idle ones. The age of a slab counts from this moment, and
    the bytes above the limit are then returned to the system.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._ended: deque[_End] = deque()
        self._leased: dict[_Slab, _End] = {}
        # By size. The slab with the longest idle time is first.
        self._idle: defaultdict[int, deque[_Slab]] = defaultdict(deque)
        self._idle_bytes = self._taken = self._reused = self._given_back = 0

    def take(self, nbytes: int) -> memoryview:
        """Lease memory until nothing references it.

        Parameters
        ----------
        nbytes
            Length in bytes. It may exceed the limit.

        Returns
        -------
        memoryview
            Writable and uninitialized, of one dimension and format ``"B"``. It is aligned to 64 bytes, or to 2 MiB if
            it is at least as long.

        Raises
        ------
        ValueError
            If `nbytes` is negative.
        MemoryError
            If the system has no memory, even after all idle slabs were returned.
        """
        if nbytes < 0:
            raise ValueError(f"{nbytes} bytes of receive memory are not valid. Request 0 bytes or more.")
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
        """Return all but `keep` bytes of idle slabs to the system, the longest idle first; return the freed bytes."""
        with self._lock:
            return self._settle(min(keep, self.limit))

    def trim_older(self, seconds: float) -> int:
        """Return the slabs that have been idle for `seconds` or longer to the system; return the freed bytes."""
        with self._lock:
            surplus = self._settle(self.limit)
            latest = time.monotonic() - seconds
            young = sum(slab.size for slabs in self._idle.values() for slab in slabs if slab.since > latest)
            return surplus + self._settle(young)

    def statistics(self) -> PoolStatistics:
        """Return the current sizes and the counts of the pool."""
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

    # The callers of these three methods hold the lock.

    def _reuse(self, size: int) -> _Slab:
        self._idle_bytes -= size
        self._reused += 1
        # The slab that was used last is the most likely to be in a cache.
        return self._idle[size].pop()

    def _fresh(self, size: int) -> _Slab:
        try:
            return _Slab(size)
        except (OSError, OverflowError):
            self._settle(0)
        try:
            return _Slab(size)
        except (OSError, OverflowError) as error:
            raise MemoryError(
                f"The system refused {size} bytes of receive memory, and the pool has no idle memory. "
                f"{sum(slab.size for slab in self._leased)} bytes are in use by messages received before. "
                "Delete some of these objects, send smaller messages, or start the cluster with more memory per rank."
            ) from error

    def _settle(self, keep: int) -> int:
        """Make the slabs of ended leases idle and free all but `keep` bytes; return the freed bytes."""
        now = time.monotonic()
        while self._ended:
            slab = self._ended.popleft().slab
            del self._leased[slab]
            # A slab above the limit is freed first, and not in place of others.
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
    """Memory that the system has mapped, and unmaps when nothing references the slab."""

    __slots__ = ("lease", "memory", "since", "size")
    since: float

    def __init__(self, size: int) -> None:
        boundary = HUGE if size >= HUGE else PAGE
        mapping = mmap.mmap(-1, size + boundary - PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = np.frombuffer(mapping, np.uint8)
        start = _padding(memory, boundary)
        if boundary == HUGE:
            # Not every Linux has huge pages.
            with contextlib.suppress(AttributeError, OSError):
                mapping.madvise(mmap.MADV_HUGEPAGE, start, size)
        self.memory = memory[start : start + size]
        self.size = size
        self.lease = ctypes.c_char * size


class _End(weakref.ref["NDArray[np.uint8]"]):
    """Calls the pool when the token of a slab is deleted."""

    __slots__ = ("slab",)
    slab: _Slab


def slab_size(nbytes: int) -> int:
    """Return the bytes of the slab for a message: whole pages, and four sizes for each doubling."""
    step = 1 << ((max(nbytes, 8 * PAGE) - 1).bit_length() - 3)
    return -(-(nbytes or 1) // step) * step


def _padding(memory: NDArray[np.uint8], boundary: int) -> int:
    return -ctypes.addressof(ctypes.c_char.from_buffer(memory.data)) % boundary


# Bytes. malloc reuses smaller memory without page faults.
_SMALL = 1 << 18
# Seconds between two checks of the pool, and seconds after which an idle slab is returned to the system.
_INTERVAL, _MAX_IDLE = 1.0, 30.0
# Fraction of the process's memory for idle slabs, which later receives reuse.
_IDLE_SHARE = 0.15
# Fraction of the process's memory above which the pool keeps no idle slabs: there Dask begins to move data to disk.
_PRESSURE = 0.6

_budget = 0
_pools: list[Pool] = []
# Event loops with a running timer.
_watched: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def configure(budget: int) -> None:
    """As `workbench.comm.configure_memory`."""
    global _budget  # noqa: PLW0603  (one process has one memory)
    _budget = budget
    if _pools:
        _pools[0].limit = _limit()


def pool() -> Pool:
    """Return the pool of this process."""
    if not _pools:
        _pools.append(Pool(_limit()))
    return _pools[0]


def _limit() -> int:
    return int(_IDLE_SHARE * _memory())


def _memory() -> int:
    from distributed.system import MEMORY_LIMIT

    return _budget or int(MEMORY_LIMIT)


def take_memory(nbytes: int) -> memoryview:
    """Return writable memory for a frame, aligned to 64 bytes, from the pool if the frame is large."""
    if nbytes < _SMALL:
        return aligned(nbytes)
    memory = pool().take(nbytes)
    _watch(asyncio.get_running_loop())
    return memory


def scratch(nbytes: int) -> Iterator[memoryview]:
    """Yield the same memory of at most one chunk repeatedly, in pieces of `nbytes` in total, for discarded frames."""
    memory = aligned(min(nbytes, framing.CHUNK))
    for left in range(nbytes, 0, -framing.CHUNK):
        yield memory[:left]


def _watch(loop: asyncio.AbstractEventLoop) -> None:
    if loop not in _watched:
        _watched.add(loop)
        loop.call_later(_INTERVAL, _trim, loop)


def _trim(loop: asyncio.AbstractEventLoop) -> None:
    if _is_pressed():
        pool().trim()
    else:
        pool().trim_older(_MAX_IDLE)
    statistics = pool().statistics()
    if statistics.leased or statistics.idle:
        loop.call_later(_INTERVAL, _trim, loop)
    else:
        _watched.discard(loop)


def _is_pressed() -> bool:
    import psutil

    try:
        return bool(psutil.Process().memory_info().rss > _PRESSURE * _memory())
    except (OSError, psutil.Error):  # the process has no free file to read its memory size
        return False
