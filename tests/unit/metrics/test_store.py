"""What the head keeps of the reports of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from support.node_messages import joined, message

from workbench.metrics.schema import KINDS, NODE, RANK, TICK
from workbench.metrics.store import Store
from workbench.metrics.tables import frame
from workbench.metrics.update import SharedCores, Update, percents
from workbench.mpi.counters import OPERATIONS

CPU, SENT, RECEIVED = (RANK.index(name) for name in ("cpu", "sent", "received"))
MPI = KINDS.index("mpi")


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


class TimedStore(Store):
    """A store with the clock of the test."""

    def __init__(self, clock):
        super().__init__(lambda: {"name": "mine"}, clock)
        self.clock = clock


@pytest.fixture
def store(clock):
    store = TimedStore(clock)
    joined(store)
    tick(store)
    return store


def tick(store, *messages, seconds=TICK):
    store.clock.now += seconds
    for each in messages:
        store.take(each)
    store.tick()


def shares(update):
    """Return the last compute, mpi, waiting and idle of each rank."""
    return update.rank[-1][:, [RANK.index(name) for name in ("compute", "mpi", "waiting", "idle")]]


def test_ranks_are_in_the_order_of_their_numbers_with_their_nodes(store):
    layout = store.update().layout
    assert [place.rank for place in layout.ranks] == [0, 1, 2, 3]
    assert layout.nodes == ("a", "b")
    assert [place.node for place in layout.ranks] == [0, 0, 1, 1]


def test_it_is_known_when_one_of_some_ranks_has_last_got_on(store):
    assert store.got_on(0, range(4)) == store.got_on(7, [0]) == 0.0
    tick(store, message([0, 1], now=[("f", "Barrier", 40.0, 0.0), ("f", None, 50.0, 0.0)]))
    assert store.got_on(0, [0, 2]) == 40.0
    assert store.got_on(0, range(4)) == 50.0


def test_who_asks_is_told_what_is_new_since_then(store):
    before = store.update().seq
    assert not len(store.update(before).times)
    tick(store, message([0, 1], cpu=30.0))
    tick(store, message([0, 1], cpu=60.0))
    update = store.update(before)
    assert update.rank[:, 0, CPU].tolist() == [30.0, 60.0]
    assert np.isnan(update.rank[:, 2, CPU]).all(), "rank 2 has told nothing"
    assert update.state == {"name": "mine"}


def test_what_is_kept_of_ten_minutes_is_all_that_is_kept(store):
    for _ in range(1300):
        tick(store)
    assert len(store.update().times) == 1200


def test_traffic_is_as_it_was_told_however_often(store):
    first = [(0, 3, MPI, 100.0, 2.0), (1, 0, MPI, 7.0, 1.0), (1, 0, 0, 5.0, 1.0)]
    tick(store, message([0, 1], sent=first))
    tick(store, message([0, 1], sent=[(0, 3, MPI, 300.0, 4.0)]))
    tick(store, message([0, 1], sent=first[1:]), seconds=20.0)
    update = store.update()
    expected = np.zeros((2, 4, 4))
    expected[MPI, 0, 3], expected[MPI, 1, 0], expected[0, 1, 0] = 300.0, 7.0, 5.0
    assert np.array_equal(update.traffic.bytes, expected)
    assert update.traffic.messages[MPI, 0, 3] == 4.0
    assert not update.recent.bytes.any(), "nothing in the last ten seconds"


def test_what_was_sent_lately_and_the_rates_of_ranks_are_differences(store):
    tick(store, message([0, 1], sent=[(0, 1, MPI, 1000.0, 1.0)]))
    tick(store, message([0, 1], sent=[(0, 1, MPI, 1500.0, 2.0)]))
    update = store.update()
    assert update.recent.bytes[MPI, 0, 1] == 1500.0
    assert update.rank[-1, 0, SENT] == 1000.0, "500 bytes in half a second"
    assert update.rank[-1, 1, RECEIVED] == 1000.0


def test_what_was_sent_lately_is_right_after_the_clock_of_the_head_was_set_back(store):
    for number, seconds in enumerate([10.0, -900.0, *(TICK,) * 40]):
        tick(store, message([0, 1], sent=[(0, 1, MPI, 1000.0 + 100 * number, 1.0)]), seconds=seconds)
    update = store.update()
    assert update.recent.bytes[MPI, 0, 1] == 2000.0, "100 bytes in each half second of ten seconds"
    assert update.rank[1:, 0, SENT].max() == 200.0, "100 bytes in half a second"
    assert len(store.pair(0, 1)[0]) > 1


def test_viewers_get_another_history_when_the_clock_of_the_head_was_set_back(store):
    tick(store)
    before = store.update()
    for seconds in (-900.0, TICK):
        tick(store, seconds=seconds)
    after = store.update(before.seq)
    assert after.layout.number > before.layout.number, "a viewer drops the times that are later than now"
    assert store.update().times.tolist() == [before.times[-1] - 900.0, before.times[-1] - 899.5]


def test_a_pair_has_a_history(store):
    for total in (0.0, 100.0, 100.0, 400.0):
        tick(store, message([0, 1], sent=[(0, 1, MPI, total, 1.0)]), seconds=1.0)
    times, rates = store.pair(0, 1)
    assert times.tolist()[-3:] == [1002.5, 1003.5, 1004.5]
    assert rates[-3:, MPI].tolist() == [100.0, 0.0, 300.0]
    assert len(store.pair(0, 99)[0]) == 0


def test_above_64_ranks_traffic_is_between_nodes(clock):
    store = TimedStore(clock)
    joined(store, 96, ("a", "b", "c"))
    # rank 40 of node b to node a, which rank 0 stands for; rank 33 to its own node
    tick(store, message([32, 33, 40], "b", sent=[(40, 0, MPI, 10.0, 1.0), (33, 32, MPI, 3.0, 1.0), (41, 0, MPI, 1, 1)]))
    update = store.update()
    assert update.by == "node"
    assert update.traffic.bytes[MPI].tolist() == [[0, 0, 0], [11, 3, 0], [0, 0, 0]]
    assert np.isnan(update.rank[-1, 0, RECEIVED])


def test_a_rank_that_is_lost_stays_on_screen_and_its_numbers_end(store):
    tick(store, message([0, 1], cpu=30.0, now=[("f", "Bcast", 5.0, 0.0)] * 2))
    store.left(0, 1)
    tick(store, message([0, 1], cpu=30.0))
    update = store.update()
    assert update.now[1].is_lost
    assert not update.now[0].is_lost
    assert update.now[1].since == 1001.0
    assert np.isnan(update.rank[-1, 1]).all()
    assert update.rank[-1, 0, CPU] == 30.0


def test_a_world_that_starts_again_begins_with_nothing(store):
    tick(store, message([0, 1], sent=[(0, 1, MPI, 1000.0, 1.0)], operations=[(0, "Send", 1, 1000.0, 0.5)]))
    for rank in range(4):
        store.left(0, rank)
    assert len(store.update().now) == len(store.update().layout.ranks)
    joined(store, start="second")
    assert len(store.update().now) == len(store.update().layout.ranks), "also before the next tick"
    tick(store, message([0, 1], sent=[(0, 1, MPI, 1000.0, 1.0)]))
    update = store.update()
    assert not update.traffic.bytes.any(), "what was on its way belongs to the first start"
    assert not update.operations.any()
    assert [its.what for its in update.now] == [""] * 4


def test_the_next_world_takes_the_place_of_the_world(store):
    tick(store, message([0, 1], cpu=30.0, sent=[(0, 1, MPI, 1000.0, 1.0)]))
    joined(store, 2, ("c",), world=1)
    store.left(0, 1)
    tick(store, message([0, 1], cpu=30.0, sent=[(0, 1, MPI, 1000.0, 1.0)]))
    update = store.update()
    assert (update.layout.nodes, len(update.layout.ranks)) == (("c",), 2)
    assert not update.now[1].is_lost, "what is told of the former world comes too late"
    assert np.isnan(update.rank[-1, :, CPU]).all()
    assert not update.traffic.bytes.any()
    assert store.got_on(0, [0]) == 0.0


def test_a_rank_that_tells_nothing_any_more_has_no_numbers(store):
    tick(store, message([0, 1], cpu=30.0))
    tick(store)
    assert store.update().rank[-1, 0, CPU] == 30.0, "a message may be late"
    tick(store, seconds=4.0)
    assert np.isnan(store.update().rank[-1, 0, CPU])


def test_time_is_split_in_four(store):
    told = message([0], busy=0.9, stuck=0.2, waits=0.1, closed=0.4)
    tick(store, told)
    assert shares(store.update())[0].tolist() == pytest.approx([0.2, 0.4, 0.3, 0.1]), "of nothing is known who waited"


def test_who_comes_early_waits_and_the_last_does_not(store, clock):
    begin = clock.now
    early = [(0, 77, number, "Allreduce", begin + number, begin + number + 0.5) for number in range(4)]
    late = [(1, 77, number, "Allreduce", begin + number + 0.4, begin + number + 0.5) for number in range(4)]
    alone = [(0, 78, 0, "Bcast", begin, begin + 9.0)]
    tick(store, message([0, 1], synchronizations=early + late + alone), seconds=6.0)
    for _ in range(8):  # the share is that of some seconds
        early = [(0, 77, number, "Allreduce", clock.now, clock.now + 0.5) for number in range(4, 5)]
        late = [(1, 77, number, "Allreduce", clock.now + 0.4, clock.now + 0.5) for number in range(4, 5)]
        tick(store, message([0, 1], synchronizations=early + late, busy=1.0, closed=0.5), seconds=2.0)
    tick(store, message([0, 1], busy=1.0, closed=0.5, operations=[(0, "Allreduce", 1, 8.0, 10.0)]))
    update = store.update()
    first, last = shares(update)[:2]
    assert first.tolist() == pytest.approx([0.5, 0.1, 0.4, 0.0], abs=0.01)
    assert last.tolist() == pytest.approx([0.5, 0.5, 0.0, 0.0], abs=0.01)
    calls, sent, seconds, waiting = update.operations[OPERATIONS.index("Allreduce")]
    assert (calls, sent, seconds) == (1, 8.0, 10.0)
    assert waiting == pytest.approx(10.0 * 0.4 / 0.6, abs=0.2), "0.4 of 0.5 s here, none of 0.1 s there"


def test_what_ranks_have_waited_so_far_is_known_to_the_meeting(store, clock):
    begin = clock.now

    def barrier(number, entered, left):
        return [(rank, 77, number, "Barrier", begin + at, begin + left + rank / 10) for rank, at in enumerate(entered)]

    first, second = barrier(1, (0.0, 0.3), 0.3), barrier(2, (0.5, 0.6), 0.6)
    tick(
        store,
        message([0, 1], synchronizations=[first[0], *second]),
        message([0, 1], synchronizations=[first[1]]),
        seconds=1.0,
    )
    assert store.wait_times(begin) == []

    # rank 0 left the second barrier by then, rank 1 had not
    [early, late] = store.wait_times(begin + 0.65)
    assert early == (0, "Barrier", pytest.approx(0.3), pytest.approx(0.3))
    assert late == (1, "Barrier", 0.0, pytest.approx(0.1))
    [early, late] = store.wait_times(begin + 1.0)
    assert early == (0, "Barrier", pytest.approx(0.4), pytest.approx(0.4))
    assert late == (1, "Barrier", 0.0, pytest.approx(0.2))


def test_the_wait_times_of_a_mark_are_exact_though_the_head_is_late(store, clock):
    begin = store.mark()

    def barrier(number, entered, left):
        return [(rank, 77, number, "Barrier", begin + at, begin + left) for rank, at in enumerate(entered)]

    tick(store, message([0, 1], synchronizations=barrier(1, (0.2, 0.8), 0.9)), seconds=1.0)
    end = store.mark()
    tick(store, seconds=5.0)
    tick(store)

    assert store.wait_times(begin) == []
    assert [row[2] for row in store.wait_times(end)] == pytest.approx([0.6, 0.0])
    forgotten = store.mark()
    tick(store, message([0, 1], synchronizations=barrier(2, (9.2, 9.8), 9.9)), seconds=5.0)
    tick(store, seconds=100.0)
    assert [row[2] for row in store.wait_times(forgotten)] == pytest.approx([1.2, 0.0]), "of a client that has died"


def test_the_wait_times_of_two_marks_at_nearly_the_same_time_are_apart(store, clock):
    first = store.mark()
    clock.now += 0.3
    second = store.mark()
    barrier = [(rank, 77, 1, "Barrier", first + 0.1 * rank, first + 0.2) for rank in (0, 1)]
    store.take(message([0, 1], synchronizations=barrier))
    clock.now += 1.3  # no tick in between

    assert len(store.wait_times(second)) == 2
    assert store.wait_times(first) == []


def test_nodes_and_cores_are_those_of_the_nodes(store):
    tick(store, message([0], "a", cores=2), message([2], "b", cores=3))
    tick(store, message([0], "a", cores=2), message([2], "b", cores=3))
    update = store.update()
    assert update.layout.cores == (2, 3)
    assert update.core[-1].tolist() == [50] * 5
    assert update.node[-1, 1].tolist() == list(range(len(NODE)))


def test_ranks_share_the_cores_of_their_nodes(store):
    assert store.update().layout.shared_cores == ()
    joined(store, 6, start="second", cpus=lambda rank: (rank % 2,))
    tick(store)
    assert store.update().layout.shared_cores[0] == SharedCores(0, 2, (0, 1, 2))


def test_what_fits_tell_is_told_once(store):
    before = store.update().seq
    store.report({"fit": "1", "step": 1.0})
    assert store.update(before).fits == [], "with the tick that it belongs to"
    tick(store)
    assert store.update(before).fits == [{"fit": "1", "step": 1.0}]
    assert store.update(store.update().seq).fits == []


def test_an_update_is_the_same_after_its_journey(store):
    tick(store, message([0, 1], cpu=30.0, sent=[(0, 3, MPI, 100.0, 2.0)], sizes=[(0, MPI, 3)]))
    update = store.update()
    again = Update.unpack(update.pack())
    for name in ("times", "rank", "node", "core", "operations", "sizes"):
        assert np.array_equal(getattr(again, name), getattr(update, name), equal_nan=True), name
    assert np.array_equal(again.traffic.bytes, update.traffic.bytes)
    assert (again.seq, again.layout, again.now, again.by) == (update.seq, update.layout, update.now, update.by)


def test_messages_of_worlds_that_nobody_knows_are_nobodys(store):
    store.take(message([0], world=7))
    tick(store)
    assert len(store.update().layout.ranks) == 4


def test_of_a_node_that_tells_nothing_any_more_nothing_is_known(store):
    tick(store, message([0, 1], "a"))
    assert np.isfinite(store.update().node[-1, 0]).all()
    joined(store, 2, ("a",), world=1)
    tick(store, message([0, 1], "a", world=1), seconds=10.0)
    assert np.isfinite(store.update().node[-1, 0]).all(), "another world tells"
    tick(store, seconds=10.0)
    assert np.isnan(store.update().node[-1, 0]).all()
    assert np.isnan(percents(store.update().core[-1])).all()
    assert np.isnan(frame(store.update(), "cores")["percent"].iloc[-1])


def test_synchronizations_of_other_times_are_none_of_now(store, clock):
    ahead = clock.now + 5000.0
    barrier = [(rank, 1, 1, "Barrier", ahead, ahead + 1) for rank in (0, 1)]
    tick(store, message([0, 1], synchronizations=barrier))
    tick(store, seconds=5010.0)
    assert store.wait_times(store.mark()) == []


def test_one_fit_that_tells_much_takes_nothing_from_others(store):
    store.report({"fit": "small", "step": 1.0})
    for step in range(5000):
        store.report({"fit": "large", "step": float(step)})
    for fit in range(30):
        store.report({"fit": f"{fit}", "step": 1.0})
    tick(store)
    told = store.update().fits
    assert {"fit": "small", "step": 1.0} in told
    assert sum(its["fit"] == "large" for its in told) == 1000


def test_a_training_that_begins_anew_is_another_one(store):
    for step in (0.0, 1.0, 1.0, 2.0, 0.0, 1.0):
        store.report({"fit": "mine", "step": step})
    tick(store)
    assert [(its["fit"], its["step"]) for its in store.update().fits] == [
        ("mine", 0.0),
        ("mine", 1.0),
        ("mine", 1.0),
        ("mine", 2.0),
        ("mine, run 2", 0.0),
        ("mine, run 2", 1.0),
    ]


def test_ranks_that_all_report_keep_their_curves_however_many_they_are(store):
    for step in range(3):
        for rank in range(512):
            store.report({"fit": f"training, rank {rank}", "step": float(step)})
    tick(store)
    steps = [(its["fit"], its["step"]) for its in store.update().fits]
    assert len(steps) == len(set(steps)) == 3 * 512


def test_the_records_of_all_fits_are_limited_and_those_of_the_oldest_go_first(store):
    for fit in range(60):
        for step in range(1000):
            store.report({"fit": str(fit), "step": float(step)})
    tick(store)
    fits = store.update().fits
    assert {its["fit"] for its in fits} == set(map(str, range(10, 60)))
    assert len(fits) == 50_000
    for number in range(100_000):
        store.report({"fit": f"other {number}", "step": 0.0})
    store.report({"fit": "59", "step": 0.0})
    tick(store)
    assert store.update().fits[-1]["fit"] == "59", "its earlier run is forgotten"
