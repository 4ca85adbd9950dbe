"""Texts of times."""

from __future__ import annotations

import time

from workbench.text import clock


def test_the_time_of_another_year_is_told_with_the_year():
    now = time.localtime()
    later = (now.tm_year, 1 if now.tm_mon > 6 else 12, 15, 10, 30, 0, 0, 0, -1)
    assert str(now.tm_year) not in clock(time.mktime(later))
    assert clock(time.mktime((now.tm_year + 1, *later[1:]))).endswith(f" {now.tm_year + 1} 10:30")
