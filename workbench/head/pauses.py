"""Notices about ranks that Dask has paused for some time, because they have little memory left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dask.utils import format_bytes
from distributed.core import Status

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

    from workbench.head.scheduler import HeadScheduler

# Seconds of a pause until the notice: ranks that spill values pause for moments.
_LONG = 10.0
# Seconds for a rank to answer.
_ANSWER = 2.0
# Ranks in a notice, at most.
_NAMED = 4


class Pauses:
    """Reports when ranks are paused for long, which ranks, and why; and when they start tasks again."""

    def __init__(self, scheduler: HeadScheduler, report: Callable[..., None]) -> None:
        self._scheduler, self._report = scheduler, report
        self._since: dict[str, float] = {}
        self._reported: set[str] = set()

    async def watch(self) -> None:
        """Report pauses until this task is canceled."""
        while True:
            await asyncio.sleep(1)
            if self._scheduler.refusal is None:  # else the ranks are paused because the cluster ends
                await self.look(time.monotonic())

    async def look(self, now: float) -> None:
        """Report what has changed, at the time `now` in seconds."""
        paused = {
            address: worker
            for address, worker in self._scheduler.workers.items()
            if worker.status == Status.paused and "workbench" in worker.extra
        }
        self._since = {address: self._since.get(address, now) for address in paused}
        long = {address for address, since in self._since.items() if now - since >= _LONG}
        if long - self._reported:
            # One notice for each time in which ranks are paused; the record has the current message.
            kind = "" if self._reported else "paused"
            self._reported |= long
            self._report(await self._describe([paused[address] for address in sorted(long)]), kind=kind)
        elif self._reported and not paused:
            self._reported = set()
            self._report("no rank is paused any more", kind="paused")

    async def _describe(self, workers: list[WorkerState]) -> str:
        rooms = [room for room in await asyncio.gather(*map(self._room, workers[:_NAMED])) if room]
        names = list(map(str, sorted(worker.extra["workbench"]["rank"] for worker in workers)))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        who, starts = (
            (f"rank {names[0]} is", "starts")
            if len(names) == 1
            else (f"ranks {', '.join(names[:_NAMED])}{more} are", "start")
        )
        used = max(workers, key=lambda worker: worker.metrics.get("memory", 0) / (worker.memory_limit or 1))
        why = f"{format_bytes(used.metrics.get('memory', 0))} of {format_bytes(used.memory_limit)} memory"
        remedy = "Delete results, use smaller chunks, or start ranks with more memory"
        if full := next((room for room in rooms if room["free"] < room["largest"]), None):
            why += f", and {full['folder']}, to which results are spilled, is full ({format_bytes(full['free'])} free)"
            remedy += ", or free space there"
        return f"{who} paused and {starts} no tasks: {why}. {remedy}"

    async def _room(self, worker: WorkerState) -> dict[str, Any] | None:
        with suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(_ANSWER):
                room: dict[str, Any] = await self._scheduler.rpc(worker.address).workbench_room()
                return room
        return None
