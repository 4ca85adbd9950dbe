"""The memory that this process receives into: its one pool, and what gives idle slabs back.

No polling of an idle process here either: a timer runs only while the pool holds something.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator

from workbench import config
from workbench.comm import framing
from workbench.comm.buffer_pool import Pool, aligned

# Bytes. malloc uses smaller memory again by itself, without page faults.
_SMALL = 1 << 18
# Seconds between two looks at the pool, and seconds after which an idle slab goes back to the system.
_TICK, _OLD = 1.0, 30.0
# Part of the process's memory above which the pool keeps nothing idle: where Dask begins to move data to disk.
_PRESSURE = 0.6

_budget = 0
_pools: list[Pool] = []
# Loops that have a timer running.
_watched: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def configure(budget: int) -> None:
    """Tell how much memory this process has, in bytes, before it receives anything; default: that of its host."""
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
    """Return memory for a frame: aligned to 64 bytes, writable, from the pool if it is large."""
    if nbytes < _SMALL:
        return aligned(nbytes)
    memory = pool().take(nbytes)
    _watch(asyncio.get_running_loop())
    return memory


def scratch(nbytes: int) -> Iterator[memoryview]:
    """Yield one and the same memory, a chunk at the most, in pieces that come to `nbytes`: for unwanted frames."""
    memory = aligned(min(nbytes, framing.CHUNK))
    for left in range(nbytes, 0, -framing.CHUNK):
        yield memory[:left]


def _watch(loop: asyncio.AbstractEventLoop) -> None:
    if loop not in _watched:
        _watched.add(loop)
        loop.call_later(_TICK, _look, loop)


def _look(loop: asyncio.AbstractEventLoop) -> None:
    if _is_pressed():
        pool().trim()
    else:
        pool().trim_older(_OLD)
    held = pool().statistics()
    if held.leased or held.idle:
        loop.call_later(_TICK, _look, loop)
    else:
        _watched.discard(loop)


def _is_pressed() -> bool:
    import psutil

    try:
        return bool(psutil.Process().memory_info().rss > _PRESSURE * _memory())
    except (OSError, psutil.Error):  # a process that can have no more files cannot ask
        return False
