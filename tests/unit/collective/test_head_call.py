"""The end of a call that has failed, as the head sees it."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from support.raised import raises
from support.ready import ready_world

from workbench.collective import protocol
from workbench.collective.head import CollectiveCall
from workbench.collective.operation import CallQueue, Outcomes, RankRPC
from workbench.errors import CollectiveFailed, RankLost

NOTHING: Any = None
ERROR = {"words": "ValueError: no", "stack": "", "parcel": None, "process_failed": False}
REQUEST: Any = {"call": "1f", "work": {"name": "f", "contents": b""}, "client": "me", "wanted": {}}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(protocol, "CALL_END_S", 0.0)


class Broken:
    """A call on two ranks of three, in which rank 0 has failed with `error`; `where` is the position of rank 1."""

    def __init__(self, error: dict[str, Any], where: dict[str, Any] | None) -> None:
        self.world, self._where = ready_world(ranks=3), where
        rank0, self.rank1 = [asyncio.get_running_loop().create_future() for _ in range(2)]
        rank0.set_result({"error": error})
        self._outcomes: Outcomes[Any] = Outcomes({0: rank0, 1: self.rank1}, lambda outcome: "error" in outcome)
        scheduler: Any = SimpleNamespace(
            workers={"r0", "r1"}, rpc=lambda _: SimpleNamespace(workbench_where=self.where), stream_comms={}
        )
        members = RankRPC(scheduler, {0: "r0", 1: "r1"}, "the call f")
        self._call = CollectiveCall(scheduler, CallQueue(), members, REQUEST, deadline=math.inf)
        self._call.world, self._call._serial = self.world, 1

    async def where(self, *, tasks: bool) -> dict[str, Any]:
        position = {"seconds": 0.0, "operation": None, "place": "f.py:3"}
        return {"answer": None if self._where is None else position | self._where}

    async def end(self) -> Any:
        assert not await self._outcomes.wait()
        return await self._call._break_off(self._outcomes)


@pytest.mark.parametrize("where", [{"importing": True}, {"operation": "Barrier"}, None])
async def test_a_call_is_over_when_its_ranks_have_returned_from_what_ends_by_itself(where):
    call = Broken(ERROR, where)
    asyncio.get_running_loop().call_later(0.1, call.rank1.set_result, {"ended": "rank 0 failed"})

    assert (await call.end())["others"] == ""
    assert call.world.broken == {}


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"importing": True}, "importing a module at f.py:3, and"),
        ({"operation": "Barrier"}, "in Barrier for 0 s, and"),
        (None, "idle, and"),
    ],
)
async def test_a_rank_that_does_not_return_is_named(monkeypatch, where, words):
    monkeypatch.setattr(protocol, "RETURN_S", 0.0)
    call = Broken(ERROR, where)

    assert f"But rank 1 is {words}" in (await call.end())["others"]
    assert list(call.world.broken) == [1]


@pytest.mark.parametrize("before", [True, False])
async def test_the_loss_of_a_rank_that_mpi_notices_before_the_scheduler_is_the_error(before):
    call = Broken(ERROR | {"process_failed": True}, {})
    if before:
        call.rank1.set_exception(CollectiveFailed("rank 1 could not be reached"))
    ending = asyncio.ensure_future(call.end())
    asyncio.get_running_loop().call_later(0.1, call.world.left, 1)

    with raises(RankLost, ranks=(1,)):
        await ending


async def test_a_loss_outside_of_the_call_leaves_the_error_of_mpi():
    call = Broken(ERROR | {"process_failed": True}, {})
    call.world.left(2)

    assert (await call.end())["error"]["words"] == "ValueError: no"
