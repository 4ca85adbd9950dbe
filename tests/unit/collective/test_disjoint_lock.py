"""A lock of some members of a set."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.collective.operation import DisjointLock


class Holder:
    """A task that takes a lock, and holds the lock until `end`."""

    def __init__(self, lock, members=None):
        self.members, self.holds, self._end = members, False, asyncio.Event()
        self.task = asyncio.ensure_future(self._run(lock))

    async def _run(self, lock):
        async with lock.held(self.members):
            self.holds = True
            await self._end.wait()
        self.holds = False

    async def end(self):
        self._end.set()
        await self.task
        await settled()


async def settled():
    """Let all tasks run that can."""
    for _ in range(3):
        await asyncio.sleep(0)


async def holders(lock, *members):
    made = [Holder(lock, its) for its in members]
    await settled()
    return made


def held(made):
    return [holder.holds for holder in made]


async def test_disjoint_members_are_held_at_once_and_shared_ones_in_their_order():
    made = await holders(DisjointLock(), {0, 1}, {2, 3}, {1, 2}, {3})
    assert held(made) == [True, True, False, False]

    await made[1].end()
    assert held(made) == [True, False, False, True]
    await made[0].end()
    assert held(made) == [False, False, True, True]
    await made[2].end()
    await made[3].end()


async def test_who_waits_is_overtaken_only_by_those_that_want_none_of_its_members():
    made = await holders(DisjointLock(), {0}, {0, 1}, {1}, {2})

    # Member 1 is free, and wanted by the one before: it would starve if others of 1 came between.
    assert held(made) == [True, False, False, True]
    await made[0].end()
    assert held(made) == [False, True, False, True]
    for holder in made[1:]:
        await holder.end()


async def test_all_members_wait_for_everybody_and_everybody_later_for_them():
    made = await holders(DisjointLock(), {0}, None, {1}, None)

    assert held(made) == [True, False, False, False]
    await made[0].end()
    assert held(made) == [False, True, False, False]
    await made[1].end()
    assert held(made) == [False, False, True, False]
    await made[2].end()
    assert held(made) == [False, False, False, True]
    await made[3].end()


async def test_who_gives_up_waiting_lets_the_others_in():
    lock = DisjointLock()
    made = await holders(lock, {0}, None, {1})
    made[1].task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await made[1].task
    await settled()

    assert held(made) == [True, False, True]
    await made[0].end()
    await made[2].end()
    assert not lock.locked()


def of(members):
    return range(5) if members is None else members


members = st.one_of(st.none(), st.frozensets(st.integers(0, 4), min_size=1))


@given(st.lists(members, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_nobody_starves_and_nobody_shares_a_member_with_another_holder(wanted, random):
    async def run():
        lock = DisjointLock()
        arrived = await holders(lock, *wanted)
        waiting = list(arrived)
        ended = {member: [] for member in range(5)}
        while waiting:
            now = [holder for holder in waiting if holder.holds]
            assert now, "the first one always holds its members"
            taken = [member for holder in now for member in of(holder.members)]
            assert len(taken) == len({*taken})
            ends = random.choice(now)
            for member in of(ends.members):
                ended[member].append(arrived.index(ends))
            waiting.remove(ends)
            await ends.end()
        return ended

    for order in asyncio.run(run()).values():
        assert order == sorted(order), "first come, first served for each member"
