"""Calls and cells that were cancelled before they came."""

from __future__ import annotations

import asyncio


class Cancelled:
    """Identities of calls or cells that were cancelled: the order may be faster than the call.

    Parameters
    ----------
    seconds
        For which an identity is remembered.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._known: set[str] = set()

    def add(self, call: str) -> None:
        """Remember a call that was cancelled. On an event loop."""
        self._known.add(call)
        asyncio.get_running_loop().call_later(self._seconds, self._known.discard, call)

    def __contains__(self, call: object) -> bool:
        return call in self._known
