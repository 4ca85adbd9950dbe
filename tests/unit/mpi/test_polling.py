"""What a thread does, and that it is to stop."""

from __future__ import annotations

import json
import threading
import time

import pytest
from support.patience import DEADLINE
from support.raised import raises

from workbench.call_stack import whereabouts
from workbench.errors import CollectiveFailed
from workbench.mpi import polling
from workbench.mpi.call_state import CallCancelled, CallState
from workbench.mpi.polling import barrier_or_cancel, poll


def test_a_watch_knows_the_operation_and_how_many_there_were():
    watch = CallState()
    assert (watch.operation, watch.count, watch.ended) == (None, 0, None)
    with watch.entered("Bcast"):
        entered = watch.since
        assert (watch.operation, watch.count) == ("Bcast", 1)
    assert (watch.operation, watch.count) == (None, 1)
    assert watch.since >= entered


def test_all_operations_of_a_call_that_was_ended_raise_the_first_reason():
    watch = CallState()
    watch.check()
    watch.end("rank 2 raised ValueError")
    watch.end("the client has gone")
    with raises(CallCancelled, args=("rank 2 raised ValueError",)):
        watch.check()
    with raises(CallCancelled, args=("rank 2 raised ValueError",)):
        watch.enter("Bcast")
    assert watch.operation is None


def test_the_end_of_a_call_is_not_swallowed_by_code_that_goes_on_after_errors():
    assert not issubclass(CallCancelled, Exception)


def test_an_attempt_is_made_until_it_succeeds():
    results = iter([None, 0, [], "found", "later"])
    assert poll(lambda: next(results), lambda: None) == "found"


def test_waiting_is_broken_off_by_the_check():
    watch = CallState()
    threading.Timer(0.01, watch.end, ["because"]).start()
    with raises(CallCancelled, args=("because",)):
        poll(lambda: False, watch.check)


def test_long_waiting_takes_little_of_the_core():
    until_then = time.monotonic() + 0.3
    before = time.thread_time()
    poll(lambda: time.monotonic() > until_then, lambda: None)
    assert time.thread_time() - before < 0.15


def test_waits_pause_early_after_another_program_has_taken_the_core(monkeypatch):
    yields, until_then = [], time.monotonic() + 0.02
    monkeypatch.setattr(polling, "_crowded_until", 0.0)
    monkeypatch.setattr(polling, "_SPIN", 60.0)
    monkeypatch.setattr(polling, "_TAKEN", 0.0)
    monkeypatch.setattr(polling.os, "sched_yield", lambda: yields.append(None))
    poll(lambda: time.monotonic() > until_then, lambda: None)
    assert len(yields) == 1


class Votes:
    """The votes of the others, and what is given to them."""

    def __init__(self, verdict, *, delay=3):
        self.given, self._verdict, self._left = [], verdict, delay

    def __call__(self, yes):
        self.given.append(yes)
        return self._test

    def _test(self):
        self._left -= 1
        return None if self._left > 0 else self._verdict


def test_ranks_make_a_call_together_once_all_have_arrived_and_voted():
    came, votes = iter([False, False, True]), Votes(verdict=True)
    barrier_or_cancel(lambda: next(came), votes, CallState().check)
    assert votes.given == [True]


def test_a_rank_that_is_told_to_stop_before_it_votes_votes_against_the_call():
    for arrived in (False, True):
        watch, votes = CallState(), Votes(verdict=False)
        watch.end("because")
        with raises(CallCancelled, args=("because",)):
            barrier_or_cancel(lambda its=arrived: its, votes, watch.check)
        assert votes.given == [False]


def test_a_rank_that_has_voted_stays_for_the_verdict_whatever_it_is_told():
    watch, votes = CallState(), Votes(verdict=True, delay=50)

    def vote(yes):
        watch.end("because")
        return votes(yes)

    barrier_or_cancel(lambda: True, vote, watch.check)
    assert votes.given == [True]


def test_a_rank_that_came_in_vain_waits_until_it_is_told_to_stop():
    watch = CallState()
    threading.Timer(0.01, watch.end, ["because"]).start()
    with raises(CallCancelled, args=("because",)):
        barrier_or_cancel(lambda: True, Votes(verdict=False), watch.check)


@pytest.mark.parametrize(("verdict", "words"), [(None, "a rank did not vote"), (False, "another rank was canceled")])
def test_a_rank_does_not_wait_for_a_verdict_for_ever(monkeypatch, verdict, words):
    monkeypatch.setattr(polling, "_VERDICT_TIMEOUT", 0.0)
    with pytest.raises(CollectiveFailed, match=words):
        barrier_or_cancel(lambda: True, Votes(verdict, delay=0), CallState().check)


class Thread(threading.Thread):
    """A thread that is in the function of a user, which is in the standard library."""

    def __init__(self):
        super().__init__()
        self.arrived, self.go_on = threading.Event(), threading.Event()

    def run(self):
        self.arrived.set()
        json.loads("1", parse_int=lambda _: self.go_on.wait(DEADLINE))


def test_a_thread_is_where_its_innermost_frame_of_user_code_is():
    thread = Thread()
    thread.start()
    assert thread.arrived.wait(DEADLINE)
    watch = CallState()
    watch.enter("Allreduce")
    try:
        told = whereabouts(thread.ident, time.monotonic() - 1000, watch.operation, watch.since, watch.count)
    finally:
        thread.go_on.set()
        thread.join()
    assert told["operation"] == "Allreduce"
    assert (told["count"], told["function"] in {"run", "<lambda>"}) == (1, True)
    assert told["place"].startswith("test_polling.py:")
    assert 0 <= told["seconds"] < 1000
    assert "test_polling.py" in told["stack"]
    assert "_bootstrap" not in told["stack"]


def test_a_thread_that_has_ended_is_nowhere():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    told = whereabouts(thread.ident, time.monotonic())
    assert (told["place"], told["function"], told["stack"]) == ("?", "?", "")
