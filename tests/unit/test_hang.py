"""Who gets nowhere is told so, and nobody else."""

from __future__ import annotations

from workbench.hang import Hang


def places(*counts):
    return {rank: {"operation": "Barrier", "seconds": 31.0, "count": count} for rank, count in enumerate(counts)}


def test_ranks_that_have_begun_no_operation_since_the_last_look_are_told():
    hang = Hang(30)
    assert hang.words(places(3, 3)) is None
    assert hang.words(places(3, 4)) is None
    assert hang.words(places(3, 4)) == "ranks 0-1 are in Barrier for 31 s"


def test_nothing_is_told_where_nothing_is_known():
    hang = Hang(30)
    assert hang.words({}) is None
    assert hang.words({}) is None


def test_a_look_is_due_after_the_patience_and_again_after_a_look():
    assert Hang(0.0).is_due()
    hang = Hang(3600)
    assert not hang.is_due()
