"""Where a rank is in Dask tasks."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.call_stack import of_tasks, place


@pytest.fixture
def worker() -> Any:
    """A worker whose tasks run on this thread."""
    return SimpleNamespace(active_threads_lock=threading.Lock(), active_threads={})


def test_a_rank_without_tasks_is_idle(worker):
    assert of_tasks(worker, {}) is None


def test_of_several_tasks_the_oldest_is_shown_with_its_line_and_the_number_of_all(worker):
    worker.active_threads = {threading.get_ident(): ("load-1234abcd", 3), 1: "sum-1234abcd"}

    position = of_tasks(worker, {"sum-1234abcd": 2.0, ("load-1234abcd", 3): 1.0})

    assert position is not None
    assert (position["task"], position["tasks"]) == ("load", 2)
    assert position["place"].startswith("test_call_stack.py:")
    assert position["seconds"] > 1


def test_a_task_without_code_of_the_user_has_no_line(worker):
    """A coroutine has no separate thread."""
    position = of_tasks(worker, {"load-1234abcd": 1.0})
    assert position is not None
    assert (position["task"], position["place"]) == ("load", "?")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("/home/user/fit.py", "fit.py:9"),
        ("/tmp/ipykernel_17/26046.py", "line 9 of the cell with solve"),  # noqa: S108  (not a file)
        ("<dynamic-code>", "line 9 of solve"),
        ("/home/user/model/__init__.py", "model/__init__.py:9"),
    ],
)
def test_a_line_is_named_as_the_user_knows_the_file(file, words):
    assert place(file, 9, "solve") == words
