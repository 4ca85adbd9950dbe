"""Counts of calls add up, while they run and when they have ended, and ranks share a sample of synchronizations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from workbench.mpi.call_state import CallState
from workbench.mpi.counters import OPERATIONS, SIZES, STEP, Counters, Meter, size_bin


def counted(counters: Counters, nbytes: int) -> None:
    counters.called("Send", 0.25)
    counters.operations["Send"][1] += nbytes
    counters.sent[2][0] += nbytes
    counters.sent[2][1] += 1
    uniform = counters.uniform["Send", (0, 2)]
    uniform[0] += 8
    uniform[1 + size_bin(8)] += 1
    counters.sizes[size_bin(nbytes)] += 1


def test_the_sum_is_the_same_while_calls_run_and_when_they_have_ended():
    meter = Meter()
    one, other = meter.open(), meter.open()
    counted(one, 100)
    counted(other, 3)
    meter.close(one)
    for _ in range(2):
        sums = meter.snapshot()
        assert dict(sums.operations) == {"Send": [2, 103 + 32, 0.5]}
        assert dict(sums.sent) == {2: [119, 4], 0: [16, 2]}
        assert (sums.sizes[7], sums.sizes[2], sums.sizes[4], sum(sums.sizes)) == (1, 1, 4, 6)
        assert not sums.uniform
        meter.close(other)


def test_a_call_is_added_once():
    meter = Meter()
    call = meter.open()
    counted(call, 1)
    meter.close(call)
    meter.close(call)
    assert meter.snapshot().operations["Send"] == [1, 1 + 16, 0.25]


def test_calls_that_run_at_once_have_counts_of_their_own():
    meter = Meter()
    one, other = meter.open(), meter.open()
    counted(one, 100)
    assert one.operations["Send"][1] == 100
    assert not other.operations
    assert not other.sent


def test_a_meeting_is_told_once_whether_its_call_goes_on_or_not():
    meter = Meter()
    call = meter.open()
    call.synchronized(5, 1, "Barrier", 1.0, 2.0)
    assert meter.snapshot().synchronizations == [(5, 1, "Barrier", 1.0, 2.0)]
    call.synchronized(5, 2, "Barrier", 3.0, 4.0)
    meter.close(call)
    assert meter.snapshot().synchronizations == [(5, 2, "Barrier", 3.0, 4.0)]
    assert meter.snapshot().synchronizations == []


def meet(counters: Counters, numbers: range, operations: Sequence[str] = ("Barrier",)) -> None:
    for number in numbers:
        counters.synchronized(5, number * STEP, operations[number % len(operations)], 1.0, 2.0)


def test_of_many_synchronizations_those_are_kept_that_others_keep_as_well():
    one, other = Counters(), Counters()
    meet(other, range(1, 101))
    other.take_synchronizations()
    meet(one, range(1, 1001))
    meet(other, range(101, 1001))
    ones, others = ({its[1] for its in each.take_synchronizations()} for each in (one, other))
    assert max(len(ones), len(others)) <= 32
    assert len(ones & others) >= 8


@pytest.mark.parametrize("period", [2, 3, 4, 8, 16])
def test_of_a_loop_all_operations_are_kept(period):
    counters, kept = Counters(), Counter[str]()
    for tick in range(10):
        meet(counters, range(tick * 3000, (tick + 1) * 3000), OPERATIONS[:period])
        kept.update(its[2] for its in counters.take_synchronizations())
    assert len(kept) == period
    assert max(kept.values()) <= 2 * min(kept.values())


def test_with_few_synchronizations_all_of_them_are_kept_again():
    counters = Counters()
    meet(counters, range(1, 1001))
    while counters.mask:
        counters.take_synchronizations()
    meet(counters, range(1001, 1006))
    assert [its[1] // STEP for its in counters.take_synchronizations()] == [1001, 1002, 1003, 1004, 1005]


def test_of_many_short_calls_the_synchronizations_of_some_are_kept():
    kept = []
    for sampled in (None, 300):
        meter = Meter()
        for call in range(1000):
            key, counters = call * 7_654_321, meter.open()
            counters.synchronized(key, STEP, "Barrier", 1.0, 2.0)
            counters.synchronized(key, 2 * STEP, "Bcast", 2.0, 3.0)
            meter.close(counters)
            if call == sampled:
                meter.snapshot()
        told = meter.snapshot().synchronizations
        assert len(told) <= 32
        kept.append({its[:2] for its in told})
    assert len(kept[0] & kept[1]) >= 8


def test_messages_are_told_apart_by_powers_of_two():
    assert [size_bin(nbytes) for nbytes in (0, 1, 2, 3, 4, 1023, 1024)] == [0, 1, 2, 2, 3, 10, 11]
    assert size_bin(1 << 60) == SIZES - 1


def test_no_operation_is_there_twice():
    assert len(set(OPERATIONS)) == len(OPERATIONS)


def test_a_watch_counts_calls_and_their_seconds():
    watch = CallState(Counters())
    with watch.entered("Bcast"):
        pass
    watch.enter("Bcast")
    watch.leave()
    watch.leave()
    assert watch.counters is not None
    calls, nbytes, seconds = watch.counters.operations["Bcast"]
    assert (calls, nbytes) == (2, 0)
    assert 0 <= seconds < 1
    assert [*watch.counters.operations] == ["Bcast"]


def test_a_watch_without_counters_counts_nothing():
    watch = CallState()
    with watch.entered("Bcast"):
        pass
    assert watch.counters is None
