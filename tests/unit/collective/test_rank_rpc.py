"""What the head reports of a rank that it cannot reach, and how many requests it has under way."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.comm import CommClosedError

from workbench.collective import operation
from workbench.collective.head import Uploads
from workbench.collective.operation import RankRPC, gather_or_cancel, send_limit
from workbench.errors import CollectiveFailed, RankLost

ADDRESS = "mpi://127.0.0.1:40001"
LATE = OSError(f"Timed out trying to connect to {ADDRESS} after 30 s")


class Scheduler:
    """A scheduler that knows one rank, which no connection reaches."""

    def __init__(self, error: OSError) -> None:
        self.workers, self._error = {ADDRESS: None}, error

    def rpc(self, _: str) -> Any:
        async def fail(**_: Any) -> None:
            raise self._error

        return SimpleNamespace(workbench_spmd_reserve=fail, workbench_broadcast_upload=fail)


def ask(scheduler: Any) -> Any:
    return RankRPC(scheduler, {1: ADDRESS}, "the call f").ask(1, "workbench_spmd_reserve")


def upload(scheduler: Any) -> Any:
    nobody: Any = None
    return Uploads(scheduler, nobody).upload("key", b"", ADDRESS)


@pytest.mark.parametrize("error", [LATE, CommClosedError("it was closed")])
@pytest.mark.parametrize("call", [ask, upload])
async def test_a_rank_that_is_slow_is_not_declared_lost(call, error, monkeypatch):
    monkeypatch.setattr(operation, "_NOTICE", 0.01)

    with pytest.raises(CollectiveFailed, match=rf"could not be reached.*{error}.*has not ended.*no data.*lost.*where"):
        await call(Scheduler(error))


@pytest.mark.parametrize("error", [LATE, CommClosedError("it was closed")])
@pytest.mark.parametrize("call", [ask, upload])
async def test_a_rank_that_the_scheduler_sees_leave_a_moment_later_is_lost(call, error):
    scheduler = Scheduler(error)
    asyncio.get_running_loop().call_soon(scheduler.workers.clear)

    with pytest.raises(RankLost):
        await call(scheduler)


async def test_a_rank_that_has_left_before_the_request_is_lost_without_an_attempt_to_connect(monkeypatch):
    scheduler = Scheduler(LATE)
    scheduler.workers.clear()
    monkeypatch.setattr(scheduler, "rpc", lambda _: pytest.fail("a connection"))

    with pytest.raises(RankLost):
        await ask(scheduler)


async def test_the_cause_of_a_loss_is_in_the_error():
    scheduler = Scheduler(LATE)
    scheduler.causes = {ADDRESS: " with signal 9 (SIGKILL)"}
    scheduler.workers.clear()

    with pytest.raises(RankLost, match=r"was lost during .* with signal 9 \(SIGKILL\)\."):
        await ask(scheduler)


async def test_a_head_without_a_core_has_the_time_to_see_a_rank_leave(monkeypatch):
    monkeypatch.setattr(operation, "_NOTICE", 0.2)
    loop, scheduler = asyncio.get_running_loop(), Scheduler(LATE)
    loop.call_soon(time.sleep, 0.3)
    loop.call_later(0.1, loop.call_later, 0.0, scheduler.workers.clear)

    with pytest.raises(RankLost):
        await ask(scheduler)


@pytest.mark.parametrize(("nbytes", "at_once"), [(0, 64 << 20), (1 << 20, 64), (1 << 30, 1)])
def test_requests_under_way_have_64_mib_together_or_are_one(nbytes, at_once):
    assert send_limit(nbytes)._value == at_once


async def test_a_cancellation_does_not_skip_what_calls_await_at_their_end():
    left = []

    async def call(steps: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(steps):
                await asyncio.sleep(0)
            left.append(steps)

    both = asyncio.ensure_future(gather_or_cancel([call(0), call(9)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    assert left == [0, 9]
