"""Numbers as short texts, where they are just below a larger unit."""

from __future__ import annotations

import pytest

from workbench.lab.dashboard import format as dashboard_format


@pytest.mark.parametrize(
    ("word", "number", "expected"),
    [
        (dashboard_format.span, 0.9994, "999 ms"),
        (dashboard_format.span, 0.9997, "1 s"),
        (dashboard_format.span, 999.4, "999 s"),
        (dashboard_format.span, 999.7, "0.278 h"),
        (dashboard_format.short, 9999.4, "9999"),
        (dashboard_format.short, 9999.7, "10 k"),
        (dashboard_format.short, 999_499, "999 k"),
        (dashboard_format.short, 999_999, "1 M"),
        (dashboard_format.short, -3.4e9, "-3.4 G"),
        (dashboard_format.size, 1023, "1023 B"),
        (dashboard_format.size, 1023.7, "1 KiB"),
        (dashboard_format.size, 1023.4 * 1024, "1023 KiB"),
        (dashboard_format.size, 1023.99 * 1024, "1 MiB"),
        (dashboard_format.size, 1024**6, "1024 PiB"),
        (dashboard_format.number, 9999.97, "10,000"),
    ],
)
def test_a_number_that_is_rounded_up_to_a_unit_is_told_in_that_unit(word, number, expected):
    assert word(number) == expected
