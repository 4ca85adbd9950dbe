"""The one memory pool of this process for received messages, and the timer that frees idle slabs.

The timer runs only while the pool holds memory, so an idle process does not poll.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator

from workbench import config
from workbench.comm import framing
from workbench.comm.buffer_pool import Pool, aligned

# Bytes. malloc reuses smaller memory without page faults.
_SMALL = 1 << 18
# Seconds between two checks of the pool, and seconds after which an idle slab is returned to the system.
_INTERVAL, _MAX_IDLE = 1.0, 30.0
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
    return int(config.fraction("comm.pool") * _memory())


def _memory() -> int:
    from distributed.system import MEMORY_LIMIT

    return _budget or int(MEMORY_LIMIT)


def take(nbytes: int) -> memoryview:
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
