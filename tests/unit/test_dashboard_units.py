"""Numbers in words of few letters, where they are just short of a larger unit."""

from __future__ import annotations

import pytest

from workbench.dashboard import units


@pytest.mark.parametrize(
    ("word", "number", "expected"),
    [
        (units.span, 0.9994, "999 ms"),
        (units.span, 0.9997, "1 s"),
        (units.span, 999.4, "999 s"),
        (units.span, 999.7, "0.278 h"),
        (units.short, 9999.4, "9999"),
        (units.short, 9999.7, "10 k"),
        (units.short, 999_499, "999 k"),
        (units.short, 999_999, "1 M"),
        (units.short, -3.4e9, "-3.4 G"),
        (units.size, 1023, "1023 B"),
        (units.size, 1023.7, "1 KiB"),
        (units.size, 1023.4 * 1024, "1023 KiB"),
        (units.size, 1023.99 * 1024, "1 MiB"),
        (units.size, 1024**6, "1024 PiB"),
        (units.number, 9999.97, "10,000"),
    ],
)
def test_a_number_that_is_rounded_up_to_a_unit_is_told_in_that_unit(word, number, expected):
    assert word(number) == expected
