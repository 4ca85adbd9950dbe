"""What is pinned to a rank that is gone does not run on another one, and a call has a block for each rank."""

from __future__ import annotations

import pytest
from distributed import Client, Scheduler, Worker
from distributed.comm import get_address_host_port
from support.raised import raises

from workbench.collective.head import keys_by_rank
from workbench.errors import InvalidRequest, RankLost
from workbench.head.scheduler import RankMembershipPlugin
from workbench.placement.head import fail_unrunnable


def number(_):
    return 1


async def test_a_task_pinned_to_a_rank_that_is_gone_does_not_run_on_the_next_rank_with_its_address():
    async with (
        Scheduler(dashboard_address=":0", host="127.0.0.1") as scheduler,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        scheduler.add_plugin(RankMembershipPlugin(lambda *_: None, lambda *_: None))
        async with Worker(scheduler.address, host="127.0.0.1") as worker:
            address = worker.address
            block = client.submit(number, 0, workers=[address])
            await block
        _, port = get_address_host_port(address)
        async with Worker(scheduler.address, host="127.0.0.1", port=port) as worker:
            assert worker.address == address
            fail_unrunnable(scheduler)

            with pytest.raises(RankLost):
                await block
            assert await client.submit(number, 1, workers=[address]) == 1


@pytest.mark.parametrize("blocks", [0, 2, 4])
def test_another_number_of_blocks_than_of_ranks_is_refused(blocks):
    with raises(InvalidRequest, given=blocks):
        keys_by_rank("f", [["key"]] * blocks, range(3))
    assert keys_by_rank("f", [["key"]], range(3)) == {0: ["key"], 1: ["key"], 2: ["key"]}
    assert keys_by_rank("f", [["x"], ["y"], ["z"]], range(3)) == {0: ["x"], 1: ["y"], 2: ["z"]}
