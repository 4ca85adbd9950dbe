"""Nothing that is in a log is an order to what shows it."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.patience import DEADLINE

from workbench.text import LONGEST, colored, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nä€🙂\n", "plain\ttext\nä€🙂\n"),
        ("x\x1b]0;title\x07\x1b[31m", r"x\x1b]0;title\x07\x1b[31m"),
        ("\x00\x0b\x0c\x7f\x85\x9b", r"\x00\x0b\x0c\x7f\x85\x9b"),
        ("\u202ecod.exe\u2066\u200f", r"\u202ecod.exe\u2066\u200f"),
        ("10 %\r20 %\r\nend\r", "10 %\n20 %\nend\n"),
        ("help\x00\nOpen MPI v5\x00\x00", "help\nOpen MPI v5"),
        ("", ""),
    ],
)
def test_orders_are_written_out_and_a_carriage_return_hides_nothing(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[K\x1b[0;1;38;5;200m\x1b[m", "\x1b[31mred\x1b[K\x1b[0;1;38;5;200m\x1b[m"),
        ("10 %\r20 %\r\n", "10 %\r20 %\r\n"),
        ("\x1b]0;title\x07\x1b[2J\x1b[A\x1b[?25l\x1b\x9b31m", r"\x1b]0;title\x07\x1b[2J\x1b[A\x1b[?25l\x1b\x9b31m"),
    ],
)
def test_colors_and_carriage_returns_are_left_for_who_can_show_them(text, shown):
    assert colored(text) == shown


@pytest.mark.parametrize("shown", [printable, colored])
def test_lines_of_a_megabyte_are_cut_and_the_others_are_not(shown):
    whole = "b" * LONGEST
    first, second, third = shown(f"{'a' * (1 << 20)}\n{whole}\n{'c' * (LONGEST + 1)}").split("\n")

    assert first == f"{'a' * LONGEST} [... {(1 << 20) - LONGEST} more characters are in the file]"
    assert second == whole
    assert third.endswith("[... 1 more characters are in the file]")


def test_a_hole_in_a_log_takes_no_longer_than_other_text():
    begin = time.process_time()
    assert printable("\x00" * LONGEST * 100 + "x").count("\\x00") == LONGEST
    assert time.process_time() - begin < DEADLINE


@given(st.text())
def test_no_text_has_control_characters_or_those_that_change_its_direction(text):
    shown = printable(text)
    assert [each for each in shown if unicodedata.category(each) == "Cc" and each not in "\n\t"] == []
    assert {unicodedata.bidirectional(each) for each in shown}.isdisjoint(
        {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    )
