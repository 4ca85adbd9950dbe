"""Copies that the head has a rank get from other ranks, without MPI."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from distributed import Scheduler, Worker
from support.patience import DEADLINE

from workbench.collective.operation import poll_until
from workbench.rank.worker import RankWorker, has_closed


@pytest.fixture
async def ranks(tmp_path):
    """A scheduler, the holder of "x", and a rank that gets a copy."""
    here = {"host": "127.0.0.1"}
    async with AsyncExitStack() as nodes:
        scheduler = await nodes.enter_async_context(Scheduler(dashboard_address=":0", **here))
        holder = await nodes.enter_async_context(Worker(scheduler.address, **here))
        rank = await nodes.enter_async_context(RankWorker(scheduler.address, http_socket=tmp_path / "rank", **here))
        holder.update_data({"x": 1})
        yield scheduler, holder, rank
    has_closed()  # otherwise the process ends


async def test_a_rank_drops_the_copy_of_a_value_that_was_released_during_the_transfer(ranks):
    _, holder, rank = ranks
    await rank.handlers["gather"](who_has={"x": [holder.address]})
    assert await poll_until(lambda: "x" not in rank.data, DEADLINE)


async def test_the_head_knows_a_copy_without_the_answer_of_the_rank(ranks):
    scheduler, holder, rank = ranks
    scheduler.update_data(who_has={"x": [holder.address]}, nbytes={"x": 8}, client="client")
    await rank.handlers["gather"](who_has={"x": [holder.address]})
    assert await poll_until(lambda: len(scheduler.tasks["x"].who_has) == 2, DEADLINE)
    scheduler.client_releases_keys(keys=["x"], client="client")
    assert await poll_until(lambda: not rank.data, DEADLINE)
