"""Texts of the positions of ranks."""

from __future__ import annotations

from workbench.positions import describe, ranges


def waiting(operation="Allreduce", seconds=31.2):
    return {"operation": operation, "seconds": seconds, "count": 5, "place": "fit.py:40"}


def working(place="fit.py:42"):
    return {"operation": None, "seconds": 31.0, "count": 4, "place": place}


def test_those_who_wait_are_named_before_the_one_they_wait_for():
    places = {7: working(), **dict.fromkeys(range(7), waiting())}
    assert describe(places) == "ranks 0-6 are in Allreduce for 31 s; rank 7 is in user code at fit.py:42"


def test_the_one_who_has_waited_longest_counts():
    assert describe({0: waiting(seconds=3), 1: waiting(seconds=65)}) == "ranks 0-1 are in Allreduce for 1 min 5 s"


def test_ranks_that_are_idle_or_silent_are_said_to_be():
    assert describe({0: None, 1: {"silent": True}, 2: {"silent": True}}) == "rank 0 is idle; ranks 1-2 do not answer"


def test_512_ranks_are_readable_wherever_they_are():
    everywhere = describe({rank: working(f"fit.py:{rank}") for rank in range(512)})
    assert everywhere.endswith("rank 5 is in user code at fit.py:5; 506 ranks elsewhere")
    alternating = describe({rank: waiting() if rank % 2 else None for rank in range(512)})
    assert alternating.startswith("ranks 1, 3, 5, 7, 9, 11, 13, 15 and 248 more are in Allreduce for 31 s; ranks 0, 2")


def test_a_rank_in_tasks_has_the_oldest_with_its_line_if_the_task_is_in_code_of_the_user():
    task = {"task": "load", "tasks": 1, "seconds": 12.0, "operation": None, "place": "data.py:7"}
    assert (
        describe({0: task, 1: task | {"seconds": 70.0}}) == "ranks 0-1 are in the task load at data.py:7 for 1 min 10 s"
    )
    assert describe({0: task | {"tasks": 3, "place": "?"}}) == "rank 0 is in the task load (the oldest of 3) for 12 s"


def test_ranks_that_follow_one_another_are_a_range():
    assert ranges([5, 1, 0, 2, 9]) == "0-2, 5, 9"
    assert ranges([]) == ""
