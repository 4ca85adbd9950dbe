"""How two runs of the same tests are compared: one with what this project stands in for, and the control without."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Mapping

PASSED, SKIPPED = "passed", "skipped"
"""What a test comes to; whatever else it comes to, it has failed."""
SEVERAL = " or "
"""Between the outcomes of a test whose repeated runs differ."""


def reason(name: str, expected: Mapping[str, str]) -> str:
    """Return why the outcome of a test may differ from the control, by patterns of names; empty: it may not."""
    return next((why for test, why in expected.items() if fnmatch.fnmatch(name, test)), "")


def unexplained(ours: Mapping[str, str], control: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Return the tests whose outcome is not that of the control, and that are not expected to differ."""
    names = sorted({**ours, **control})
    return [name for name in names if ours.get(name) != control.get(name) and not reason(name, expected)]


def add(known: dict[str, str], repeated: Mapping[str, str]) -> None:
    """Add the outcomes of a repeated run to known ones: a test can then have several."""
    for name, outcome in repeated.items():
        known[name] = SEVERAL.join(sorted({outcome, *known.get(name, outcome).split(SEVERAL)}))


def compare(what: str, ours: Mapping[str, str], control: Mapping[str, str], expected: Mapping[str, str]) -> int:
    """Print which tests come to something else than in the control; return how many of them are not expected to.

    Notes
    -----
    What is skipped or fails alike in both runs proves nothing of this project: both have a separate count. Neither
    does a test that both pass only in some of the repeated runs.
    """
    names = sorted({**ours, **control})
    unsteady = [
        name for name in names if SEVERAL in control.get(name, "") and PASSED in ours.get(name, "").split(SEVERAL)
    ]
    differ = [name for name in names if name not in unsteady and ours.get(name) != control.get(name)]
    unexpected = 0
    for name in [*unsteady, *differ]:
        why = "UNSTEADY" if name in unsteady else reason(name, expected) or "NOT EXPECTED"
        unexpected += why == "NOT EXPECTED"
        print(f"{name}: {ours.get(name)}, in the control {control.get(name)}: {why}")
    same = Counter(ours[name] for name in names if name not in {*unsteady, *differ})
    print(
        f"{what}: {len(names)} tests; {same[PASSED]} passed in both runs, {same[SKIPPED]} skipped in both, "
        f"{same.total() - same[PASSED] - same[SKIPPED]} failed alike in both, {len(unsteady)} unsteady in the control, "
        f"{len(differ) - unexpected} differ as expected, {unexpected} otherwise",
        flush=True,
    )
    return unexpected
