"""The metrics of the head: it receives the messages of nodes, ticks, and answers requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from workbench.metrics.schema import TICK
from workbench.metrics.store import Store
from workbench.metrics.training import TOPIC, records
from workbench.metrics.world_state import LATE

logger = logging.getLogger("workbench.head")


class Metrics(SchedulerPlugin):
    """The store of a cluster, and its handlers for the scheduler.

    Parameters
    ----------
    state
        Returns the mapping `workbench.metrics.update.Update.state`.
    """

    name = "workbench-metrics"

    def __init__(self, state: Callable[[], Mapping[str, Any]]) -> None:
        self.store = Store(state)
        self._logged: set[str] = set()
        self.handlers: dict[str, Callable[..., Any]] = {
            "workbench_metrics": self.update,
            "workbench_metrics_pair": self.pair,
            "workbench_metrics_mark": self.mark,
            "workbench_metrics_met": self.wait_times,
            "workbench_time": self.time,
        }
        self.stream_handlers = {"workbench-metrics": self._take}

    async def run(self) -> None:
        """Tick until the end of the head."""
        # Ranks sample at the begin of each tick; half a tick later their messages have arrived.
        while True:
            await asyncio.sleep(TICK - (time.time() - TICK / 2) % TICK)
            try:
                self.store.tick()
            except Exception as error:  # noqa: BLE001  (metrics must not end the cluster)
                self._log_once("metrics were not collected", error)

    async def update(self, since: int = 0) -> dict[str, Any]:
        """Return `Store.update`, packed."""
        return self.store.update(since).pack()

    async def pair(self, source: int, target: int) -> tuple[bytes, bytes]:
        """Return `Store.pair`, packed: float64 times, float32 rates."""
        times, rates = self.store.pair(source, target)
        return times.tobytes(), rates.tobytes()

    async def mark(self) -> float:
        """Return `Store.mark`."""
        return self.store.mark()

    async def wait_times(self, mark: float) -> list[tuple[int, str, float, float]]:
        """Return `Store.wait_times`, as soon as the ranks have sent all synchronizations until then."""
        await asyncio.sleep(mark + LATE - time.time())
        return self.store.wait_times(mark)

    async def time(self) -> float:
        """Return the time of the head's clock, in seconds since the epoch."""
        return time.time()

    def _take(self, *, worker: str, **message: Any) -> None:
        try:
            self.store.take(message)
        except Exception as error:  # noqa: BLE001  (ranks may be of another version; Dask would lose the worker)
            self._log_once("a message with metrics could not be read", error)

    def _log_once(self, problem: str, error: Exception) -> None:
        if problem not in self._logged:
            self._logged.add(problem)
            logger.error("%s; this is logged once", problem, exc_info=error)

    def log_event(self, topic: str, msg: Any) -> None:
        """Store the records of fits and of `workbench.report`."""
        if topic == TOPIC:
            for record in records(msg, time.time()):
                self.store.report(record)
