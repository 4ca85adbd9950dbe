"""How far the clock of the head is ahead of this node's: nodes of a cluster may differ by seconds.

As Cristian has it (Probabilistic clock synchronization, Distributed Computing 3, 1989): the answer with the shortest
round trip tells most, and is wrong by half of that at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Worker

# Seconds between two polls, questions of each, and seconds for an answer.
_POLL_INTERVAL_S, _QUESTIONS_PER_POLL, _ANSWER_TIMEOUT_S = 30.0, 5, 5.0
# Seconds between two checks whether this rank has begun to send the messages of its node.
_DEMAND_POLL_INTERVAL_S = 1.0


class HeadClock:
    """Asks the head for the time now and then.

    Parameters
    ----------
    worker
        Has the connection.
    is_local
        Whether the head is on this node, and its clock this one.

    Notes
    -----
    Of the ranks of a node one sends to the head. A rank that does not need the time does not ask for it.
    """

    def __init__(self, worker: Worker, *, is_local: bool) -> None:
        self._worker = worker
        self._ahead: float | None = 0.0 if is_local else None
        self._wanted = False

    def ahead(self) -> float | None:
        """Return the seconds; None until they are known. In any thread."""
        self._wanted = True
        return self._ahead

    async def watch(self) -> None:
        """Keep `ahead` true as long as it is asked for, to the end of the event loop."""
        while True:
            while not self._wanted:  # noqa: ASYNC110  (a thread wants it)
                await asyncio.sleep(_DEMAND_POLL_INTERVAL_S)
            self._wanted = False
            # The head may be busy, or restart the world just now.
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    self._ahead = await self._poll()
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _poll(self) -> float:
        best = float("inf"), 0.0
        for _ in range(_QUESTIONS_PER_POLL):
            asked = time.time()
            head_time = await self._worker.scheduler.workbench_time()
            answered = time.time()
            best = min(best, (answered - asked, head_time - (asked + answered) / 2))
        return best[1]
