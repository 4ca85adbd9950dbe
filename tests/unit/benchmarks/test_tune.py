from __future__ import annotations

from benchmarks import tune


def test_the_ratios_of_tune_are_those_of_the_rounds():
    rows = [
        {"group": group, "round": number, "arm": arm, "seconds": seconds * number}
        for group in (1, 2)
        for number in (3, 1, 2)
        for arm, seconds in ((tune.OURS, 1.2 * group), (tune.IDEAL, 1.0))
    ]

    summary = tune.summarize(rows)

    assert (summary["groups_of_1"], summary["groups_of_2"], summary["target"]) == (1.2, 2.4, 1.25)
    assert summary["groups_of_1_seconds"] == 2.4
