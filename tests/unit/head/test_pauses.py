"""Ranks that are paused for long are reported once, with the reason, and when they start tasks again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from distributed.core import Status

from workbench.head.pauses import Pauses


class Rank:
    """A worker of the scheduler, and the rank that answers for it."""

    def __init__(self, rank, free=1 << 40):
        self.address, self.extra = f"tls://{rank}", {"workbench": {"world": 0, "rank": rank}}
        self.status, self.metrics, self.memory_limit = Status.running, {"memory": 340 << 20}, 400 << 20
        self.free = free

    async def workbench_room(self):
        if self.free is None:
            raise OSError("lost")
        return {"folder": "/scratch/spill", "free": self.free, "largest": 8 << 20}


@pytest.fixture
def watched():
    """Return ranks, their pauses, and the reports."""
    ranks, reports = [Rank(0), Rank(1)], []
    scheduler = SimpleNamespace(
        workers={rank.address: rank for rank in ranks},
        rpc=lambda address: next(rank for rank in ranks if rank.address == address),
    )
    pauses = Pauses(scheduler, lambda message, kind: reports.append((kind, message)))
    return SimpleNamespace(ranks=ranks, pauses=pauses, reports=reports)


async def test_a_long_pause_is_reported_once_and_its_end_too(watched):
    first, second = watched.ranks
    first.status = Status.paused
    for now in (0, 9, 10, 11):
        await watched.pauses.look(now)
    [(kind, message)] = watched.reports
    assert kind == "paused"
    assert message.startswith("rank 0 is paused and starts no tasks: 340.00 MiB of 400.00 MiB memory. Delete results")
    second.status = Status.paused
    for now in (12, 22):
        await watched.pauses.look(now)
    assert watched.reports[1][0] == "", "the notebook has a notice already"
    assert watched.reports[1][1].startswith("ranks 0, 1 are paused and start no tasks")

    first.status = Status.running
    await watched.pauses.look(23)
    second.status = Status.running
    for now in (24, 25):
        await watched.pauses.look(now)
    assert watched.reports[2:] == [("paused", "no rank is paused any more")]


async def test_short_pauses_of_a_rank_that_spills_its_results_are_not_reported(watched):
    for now in range(40):
        watched.ranks[0].status = Status.running if now % 8 == 0 else Status.paused
        await watched.pauses.look(now)
    assert watched.reports == []


@pytest.mark.parametrize("other", [1 << 40, None])
async def test_a_full_disk_is_named_also_if_another_rank_does_not_answer(watched, other):
    watched.ranks[0].free, watched.ranks[1].free = other, 4096
    for rank in watched.ranks:
        rank.status = Status.paused
    for now in (0, 10):
        await watched.pauses.look(now)
    [(_, message)] = watched.reports
    assert "/scratch/spill, to which results are spilled, is full (4.00 kiB free)" in message
    assert message.endswith("or free space there")
