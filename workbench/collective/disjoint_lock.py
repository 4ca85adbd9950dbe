"""A lock on some members of a set; holders with disjoint members hold the lock at the same time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Hashable
from typing import TypeAlias

Request: TypeAlias = tuple[Collection[Hashable] | None, asyncio.Event]
"""The members (None: all), and whether the lock is granted."""


class DisjointLock:
    """A lock on members of a set, granted for each member in the order of the requests.

    A request waits for all earlier requests with a common member, whether these hold the lock or wait. So a request
    overtakes only requests without a common member, and none waits forever.
    """

    def __init__(self) -> None:
        # Requests that hold the lock or wait, in their order.
        self._requests: list[Request] = []

    async def acquire(self, members: Collection[Hashable] | None = None) -> Request:
        """Wait for the lock on members (None: all); return the request to `release`."""
        request: Request = None if members is None else frozenset(members), asyncio.Event()
        self._requests.append(request)
        self._grant()
        try:
            await request[1].wait()
        except BaseException:
            self.release(request)
            raise
        return request

    def release(self, request: Request) -> None:
        """Release the lock of a request."""
        self._requests.remove(request)
        self._grant()

    @contextlib.asynccontextmanager
    async def held(self, members: Collection[Hashable] | None = None) -> AsyncIterator[None]:
        """Wait for the lock on members (None: all), and hold the lock in this context."""
        request = await self.acquire(members)
        try:
            yield
        finally:
            self.release(request)

    def locked(self) -> bool:
        """Return whether a request holds the lock on any member."""
        return bool(self._requests)  # the first request is always granted

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
