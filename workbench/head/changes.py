"""Changes of the worlds that clients request: one at a time, and each ends with its client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from workbench.errors import InvalidRequest

# Seconds between two checks of the client's connection.
_CHECK_INTERVAL = 0.5


class Connection(Protocol):
    """The connection of a client, as of Dask."""

    def closed(self) -> bool:
        """Return whether one of the two ends is closed."""


class Change:
    """One change, which `what` names in messages."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.waits = False
        """Whether the change only waits for a world, so that nothing is left half done when it is withdrawn."""
        self.withdrawn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The reason why the change is not wanted any more."""
        self.ended = asyncio.Event()

    def withdraw(self, reason: str) -> None:
        """Request the end of the change."""
        if not self.withdrawn.done():
            self.withdrawn.set_result(reason)


class Changes:
    """The change that is in progress, if any; `state` returns what it waits for."""

    def __init__(self, state: Callable[[], str]) -> None:
        self._state = state
        self.current: Change | None = None

    @contextlib.asynccontextmanager
    async def alone(self, what: str, client: Connection | None) -> AsyncIterator[Change]:
        """Make a change, unless another is in progress; the loss of its client withdraws the change.

        Raises
        ------
        InvalidRequest
            If another change is in progress. A request that waited could be carried out long after its client had
            given up, and a restart would then destroy data.
        """
        if self.current is not None:
            state = self._state()
            raise InvalidRequest(
                f"{what} is not possible while {self.current.what} is in progress{f' ({state})' if state else ''}.",
                hint="Wait for its end, or end it with Ctrl-C where it was requested. While a new world is not ready, "
                "scale to fewer ranks withdraws that world.",
            )
        self.current = change = Change(what)
        watch = asyncio.ensure_future(_withdraw_if_lost(change, client)) if client is not None else None
        try:
            yield change
        finally:
            self.current = None
            change.ended.set()
            if watch is not None:
                watch.cancel()

    async def replace(self, what: str) -> None:
        """Withdraw the change that is waiting for a world, if one is, and return when it has ended."""
        if self.current is not None and self.current.waits:
            self.current.withdraw(f"{what} was requested")
            await self.current.ended.wait()


async def _withdraw_if_lost(change: Change, client: Connection) -> None:
    while not client.closed():  # noqa: ASYNC110  (Dask has no event for it)
        await asyncio.sleep(_CHECK_INTERVAL)
    change.withdraw("its client has disconnected")
