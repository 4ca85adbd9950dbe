"""Walltimes as people type them and schedulers read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raised import raises

from workbench.errors import InvalidRequest
from workbench.launch.walltime import clock, pbs_clock, site_walltime, walltime


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("02:00:00", 7200),
        ("2:00:00", 7200),
        ("100:00:00", 360000),
        ("1-12:00:00", 129600),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("2 hours", 7200),
        ("90 minutes", 5400),
        ("90m", 5400),
        ("1d12h", 129600),
        (" 1 h 30 m ", 5400),
        ("1.5 hours", 5400),
        ("0.2 s", 1),
    ],
)
def test_a_walltime_is_read_in_every_form_that_people_use(text, seconds):
    assert walltime(text) == seconds


@pytest.mark.parametrize("given", ["90", 90, 90.0, "1.5"])
def test_a_bare_number_is_refused_since_schedulers_read_it_differently(given):
    with raises(
        InvalidRequest,
        option="walltime",
        given=given if given == 90 and isinstance(given, int) else str(given),
        allowed=(),
    ):
        walltime(given)


@pytest.mark.parametrize(
    "given",
    ["", "soon", "10:30", "00:90:00", "00:00:60", "1-24:00:00", "00:00:00", "0 s", "-1h", "5 parsec", "1h -", "h",
     "1h,", "9999 days", "inf s", "nan hours", None, True, [], "1e400 days", "1:2:3"],
)  # fmt: skip
def test_what_is_no_walltime_is_refused_with_the_forms_that_are(given):
    with raises(InvalidRequest, option="walltime"):
        walltime(given)


@pytest.mark.parametrize("text", ["1" * 5000, "1" * 5000 + ":00", "9" * 61, "1" * 61 + "-00:00:00"])
def test_a_walltime_of_a_site_may_have_any_number_of_digits(text):
    with raises(InvalidRequest, option="walltime"):
        site_walltime(text, 60)


@given(st.text())
def test_a_walltime_is_read_or_refused_whatever_the_text(text):
    try:
        seconds = walltime(text)
    except InvalidRequest:
        return
    assert seconds > 0


@given(st.integers(1, 10 * 366 * 86400))
def test_what_is_written_for_slurm_and_pbs_is_read_as_the_same_time(seconds):
    assert walltime(clock(seconds)) == walltime(pbs_clock(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "unit", "seconds"),
    [
        ("30", 60, 1800),
        ("30", 1, 30),
        ("10:30", 60, 630),
        ("5:00", 60, 300),
        ("00:30:00", 60, 1800),
        ("1-0", 60, 86400),
        ("120:00", 60, 7200),
        ("00:90:00", 60, 5400),
        ("5:0:0", 60, 18000),
        ("1-24:00:00", 60, 172800),
        ("100:00:00", 1, 360000),
    ],
)
def test_a_sites_walltime_is_read_as_its_scheduler_would(text, unit, seconds):
    assert site_walltime(text, unit) == seconds
