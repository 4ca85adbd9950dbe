"""The end of a call that has failed, as the head sees it."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from support.ready import ready_world

from workbench.collective.head_call import CollectiveCall
from workbench.collective.operation import Outcomes
from workbench.collective.queue import CallQueue
from workbench.collective.rank_rpc import RankRPC

NOTHING: Any = None
ERROR = {"words": "ValueError: no", "stack": "", "parcel": None}
REQUEST: Any = {"call": "1f", "work": {"name": "f", "contents": b""}, "client": "me", "wanted": {}}


class Scheduler:
    """A scheduler whose rank 1 is somewhere in a call, from which it returns when it was asked where it is."""

    def __init__(self, place: dict[str, Any]) -> None:
        self.workers, self.stream_comms = {"r0": NOTHING, "r1": NOTHING}, {}
        self._place = place
        self.rank1: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def rpc(self, _: str) -> Any:
        async def where(**_: Any) -> dict[str, Any]:
            asyncio.get_running_loop().call_later(0.05, self.rank1.set_result, {"ended": "rank 0 failed"})
            return {"answer": {"seconds": 0.0, "operation": None, "place": "f.py:3"} | self._place}

        return SimpleNamespace(workbench_where=where)


@pytest.mark.parametrize("importing", [True, False])
async def test_a_call_is_over_when_its_ranks_have_returned_from_their_imports(importing, monkeypatch):
    monkeypatch.setattr(CollectiveCall, "grace", 0.0)
    scheduler, world = Scheduler({"importing": importing}), ready_world()
    fake: Any = scheduler
    members = RankRPC(fake, 0, {0: "r0", 1: "r1"}, "the call f")
    call = CollectiveCall(fake, CallQueue(), world, members, REQUEST, deadline=math.inf)
    call._serial = 1
    rank0 = asyncio.get_running_loop().create_future()
    rank0.set_result({"error": ERROR})
    outcomes: Outcomes[Any] = Outcomes({0: rank0, 1: scheduler.rank1}, lambda outcome: "error" in outcome)

    assert not await outcomes.wait()
    answer = await call._break_off(outcomes)

    assert answer["error"] == ERROR
    assert ("rank 1 is in user code" in answer["others"], list(world.broken)) == (not importing, [1] * (not importing))
    await scheduler.rank1
