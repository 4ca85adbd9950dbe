"""Calls and cells that were cancelled before their request arrived."""

from __future__ import annotations

import asyncio


class Cancelled:
    """Identities of cancelled calls or cells: the cancellation may arrive before the request.

    Parameters
    ----------
    seconds
        Time for which an identity is kept.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._known: set[str] = set()

    def add(self, call: str) -> None:
        """Keep the identity of a cancelled call. On an event loop."""
        self._known.add(call)
        asyncio.get_running_loop().call_later(self._seconds, self._known.discard, call)

    def __contains__(self, call: object) -> bool:
        return call in self._known
