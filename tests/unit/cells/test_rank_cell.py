"""What a rank reports of a cell."""

from __future__ import annotations

from datetime import UTC, datetime

from workbench.cells.engine import _within
from workbench.cells.rank_cell import _line


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
