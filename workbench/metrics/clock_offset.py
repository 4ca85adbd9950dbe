"""The offset between the clock of the head and the clock of this node, which may be seconds.

The method is that of Cristian (Probabilistic clock synchronization, Distributed Computing 3, 1989): the answer with the
shortest round trip is the most accurate one; its error is at most half of the round trip.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Worker

_POLL_INTERVAL_S, _REQUESTS_PER_POLL, _ANSWER_TIMEOUT_S = 30.0, 5, 5.0
# Seconds between two checks whether this rank has begun to send the messages of its node.
_DEMAND_POLL_INTERVAL_S = 1.0


class HeadClock:
    """Requests the time of the head regularly, once `ahead` is in use: only one rank of a node needs the offset.

    Parameters
    ----------
    worker
        The worker that is connected to the head.
    is_local
        Whether the head runs on this node, by the same clock.
    """

    def __init__(self, worker: Worker, *, is_local: bool) -> None:
        self._worker = worker
        self._ahead: float | None = 0.0 if is_local else None
        self._wanted = False

    def ahead(self) -> float | None:
        """Return the seconds by which the head's clock is ahead, None until they are known; for any thread."""
        self._wanted = True
        return self._ahead

    async def watch(self) -> None:
        """Update `ahead` while it is in use, until the end of the event loop."""
        while True:
            while not self._wanted:  # noqa: ASYNC110  (a thread sets the flag)
                await asyncio.sleep(_DEMAND_POLL_INTERVAL_S)
            self._wanted = False
            # The head may be busy, or be restarting the world.
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    self._ahead = await self._poll()
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _poll(self) -> float:
        best = float("inf"), 0.0
        for _ in range(_REQUESTS_PER_POLL):
            sent_at = time.time()
            head_time = await self._worker.scheduler.workbench_time()
            received_at = time.time()
            best = min(best, (received_at - sent_at, head_time - (sent_at + received_at) / 2))
        return best[1]
