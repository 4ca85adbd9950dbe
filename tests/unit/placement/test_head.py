"""What is pinned to a rank that is gone does not run on another one, and a call has a block for each rank."""

from __future__ import annotations

import operator

import pytest
from distributed import Client, Scheduler, Worker
from distributed.comm import get_address_host_port
from support.raised import raises

from workbench.collective.head import keys_by_rank
from workbench.errors import InvalidRequest, RankLost
from workbench.head.scheduler import RankMembershipPlugin
from workbench.placement.head import fail_lost, fail_unrunnable, mark_written, pin_again


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


async def test_values_that_tasks_make_again_wait_for_their_rank_and_all_others_of_a_lost_rank_fail():
    async with (
        Scheduler(dashboard_address=":0", host="127.0.0.1") as scheduler,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        async with Worker(scheduler.address, host="127.0.0.1", name="lost") as lost:
            pinned = {"workers": [lost.address]}
            data = await client.scatter([5], hash=False)
            source = client.submit(operator.add, 1, 1, key="source")
            makes, written = (client.submit(operator.add, source, 1, key=key, **pinned) for key in ("makes", "written"))
            derived = client.submit(operator.neg, written, key="derived", **pinned)
            between = client.submit(operator.neg, written, key="between")
            last = client.submit(operator.neg, between, key="last", **pinned)
            copied = client.submit(operator.neg, data[0], key="copied", **pinned)
            assert await client.gather([makes, derived, last, copied]) == [3, -3, 3, -5]
            between.release()  # is released on the ranks, and would be made from `written`
            mark_written(scheduler, ["written"])
            state = scheduler.workers[lost.address]
            state.extra["workbench"] = {"rank": 2}

            fail_lost(scheduler, state, "rank 2 has ended")
            await scheduler.remove_worker(lost.address, stimulus_id="lost", expected=True)

        for future in (written, derived, last, copied, *data):
            with raises(RankLost, ranks=(2,)):
                await future
        assert makes.status in ("lost", "pending")
        async with Worker(scheduler.address, host="127.0.0.1", name="next") as heir:
            assert pin_again(scheduler, {lost.address: heir.address}) == 1
            assert await makes == 3
            assert await client.who_has(makes) == {"makes": (heir.address,)}
