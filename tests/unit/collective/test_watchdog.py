"""Ranks without progress are reported, and no other ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workbench import positions
from workbench.positions import StallDetector


@pytest.fixture
def clock(monkeypatch):
    """What the time is, to be set."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(positions, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def places(*seconds):
    return {rank: {"operation": "Barrier", "seconds": its, "count": 3} for rank, its in enumerate(seconds)}


SILENT = {"silent": True}


def test_ranks_that_get_nowhere_for_the_patience_are_told_at_the_first_look():
    assert StallDetector(30).report(places(31.0, 30.0)) == "ranks 0-1 are in Barrier for 31 s"
    assert StallDetector(30).report(places(31.0, 29.0)) is None


def test_it_is_told_again_only_after_the_patience(clock):
    hang = StallDetector(30)
    assert hang.report(places(31.0))
    clock.now += 29
    assert hang.report(places(60.0)) is None
    clock.now += 1
    assert hang.report(places(61.0)) == "rank 0 is in Barrier for 1 min 1 s"


def test_a_rank_that_does_not_answer_gets_nowhere(clock):
    hang = StallDetector(30)
    clock.now += 29
    assert hang.report({0: SILENT}) is None
    clock.now += 1
    assert hang.report({0: SILENT}) == "rank 0 does not answer"
    assert hang.report({}) is None


def test_a_rank_that_answers_no_more_is_where_it_was(clock):
    hang = StallDetector(30)
    clock.now += 100
    assert hang.report(places(100.0, 10.0)) is None
    clock.now += 10
    assert hang.report({**places(110.0), 1: SILENT}) is None
    clock.now += 10
    assert hang.report({**places(120.0), 1: SILENT}) == "rank 0 is in Barrier for 2 min; rank 1 does not answer"


def test_nothing_is_told_where_nothing_is_known():
    assert StallDetector(30).report({}) is None


def test_a_look_is_due_four_times_in_the_patience(clock):
    hang = StallDetector(30)
    assert not hang.is_due()
    clock.now += hang.interval
    assert hang.interval == 7.5
    assert hang.is_due()
    hang.report({})
    assert not hang.is_due()
