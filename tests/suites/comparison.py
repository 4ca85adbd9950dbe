"""How two runs of the same tests are compared: one with what this project stands in for, and the control without."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Mapping

PASSED, SKIPPED = "passed", "skipped"
"""What a test comes to; whatever else it comes to, it has failed."""


def reason(name: str, expected: Mapping[str, str]) -> str:
    """Return why a test need not come to the same as in the control, by patterns of names; empty: it has to."""
    return next((why for test, why in expected.items() if fnmatch.fnmatch(name, test)), "")


def compare(what: str, ours: Mapping[str, str], control: Mapping[str, str], expected: Mapping[str, str]) -> int:
    """Print which tests come to something else than in the control; return how many of them are not expected to.

    Notes
    -----
    What is skipped or fails alike in both runs proves nothing of this project: both have a number of their own.
    """
    names = sorted({**ours, **control})
    differ = [name for name in names if ours.get(name) != control.get(name)]
    unexpected = 0
    for name in differ:
        why = reason(name, expected)
        unexpected += not why
        print(f"{name}: {ours.get(name)}, in the control {control.get(name)}: {why or 'NOT EXPECTED'}")
    same = Counter(ours[name] for name in names if name not in differ)
    print(
        f"{what}: {len(names)} tests; {same[PASSED]} passed in both runs, {same[SKIPPED]} skipped in both, "
        f"{same.total() - same[PASSED] - same[SKIPPED]} failed alike in both, {len(differ) - unexpected} differ as "
        f"expected, {unexpected} otherwise",
        flush=True,
    )
    return unexpected
