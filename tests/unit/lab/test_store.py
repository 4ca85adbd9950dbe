from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.patience import DEADLINE

from benchmarks.simulated import Simulated
from workbench.deploy import registry
from workbench.deploy.record import Record
from workbench.errors import ClusterNotFound, HeadUnreachable
from workbench.hints import Command
from workbench.host.processes import ProcessId
from workbench.lab.dashboard import diagnosis, head_source, overview
from workbench.lab.dashboard.head_source import HeadSource
from workbench.lab.dashboard.store import DataStore, RingBuffer
from workbench.lab.dashboard.theme import FIRST, MISSING, NOTHING, TOP, ColorScale
from workbench.metrics.schema import KEPT, RANK, TICK
from workbench.metrics.update import LOST, Layout, RankActivity, RankPlace, Update
from workbench.session.head_client import HeadClient

BEGAN = 1_800_000_000.0


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now=BEGAN):
        self.now = now

    def __call__(self):
        return self.now


class Altered:
    """A simulated cluster whose answers are altered."""

    def __init__(self, source, **fields):
        self.source, self.fields, self.error, self.asked = source, fields, None, 0

    async def ask(self, since):
        self.asked += 1
        if self.error is not None:
            raise self.error
        return dataclasses.replace(await self.source.ask(since), **self.fields)

    async def pair(self, source, target):
        return await self.source.pair(source, target)


def simulated(ranks=4, nodes=1, history=60.0):
    clock = Clock()
    source = Altered(Simulated(ranks, nodes, history=history, clock=clock))
    return source, DataStore(source, now=clock), clock


@given(st.lists(arrays(np.float64, st.tuples(st.integers(0, 30), st.just(2)), elements=st.floats(-1, 1)), max_size=12))
def test_a_ring_keeps_the_last_rows_of_all_that_were_added(blocks):
    ring = RingBuffer(7, (2,), np.float64)
    for block in blocks:
        ring.add(block)

    assert np.array_equal(ring.view, np.concatenate([np.zeros((0, 2)), *blocks])[-7:])


def test_a_simulated_cluster_tells_the_same_for_the_same_seed():
    told = [asyncio.run(Simulated(8, 2, seed=3, history=30, clock=Clock()).ask(0)).pack() for _ in range(2)]

    assert told[0] == told[1]


def test_what_a_simulated_cluster_tells_can_be_packed_and_has_shares_that_come_to_one():
    update = Update.unpack(asyncio.run(Simulated(512, 32, history=90, clock=Clock()).ask(0)).pack())

    shares = update.rank[:, :, [RANK.index(share) for share in ("compute", "mpi", "waiting", "idle")]]
    assert (update.by, update.traffic.bytes.shape) == ("node", (2, 32, 32))
    assert shares.min() >= -1e-6
    assert shares.sum(axis=2) == pytest.approx(1)


async def test_ten_minutes_are_kept_and_no_more():
    _, store, clock = simulated()
    for _ in range(40):
        clock.now += 20
        await store.refresh()

    times = store.at(None).times
    assert len(times) == KEPT / TICK
    assert np.allclose(np.diff(times), TICK)
    assert times[-1] == pytest.approx(clock.now)


async def test_only_what_is_new_is_asked_for():
    _, store, clock = simulated()
    await store.refresh()
    before = len(store.at(None).times)

    clock.now += 3 * TICK
    await store.refresh()

    assert len(store.at(None).times) == before + 3


async def test_a_moment_of_before_is_as_it_was_then():
    _, store, clock = simulated()
    await store.refresh()
    then = store.at(None)
    kept = then.of_ranks("cpu").copy()
    for _ in range(20):
        clock.now += 2
        await store.refresh()

    moment = store.at(then.time)
    assert np.array_equal(moment.times, then.times)
    assert np.array_equal(moment.of_ranks("cpu"), kept)
    assert np.array_equal(moment.update.traffic.bytes, then.update.traffic.bytes)
    assert store.at(clock.now + 99) is store.at(None)
    assert len(store.at(0.0).times) == 1


async def test_another_layout_begins_anew():
    source, store, clock = simulated()
    await store.refresh()
    source.source = Simulated(6, 2, history=5, clock=clock)
    source.fields["layout"] = dataclasses.replace(source.source.layout, number=2)
    source.source.began = clock.now - 100

    await store.refresh()

    moment = store.at(None)
    assert moment.rank.shape[1:] == (6, len(RANK))
    assert len(moment.names) == 6


async def test_two_who_look_share_one_that_asks_and_nobody_is_asked_when_they_have_gone():
    source, store, _ = simulated()
    told = [asyncio.Event(), asyncio.Event()]
    leave = [store.listen(event.set) for event in told]
    for event in told:
        await asyncio.wait_for(event.wait(), DEADLINE)

    assert source.asked == 1
    (asking,) = asyncio.all_tasks() - {asyncio.current_task()}
    for each in leave:
        each()
        each()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_head_that_does_not_answer_is_told_with_the_time_of_the_last_data():
    source, store, clock = simulated()
    await store.refresh()
    assert store.trouble == ""

    source.error = HeadUnreachable("the network is down")
    clock.now += 12
    await store.refresh()

    assert store.trouble.startswith("No answer from the head for 12 s; last data of ")
    assert store.trouble.endswith("the network is down")
    source.error = None
    await store.refresh()
    assert store.trouble == ""


async def test_where_no_rank_has_told_anything_there_are_no_last_data():
    source, store, clock = simulated(history=0.2)
    await store.refresh()

    source.error = OSError("gone")
    clock.now += 12
    await store.refresh()

    assert store.trouble == "No answer from the head for 12 s."


async def test_an_answer_that_cannot_be_read_is_told_and_the_next_one_is_taken():
    source, store, clock = simulated()
    await store.refresh()
    ticks = len(store.at(None).times)

    source.error = KeyError("core")
    await store.refresh()

    assert store.trouble.startswith("The answer of the head cannot be read (KeyError: 'core'); last data of ")
    source.error = None
    clock.now += TICK
    await store.refresh()
    assert store.trouble == ""
    assert len(store.at(None).times) >= ticks


class Connected(HeadClient):
    """A connection to a head that has these handlers."""

    def __init__(self, **handlers):
        self.handlers = SimpleNamespace(**handlers)

    @property
    def head(self):
        return self.handlers

    def unreachable(self, error):
        return HeadUnreachable(f"no answer: {error!r}")


@pytest.fixture
def head(tmp_path, monkeypatch):
    """Give the source of a cluster that runs in this process."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    registry.create(Record(name="a", ranks=2, state="ready", process=ProcessId.here()))
    return HeadSource("a")


@pytest.mark.parametrize("told", [{}, {"layout": 3}, {"layout": {"number": 1}}])
async def test_a_head_of_another_version_whose_answer_cannot_be_unpacked_is_unreachable(told, head):
    async def workbench_metrics(since):
        return told

    head.connection = Connected(workbench_metrics=workbench_metrics)

    with pytest.raises(HeadUnreachable):
        await head.ask(0)


async def test_the_first_answer_which_is_the_largest_may_take_longer_than_the_others(head, monkeypatch):
    answer = (await Simulated(2, 1).ask(0)).pack()

    async def workbench_metrics(since):
        await asyncio.sleep(0.01)
        return answer

    monkeypatch.setattr(head_source, "_ANSWER_TIMEOUT_S", 0.0)
    head.connection = Connected(workbench_metrics=workbench_metrics)

    assert (await head.ask(0)).layout.nodes == ("node001",)
    with pytest.raises(TimeoutError):
        await head.ask(1)


async def test_one_who_looks_and_fails_does_not_keep_the_others_from_it():
    _, store, _ = simulated()
    told = asyncio.Event()
    leave = [store.listen(lambda: {}["nothing"]), store.listen(told.set)]

    for _ in range(2):
        told.clear()
        await asyncio.wait_for(told.wait(), DEADLINE)

    for each in leave:
        each()


async def test_who_comes_when_what_asks_has_ended_is_told_again():
    _, store, _ = simulated()
    leave = store.listen(lambda: None)
    (asking,) = asyncio.all_tasks() - {asyncio.current_task()}
    asking.cancel()
    await asyncio.wait([asking])

    told = asyncio.Event()
    leave_too = store.listen(told.set)
    await asyncio.wait_for(told.wait(), DEADLINE)
    leave()
    leave_too()


async def test_the_end_of_a_cluster_is_told_in_its_words():
    source, store, _ = simulated()
    await store.refresh()
    source.error = ClusterNotFound("its walltime was over", hint=("Start another with ", Command("start"), "."))

    await store.refresh()

    assert store.trouble == "The cluster has ended: its walltime was over"
    assert store.at(None) is not None


async def test_a_cluster_of_another_version_is_told():
    source, store, _ = simulated()
    source.fields["state"] = {"version": "99.1"}

    await store.refresh()

    assert "has version 99.1" in store.trouble


async def test_the_rank_that_others_wait_for_is_the_worst_and_it_is_said_why():
    source, store, clock = simulated(8)
    clock.now = source.source.began + 110 * TICK
    await store.refresh()

    moment = store.at(None)
    (wait,) = moment.waits
    assert wait.awaited == (source.source.straggler,)
    assert overview.suspects(moment)[0].rank == source.source.straggler
    assert "keeps 7 ranks waiting in Allreduce; it is in" in overview.suspects(moment)[0].why
    words = diagnosis.describe_wait(moment.layout, moment.update.now, moment.valid_at, wait)
    assert words == (
        "Ranks 0-4, 6-7 have been in Allreduce of KMeans.fit for 5 s and wait for rank 5, "
        "which is in KMeans.fit, outside MPI for 5 s."
    )


async def test_a_rank_that_is_not_heard_of_is_worse_than_one_that_is_late():
    source, store, _ = simulated(4)
    source.fields["now"] = (
        RankActivity("", None, BEGAN),
        RankActivity("", None, BEGAN, silent=30.0),
        *[RankActivity("", None, BEGAN)] * 2,
    )

    await store.refresh()

    suspects = overview.suspects(store.at(None))
    assert (suspects[0].rank, suspects[0].why) == (1, "has sent no samples for 30 s")


async def test_a_rank_that_is_lost_is_the_worst_and_is_not_said_to_compute():
    source, store, _ = simulated(4)
    lost, waits = RankActivity(LOST, None, BEGAN - 12, silent=5.0), RankActivity("f", "Allreduce", BEGAN - 10)
    source.fields["now"] = (waits, waits, waits, lost)
    await store.refresh()

    moment = store.at(None)
    assert (overview.suspects(moment)[0].rank, overview.suspects(moment)[0].why) == (
        3,
        "was lost 12 s ago; results on it are lost",
    )
    assert diagnosis.describe_wait(moment.layout, moment.update.now, BEGAN, moment.waits[0]) == (
        "Ranks 0-2 have been in Allreduce of f for 10 s and wait for rank 3, which is lost (12 s ago)."
    )


def test_who_waits_for_a_message_waits_for_nobody_that_is_known():
    layout = Layout(1, (RankPlace(0, 0), RankPlace(1, 0)), ("a",), (2,))
    now = (RankActivity("f", "Recv", BEGAN), RankActivity("f", None, BEGAN))

    (wait,) = diagnosis.waits(now, BEGAN + 60)

    assert diagnosis.describe_wait(layout, now, BEGAN + 60, wait) == "Rank 0 has been in Recv of f for 1 min."


async def test_what_is_kept_of_large_matrices_is_bounded():
    source, store, clock = simulated()
    big = (await source.source.ask(0)).traffic
    big = dataclasses.replace(big, bytes=np.zeros((2, 900, 900)), messages=np.zeros((2, 900, 900)))
    source.fields |= {"traffic": big, "recent": big}
    for _ in range(6):
        clock.now += 11
        await store.refresh()

    assert store.at(BEGAN).valid_at == pytest.approx(clock.now, abs=TICK), "of the latest answer alone"


def test_numbers_of_a_heat_map_become_codes_that_tell_nothing_from_not_known():
    even = ColorScale.even(200.0).codes(np.array([0.0, 100.0, 200.0, 999.0, np.nan]))
    assert even.tolist() == [FIRST, 128, TOP, TOP, MISSING]

    numbers = np.array([0.0, 1.0, 1000.0, np.nan])
    scale = ColorScale.logarithms(numbers)
    assert scale.codes(numbers).tolist() == [NOTHING, FIRST, TOP, MISSING]
    assert ColorScale.logarithms(np.zeros(3)).codes(np.zeros(3)).tolist() == [NOTHING] * 3


def test_numbers_that_differ_by_a_factor_of_two_do_not_have_the_two_ends_of_the_ramp():
    numbers = np.array([12.0, 24.0])

    low, high = ColorScale.logarithms(numbers).codes(numbers)

    assert high == TOP
    assert low > (FIRST + TOP) / 2
