"""Which rank reports for a node, and what it reports."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
from support.patience import DEADLINE
from support.processes import until

from workbench.metrics import sampler as clock_module
from workbench.metrics.node_message import OPERATION_TOTALS, SENT, WHEN, WHO, rows
from workbench.metrics.node_reporter import NodeReporter
from workbench.metrics.sampler import HeadClock
from workbench.metrics.schema import SAMPLED
from workbench.metrics.shared_slots import FinishedCall, RankSample, SharedSlots
from workbench.mpi.counters import OPERATIONS


@pytest.fixture
def board(tmp_path):
    board = SharedSlots(tmp_path / "board")
    yield board
    board.close()


class Node:
    """Ranks 2 and 3 of four are on this node."""

    def __init__(self, board):
        self.board, self.said, self.ahead = board, {2: [], 3: []}, 0.0
        self.reports = {rank: self._report(rank) for rank in (2, 3)}

    def _report(self, rank):
        context = SimpleNamespace(rank=rank, nodes=(0, 0, 2, 2), world=1)
        return NodeReporter(context, self.board, "first", self.said[rank].append, lambda: self.ahead)

    def tell(self, rank, *, ago=0.0, **facts):
        values = {name: facts.pop(name, 0.0) for name in SAMPLED}
        known = {"time": time.monotonic() - ago, "pid": os.getpid(), "values": values}
        self.board.write(rank, RankSample(**known | facts))

    def tick(self):
        for report in self.reports.values():
            report.tick()

    def begin(self):
        """Have rank 2 report for the node."""
        self.tell(2)
        self.tell(3)
        self.tick()


@pytest.fixture
def node(board):
    return Node(board)


def test_the_first_rank_of_a_node_speaks_for_all_of_them(node):
    node.begin()
    node.tell(2, cpu=20.0)
    node.tell(3, cpu=30.0, what="f", operation="Bcast", since=time.monotonic() - 5)
    node.tick()
    [said] = node.said[2]
    assert node.said[3] == []
    assert (said["world"], said["start"], said["ranks"]) == (1, "first", [2, 3])
    assert rows(said["values"], SAMPLED)[:, SAMPLED.index("cpu")].tolist() == [20.0, 30.0]
    what, operation, since, silent = said["now"][1]
    assert (what, operation, silent) == ("f", "Bcast", 0.0)
    assert time.time() - since == pytest.approx(5, abs=1)


def test_totals_are_said_when_they_have_changed(node):
    node.begin()
    for sent in (10, 10, 30):
        node.tell(2, sent={1: {0: [sent, 1]}}, operations={"Send": [1, sent, 0.5], "unheard of": [1, 0, 0.5]})
        node.tick()
    first, second, third = node.said[2]
    assert rows(first["sent"], SENT).tolist() == [[2, 0, 1, 10, 1]]
    assert {tuple(row) for row in rows(first["operations"], OPERATION_TOTALS).tolist()} == {
        (2, OPERATIONS.index("Send"), 1, 10, 0.5),
        (2, OPERATIONS.index("other"), 1, 0, 0.5),
    }
    assert second["sent"] == b""
    assert rows(third["sent"], SENT).tolist() == [[2, 0, 1, 30, 1]]


def test_another_rank_speaks_when_the_first_is_silent_and_says_for_how_long(node, monkeypatch):
    node.begin()
    node.tell(2, ago=4.0, cpu=20.0, sent={1: {0: [10, 1]}})
    for _ in range(2):
        node.tell(3)
        node.reports[3].tick()
    [said] = node.said[3]
    assert said["ranks"] == [2, 3]
    assert said["now"][0][3] == pytest.approx(4.0, abs=1)
    assert rows(said["sent"], SENT).tolist() == [[2, 0, 1, 10, 1]], "all totals"
    values = rows(said["values"], SAMPLED)[0]
    assert values[SAMPLED.index("memory")] > 1e6, "seen from outside"
    assert values[SAMPLED.index("busy")] == 1.0


def test_of_a_rank_that_is_gone_nothing_is_seen_from_outside(node):
    node.begin()
    node.tell(2, ago=4.0, cpu=20.0, pid=2**22 + 1)
    for _ in range(2):
        node.tell(3)
        node.reports[3].tick()
    values = rows(node.said[3][0]["values"], SAMPLED)[0]
    assert values[SAMPLED.index("cpu")] == values[SAMPLED.index("busy")] == 0.0


def test_what_is_over_is_said_once_by_whoever_speaks(node):
    node.begin()
    now = time.monotonic()
    over = FinishedCall("abc", "f", now - 1, now, mpi=0.5, operations=3, bytes=80)
    met = (7, 1, "Bcast", now - 1, now)
    for _ in range(2):
        node.tell(2, ended=[over], synchronizations=[met])
        node.tick()
    first, second = node.said[2]
    assert [its["call"] for its in first["ended"]] == ["abc"]
    assert rows(first["who"], WHO, np.int64).tolist() == [[2, 7, 1, OPERATIONS.index("Bcast")]]
    assert rows(first["when"], WHEN)[0, 1] == pytest.approx(time.time(), abs=5)
    assert (second["ended"], second["who"]) == ([], b"")
    # Rank 2 stands still, and rank 3 takes over: it does not say again what rank 2 has said.
    for _ in range(2):
        node.tell(2, ago=4.0, ended=[over], synchronizations=[met])
        node.tell(3)
        node.reports[3].tick()
    assert [said["ended"] for said in node.said[3]] == [[]]
    assert [said["who"] for said in node.said[3]] == [b""]
    # and rank 2 comes back, and does not know that another rank has reported
    node.reports[2]._last_tick -= 10.0
    for _ in range(3):
        node.tell(2, ended=[over], synchronizations=[met])
        node.tick()
    assert [said["ended"] for said in node.said[2][2:]] == [[]]


def test_times_are_those_of_the_head_and_synchronizations_wait_until_its_clock_is_known(node):
    node.begin()
    for ahead in (None, 1000.0):
        node.ahead = ahead
        now = time.monotonic()
        node.tell(2, what="f", since=now, synchronizations=[(7, 1, "Bcast", now - 1, now)])
        node.tick()
    unknown, known = node.said[2]
    assert unknown["who"] == b""
    assert unknown["now"][0][2] == pytest.approx(time.time(), abs=5)
    assert known["now"][0][2] == pytest.approx(time.time() + 1000, abs=5)
    assert rows(known["when"], WHEN)[0, 1] == pytest.approx(time.time() + 1000, abs=5)


async def test_the_clock_of_the_head_is_that_of_the_quickest_answer():
    import asyncio

    answers = iter([(0.6, 70.0), (0.0, 50.0), (0.3, 60.0), (0.6, 70.0), (0.6, 70.0)])

    class Scheduler:
        async def workbench_time(self):
            waits, ahead = next(answers)
            # all of the way takes the answer
            await asyncio.sleep(waits)
            return time.time() + ahead

    clock = HeadClock(SimpleNamespace(scheduler=Scheduler()), is_local=False)
    assert clock.ahead() is None
    assert HeadClock(SimpleNamespace(), is_local=True).ahead() == 0.0
    watching = asyncio.ensure_future(clock.watch())
    await asyncio.to_thread(until, "the answers", lambda: clock.ahead() is not None)
    watching.cancel()
    assert clock.ahead() == pytest.approx(50.0, abs=0.5)


async def test_only_a_rank_that_speaks_for_its_node_asks_the_head_for_the_time(monkeypatch):
    import asyncio

    monkeypatch.setattr(clock_module, "_DEMAND_POLL_INTERVAL_S", 0)
    asked = asyncio.Event()

    class Scheduler:
        async def workbench_time(self):
            asked.set()
            return time.time()

    clock = HeadClock(SimpleNamespace(scheduler=Scheduler()), is_local=False)
    watching = asyncio.ensure_future(clock.watch())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not asked.is_set()
    clock.ahead()  # as the reporting rank does twice per second
    await asyncio.wait_for(asked.wait(), DEADLINE)
    watching.cancel()


async def test_a_head_that_does_not_answer_is_asked_again_later():
    import asyncio

    asked = asyncio.Event()

    class Scheduler:
        async def workbench_time(self):
            asked.set()
            raise OSError("gone")

    clock = HeadClock(SimpleNamespace(scheduler=Scheduler()), is_local=False)
    clock.ahead()
    watching = asyncio.ensure_future(clock.watch())
    await asyncio.wait_for(asked.wait(), DEADLINE)
    await asyncio.sleep(0)
    assert not watching.done()
    assert clock.ahead() is None
    watching.cancel()
