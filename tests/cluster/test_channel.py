"""Events and answers during a call: from the ranks to the notebook and back."""

from __future__ import annotations

import threading
import time

import pytest

import workbench
from workbench.errors import CollectiveFailed, InvalidRequest
from workbench.extension import ask, has_listener, send


def _count(comm, number):
    for value in range(number):
        send((comm.rank, value))
    return has_listener()


def test_all_events_arrive_in_the_order_of_each_rank_before_the_result(client4):
    events = []
    call = workbench.spmd(client=client4)(_count).submit(200, on_event=events.append)
    assert call.result(60) == [True] * 4
    for rank in range(4):
        assert [event.value for event in events if event.rank == rank] == [(rank, value) for value in range(200)]
    assert len(events) == 800


def test_a_call_that_waits_gets_its_events_in_the_thread_of_the_caller(client4):
    threads = []
    ranks = workbench.run_on_ranks(
        _count,
        3,
        client=client4,
        ranks=[1, 3],
        on_event=lambda event: threads.append((event.rank, threading.get_ident())),
    )
    assert ranks == [True, True]
    assert sorted(threads) == [(number, threading.get_ident()) for number in (0, 0, 0, 1, 1, 1)]


def test_without_a_listener_events_are_dropped_and_questions_refused(client4):
    assert workbench.run_on_ranks(_count, 3, client=client4) == [False] * 4
    _count(None, 0)
    with pytest.raises(InvalidRequest):
        workbench.run_on_ranks(lambda _: ask("anything"), client=client4)


def test_ranks_wait_for_the_answers_to_their_questions(client4):
    def double(comm):
        return [ask(comm.rank + step) for step in range(3)]

    waiting = []

    def on_event(event):
        assert event.is_question
        waiting.append(event)
        if len(waiting) == 4:  # any order, and later than the event
            for question in reversed(waiting):
                question.answer(2 * question.value)
            waiting.clear()

    answers = workbench.spmd(client=client4)(double).submit(on_event=on_event).result(60)
    assert answers == [[2 * (rank + step) for step in range(3)] for rank in range(4)]


@pytest.mark.parametrize("waits", [True, False])
def test_an_error_of_on_event_ends_the_call_on_all_ranks(client4, waits):
    def forever(comm):
        send(comm.rank)
        while True:
            time.sleep(0.01)

    def on_event(event):
        raise KeyError(event.value)

    function = workbench.spmd(client=client4, on_event=on_event)(forever)
    with pytest.raises(KeyError):
        function() if waits else function.submit().result(60)
    assert workbench.run_on_ranks(lambda comm: comm.size, client=client4, timeout=60) == [4] * 4


def test_the_end_of_a_call_ends_the_wait_for_an_answer(client4):
    asked = threading.Event()
    call = workbench.spmd(client=client4)(lambda _: ask("when?")).submit(on_event=lambda _: asked.set())
    assert asked.wait(60)
    call.cancel()
    assert workbench.run_on_ranks(lambda comm: comm.size, client=client4, timeout=60) == [4] * 4
    with pytest.raises(CollectiveFailed):
        workbench.run_on_ranks(lambda _: ask("when?"), client=client4, timeout=0.5, on_event=lambda _: None)


def test_values_that_cannot_be_sent_are_refused_where_they_are_sent(client4):
    def refused(comm):
        for value in (bytes(2 << 20), threading.Lock()):
            with pytest.raises(InvalidRequest):
                send(value)
        return ask("size")

    answered = []

    def on_event(event):
        with pytest.raises(InvalidRequest):
            event.answer(bytes(2 << 20))
        event.answer(3)
        answered.append(event)

    assert workbench.run_on_ranks(refused, client=client4, ranks=[0], on_event=on_event) == [3]
    assert len(answered) == 1

    with pytest.raises(InvalidRequest):
        workbench.run_on_ranks(_count, 1, client=client4, ranks=[0], on_event=lambda event: event.answer(1))
