"""The queue of SPMD calls."""

from __future__ import annotations

import asyncio

import pytest
from support.raised import raises
from support.ready import ready_world

from workbench.collective.operation import CallQueue, require_complete
from workbench.errors import CollectiveFailed, CollectiveTimeout, RankLost

SOON = 5.0


def deadline(seconds: float = SOON) -> float:
    return asyncio.get_running_loop().time() + seconds


async def run(queue, world, client, call, deadline, ranks=None):  # noqa: PLR0917
    """Run a call in its turn."""
    async with queue.turn(client, deadline, ranks=ranks).held():
        require_complete(world, ranks)
        return await call()


class Call:
    """A call that begins, and ends on request."""

    def __init__(self) -> None:
        self.begun, self.end = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> str:
        self.begun.set()
        await self.end.wait()
        return "done"


async def test_calls_run_one_after_another_in_their_order():
    queue, world, said = CallQueue(), ready_world(), []

    async def call(number: int) -> None:
        said.append(("begins", number))
        await asyncio.sleep(0)
        said.append(("ends", number))

    await asyncio.gather(*(run(queue, world, f"client-{n}", lambda n=n: call(n), deadline()) for n in range(3)))

    assert said == [(word, number) for number in range(3) for word in ("begins", "ends")]


async def test_operations_wait_in_a_pause_that_begins_when_the_earlier_ones_have_ended():
    queue, world, first, second = CallQueue(), ready_world(), Call(), Call()
    second.end.set()
    running = [asyncio.ensure_future(run(queue, world, "me", first, deadline()))]
    await first.begun.wait()
    asyncio.get_running_loop().call_later(0.05, first.end.set)
    async with queue.paused():
        assert running[0].done()
        running.append(asyncio.ensure_future(run(queue, world, "me", second, deadline())))
        await asyncio.sleep(0.05)
        assert not second.begun.is_set()
    assert await asyncio.gather(*running) == ["done", "done"]


async def test_calls_that_share_no_rank_run_at_once_and_a_call_on_all_ranks_waits_for_them():
    queue, world, first, second, everywhere = CallQueue(), ready_world(ranks=4), Call(), Call(), Call()
    asked = ((first, [0, 1]), (second, [3, 2]), (everywhere, None))
    running = [asyncio.ensure_future(run(queue, world, "me", call, deadline(), ranks)) for call, ranks in asked]
    async with asyncio.timeout(SOON):
        await first.begun.wait()
        await second.begun.wait()
        first.end.set()
        await running[0]
        assert not everywhere.begun.is_set()
        second.end.set()
        everywhere.end.set()
        assert await asyncio.gather(*running) == ["done"] * 3


async def test_who_waits_for_some_ranks_too_long_is_told_which():
    queue, world, call = CallQueue(), ready_world(ranks=4), Call()
    running = asyncio.ensure_future(run(queue, world, "me", call, deadline(), [1, 2]))
    await call.begun.wait()

    with raises(CollectiveTimeout, ranks=(0, 1)):
        await run(queue, world, "you", Call(), deadline(0.01), [0, 1])

    call.end.set()
    assert await running == "done"


async def test_who_waits_too_long_is_told_so_and_the_next_has_its_turn():
    queue, world, call = CallQueue(), ready_world(), Call()
    running = asyncio.ensure_future(run(queue, world, "me", call, deadline()))
    await call.begun.wait()

    with pytest.raises(CollectiveTimeout):
        await run(queue, world, "you", Call(), deadline(0.01))

    call.end.set()
    assert await running == "done"
    assert await run(queue, world, "you", call, deadline()) == "done"


async def test_a_client_that_goes_frees_the_queue_wherever_its_call_is():
    queue, world, held, waiting, last = CallQueue(), ready_world(), Call(), Call(), Call()
    last.end.set()
    calls = [
        asyncio.ensure_future(run(queue, world, client, call, deadline()))
        for client, call in (("gone", held), ("gone", waiting), ("here", last))
    ]
    await held.begun.wait()

    queue.remove_client(None, "gone")

    assert await calls[2] == "done"
    for call in calls[:2]:
        with raises(CollectiveFailed, ranks=()):
            await call
    assert not waiting.begun.is_set()


async def test_a_call_that_fails_lets_the_next_one_run():
    queue, world, call = CallQueue(), ready_world(), Call()
    call.end.set()

    async def fail() -> None:
        raise ValueError("no")

    with raises(ValueError, args=("no",)):
        await run(queue, world, "me", fail, deadline())
    assert await run(queue, world, "me", call, deadline()) == "done"


@pytest.mark.parametrize(
    ("harm", "kind", "words"),
    [
        (lambda world: world.left(1), RankLost, r"rank 1 was lost.*cluster.restart\(\)"),
        (lambda world: [world.left(0), world.left(1)], RankLost, "ranks 0, 1 were lost"),
        (lambda world: setattr(world, "ready", False), CollectiveFailed, "being started"),
        (lambda world: setattr(world, "stopping", True), CollectiveFailed, "being ended"),
        (
            lambda world: world.broken.update({1: "rank 1 has not returned from a sum"}),
            CollectiveFailed,
            r"^rank 1 has not returned from a sum\. No other SPMD call.*cluster.restart\(\)",
        ),
    ],
)
async def test_a_world_that_is_not_whole_refuses_and_says_why(harm, kind, words):
    queue, world, call = CallQueue(), ready_world(), Call()
    harm(world)

    with pytest.raises(kind, match=words):
        await run(queue, world, "me", call, deadline())
    assert not call.begun.is_set()


async def test_a_call_on_some_ranks_needs_these_alone():
    queue, world, call = CallQueue(), ready_world(), Call()
    call.end.set()
    world.left(1)

    assert await run(queue, world, "me", call, deadline(), [0]) == "done"
    with pytest.raises(RankLost):
        await run(queue, world, "me", call, deadline(), [0, 1])


def test_calls_on_the_same_ranks_share_a_communicator_until_one_breaks_off():
    queue, world, other = CallQueue(), ready_world(), ready_world(1)
    first = queue.communicator(world, [0, 1])
    numbers = [
        first,
        queue.communicator(world, [1]),
        queue.communicator(world, [1, 0]),
        queue.communicator(other, [0, 1]),
    ]

    assert len({*numbers}) == 4
    assert queue.communicator(world, [0, 1]) == first

    queue.retire_communicator(world, first)
    assert queue.communicator(world, [0, 1]) not in numbers
    assert queue.communicator(world, [1]) == numbers[1]


def test_the_ranks_of_another_start_share_no_communicator_with_those_before():
    queue, world = CallQueue(), ready_world()
    first = queue.communicator(world, [0, 1])
    world.starts += 1
    assert queue.communicator(world, [0, 1]) != first


async def test_a_world_makes_no_calls_until_all_ranks_are_back_in_whatever_way():
    queue, world, call = CallQueue(), ready_world(ranks=3), Call()
    call.end.set()
    back, lost, given_up = (asyncio.get_running_loop().create_future() for _ in range(3))

    queue.block_until_back(world, dict(enumerate((back, lost, given_up))), "ranks 0-2 are in a sum")
    for future, end, away in (
        (back, lambda: back.set_result(None), (0, 1, 2)),
        (lost, lambda: lost.set_exception(OSError()), (1, 2)),
    ):
        with raises(CollectiveFailed, ranks=away):
            await run(queue, world, "me", call, deadline())
        end()
        await asyncio.sleep(0)
        assert future.done()
    given_up.cancel()
    await asyncio.sleep(0)

    assert await run(queue, world, "me", call, deadline()) == "done"


async def test_a_rank_that_does_not_come_back_holds_up_no_call_on_others():
    queue, world, call = CallQueue(), ready_world(), Call()
    call.end.set()
    stuck = asyncio.get_running_loop().create_future()
    queue.block_until_back(world, {1: stuck}, "rank 1 is in a sum")

    assert await run(queue, world, "me", call, deadline(), [0]) == "done"
    with raises(CollectiveFailed, ranks=(1,)):
        await run(queue, world, "me", call, deadline(), [0, 1])
    stuck.set_result(None)


async def test_ranks_that_come_back_late_say_nothing_of_the_next_start():
    queue, world = CallQueue(), ready_world()
    late = asyncio.get_running_loop().create_future()
    queue.block_until_back(world, {1: late}, "of the first start")
    world.begin()
    world.broken[1] = "of the second start"

    late.set_result(None)
    await asyncio.sleep(0)

    assert world.broken == {1: "of the second start"}
