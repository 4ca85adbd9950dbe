"""A lock of some members of a set: holders whose members are disjoint have it at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Hashable


class DisjointLock:
    """Is granted first come, first served for each member.

    A request waits for all earlier ones with which it shares a member, whether these hold the lock or wait for it. So
    it overtakes only requests that want nothing of it, and each is granted once the earlier ones are over.
    """

    def __init__(self) -> None:
        # Held and waiting, in their order: the members (all, if None), and whether they are granted.
        self._requests: list[tuple[Collection[Hashable] | None, asyncio.Event]] = []

    @contextlib.asynccontextmanager
    async def held(self, members: Collection[Hashable] | None = None) -> AsyncIterator[None]:
        """Wait for members (for all, if none are named), and hold them within."""
        request = None if members is None else frozenset(members), asyncio.Event()
        self._requests.append(request)
        self._grant()
        try:
            await request[1].wait()
            yield
        finally:
            self._requests.remove(request)
            self._grant()

    def locked(self) -> bool:
        """Return whether anybody holds any member."""
        return bool(self._requests)  # the first one is always granted

    def _grant(self) -> None:
        wanted: set[Hashable] = set()
        for number, (members, granted) in enumerate(self._requests):
            if members is None:
                if not number:
                    granted.set()
                return
            if wanted.isdisjoint(members):
                granted.set()
            wanted.update(members)
