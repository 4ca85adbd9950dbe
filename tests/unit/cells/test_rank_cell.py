"""What a rank reports of a cell."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from unittest.mock import MagicMock

import pytest
from IPython.core import getipython

from workbench.cells.engine import _within
from workbench.cells.rank import _line, run_in_shell
from workbench.cells.run_cell import RunCell


class Unprintable(Exception):
    def __str__(self):
        raise AttributeError("reason")


def test_an_error_without_a_text_is_named():
    assert _line(Unprintable()) == "Unprintable, whose text cannot be formatted"
    assert _line(ValueError("first\nsecond")) == "ValueError: first"


def test_a_display_may_have_values_that_plain_json_does_not_have():
    data = {"application/json": {"when": datetime(2026, 1, 1, tzinfo=UTC)}, "text/plain": "a time"}
    assert _within(data, lambda characters: characters) == data
    assert _within(data, lambda _: 3) == {"text/plain": "a t"}


def test_an_error_that_leaves_ipython_does_not_leave_its_runner_of_coroutines(monkeypatch):
    runner, shell = object(), MagicMock()
    shell.loop_runner = runner
    shell.run_cell.side_effect = KeyboardInterrupt
    monkeypatch.setattr(getipython, "get_ipython", lambda: shell)

    with pytest.raises(KeyboardInterrupt):
        run_in_shell({}, RunCell("c", ""), nullcontext, print)

    assert shell.loop_runner is runner
