"""A rank that does not come back does not hold its turn for ever: calls that keep blocks, broadcasts."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from support.patience import DEADLINE
from support.ready import ready_world

from workbench.collective import head, protocol
from workbench.collective.operation import CallQueue, RankRPC
from workbench.errors import CollectiveTimeout

RANKS = {0: "mpi://127.0.0.1:40000", 1: "mpi://127.0.0.1:40001"}
KEY = "x"


class Scheduler:
    """A scheduler whose rank 1 never answers one of the requests."""

    def __init__(self, silent: str) -> None:
        self._silent, self.asked, self.told, self.went = silent, asyncio.Event(), [], lambda: None
        self.workers = self.stream_comms = dict.fromkeys(RANKS.values())
        self.clients = {"me"}
        holder = SimpleNamespace(address=RANKS[0])
        self.tasks = {KEY: SimpleNamespace(who_has=[holder], worker_restrictions=None)}

    def rpc(self, address: str) -> Any:
        return _Rank(self, address)

    def worker_send(self, address: str, message: dict[str, Any]) -> None:
        self.told.append((address, message["op"]))

    def add_keys(self, **_: Any) -> None:
        pass

    async def answer(self, address: str, operation: str) -> Any:
        if operation == "workbench_spmd_go":
            self.went()
        if address == RANKS[1] and operation in (self._silent, "workbench_where"):
            self.asked.set()
            await asyncio.Event().wait()
        ended = {"blocks": b"", "keys": [f"of {address}"], "messages": 0, "pending": False}
        return {"answer": {"workbench_spmd_go": ended, "workbench_spmd_keep": {"kept": []}}.get(operation, {})}


class _Rank:
    def __init__(self, scheduler: Scheduler, address: str) -> None:
        self._scheduler, self._address = scheduler, address

    def __getattr__(self, operation: str) -> Any:
        return lambda **_: self._scheduler.answer(self._address, operation)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    for name in ("CALL_END_S", "WHERE_STUCK_S"):
        monkeypatch.setattr(protocol, name, 0.01)


def prepare(scheduler: Any, deadline: float, turn_timeout: float | None = None) -> head.CollectiveCall:
    members = RankRPC(scheduler, RANKS, "the call f")
    asked: Any = {"call": "1", "client": "me", "keys": [[]], "addresses": None, "turn_timeout": turn_timeout}
    asked |= {"work": {"name": "f", "contents": b""}, "wanted": {"root": False, "limit": None}}
    return head.CollectiveCall(scheduler, CallQueue(), members, asked, deadline=deadline)


def start(run: head.CollectiveCall, world: Any) -> Any:
    return asyncio.ensure_future(run.run(world))


async def ends(call: Any) -> Any:
    async with asyncio.timeout(DEADLINE):
        return await call


async def test_a_call_whose_time_is_over_does_not_wait_for_a_rank_that_does_not_keep_its_block():
    scheduler, world = Scheduler("workbench_spmd_keep"), ready_world()
    run = prepare(scheduler, asyncio.get_running_loop().time() + DEADLINE)
    scheduler.went = lambda: setattr(run, "_deadline", 0.0)

    with pytest.raises(CollectiveTimeout):
        await ends(start(run, world))

    assert "rank 1 does not answer" in world.broken[1]
    for address in RANKS.values():
        told = [operation for whom, operation in scheduler.told if whom == address]
        assert told.index("workbench_spmd_end") < told.index("free-keys"), "nobody keeps what others do not"


async def test_a_call_that_is_cancelled_does_not_wait_for_a_rank_that_does_not_keep_its_block():
    scheduler, world = Scheduler("workbench_spmd_keep"), ready_world()
    running = start(prepare(scheduler, math.inf), world)
    await ends(scheduler.asked.wait())
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await ends(running)

    assert "rank 1 does not answer" in world.broken[1]


async def test_a_call_that_may_wait_for_ever_for_its_turn_gives_the_turn_back_if_its_run_has_a_limit():
    scheduler, world = Scheduler("workbench_spmd_keep"), ready_world()
    running = start(prepare(scheduler, math.inf, turn_timeout=0.05), world)

    with pytest.raises(CollectiveTimeout):
        await ends(running)

    assert "rank 1 does not answer" in world.broken[1]
