from __future__ import annotations

import pytest
from suites import comparison

EXPECTED = {"listed*": "for a reason"}


def repeated(*runs: dict[str, str]) -> dict[str, str]:
    known: dict[str, str] = {}
    for run in runs:
        comparison.add(known, run)
    return known


@pytest.mark.parametrize(
    ("ours", "control", "difference"),
    [
        pytest.param(["passed", "passed"], ["passed", "passed"], 0, id="same"),
        pytest.param(["failed", "failed"], ["failed", "failed"], 0, id="fails-alike"),
        pytest.param(["failed", "passed"], ["passed", "passed"], 1, id="passes-only-sometimes"),
        pytest.param(["passed", "passed"], ["failed", "failed"], 1, id="only-the-control-fails"),
        pytest.param(["passed", "passed"], ["failed", "passed"], 0, id="the-control-passes-only-sometimes"),
        pytest.param(["failed", "failed"], ["failed", "passed"], 1, id="only-the-control-passes-sometimes"),
    ],
)
def test_a_test_differs_only_from_a_control_that_is_steady(ours, control, difference, capsys):
    runs = [repeated(*({"a": outcome} for outcome in outcomes)) for outcomes in (ours, control)]
    assert comparison.compare("suite", *runs, EXPECTED) == difference
    assert ("NOT EXPECTED" in capsys.readouterr().out) == bool(difference)


def test_a_test_without_a_result_differs_unless_it_is_listed():
    ours, control = {"a": "passed"}, {"a": "passed", "b": "passed", "listed": "passed"}
    assert comparison.unexplained(ours, control, EXPECTED) == ["b"]
    assert comparison.compare("suite", ours, control, EXPECTED) == 1
