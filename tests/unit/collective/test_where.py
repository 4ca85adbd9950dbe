"""Which ranks are asked where they are, and how often."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.collective.head import SpmdCalls

NOTHING: Any = None
PLACE = {"call": "mine", "name": "f", "seconds": 31.0}


class Scheduler:
    """A scheduler that notes which ranks are asked where they are."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.workers = {"w0.0", "w0.1", "w0.2"}

    def rpc(self, address: str) -> Any:
        async def where(**_: Any) -> dict[str, Any]:
            self.asked.append(address)
            return {"answer": PLACE if address != "w0.2" else None}

        return SimpleNamespace(workbench_where=where)


def calls(scheduler: Any, since: float) -> SpmdCalls:
    its = SpmdCalls(scheduler, NOTHING, NOTHING, NOTHING, lambda *_: time.time() - since)
    for world, call, name in ((0, "mine", "f"), (1, "other", "g")):
        its._running[call] = name, world, {rank: f"w{world}.{rank}" for rank in range(3)}
    return its


async def test_only_the_ranks_of_a_call_that_gets_nowhere_are_asked():
    scheduler = Scheduler()

    assert await calls(scheduler, 31.0).running("mine", 30.0) == {
        "mine": ("f", {0: PLACE, 1: PLACE}),
        "other": ("g", {}),
    }
    assert scheduler.asked == ["w0.0", "w0.1", "w0.2"]


@pytest.mark.parametrize(("since", "call"), [(29.0, "mine"), (31.0, "waiting")], ids=["gets on", "waits for its turn"])
async def test_nobody_is_asked_for_a_call_that_gets_on_or_waits_for_its_turn(since, call):
    scheduler = Scheduler()

    assert await calls(scheduler, since).running(call, 30.0) == {"mine": ("f", {}), "other": ("g", {})}
    assert scheduler.asked == []
