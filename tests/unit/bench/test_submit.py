from __future__ import annotations

import pytest

from workbench.bench import submit
from workbench.bench.report import Report

COSTS = {submit.NEW: (1.2, 0.1), submit.SAME: (0.5, 0.02), submit.BARE: (0.2, 0.001), submit.POLL: (0.03, 0.002)}


def rows():
    return [
        {"pair": pair, "arm": arm, "seconds": pair * seconds, "cpu": pair * cpu, "imports_cpu": 0.7}
        for pair in (2, 3, 1)
        for arm, (seconds, cpu) in COSTS.items()
    ]


def test_what_ours_takes_over_a_bare_sbatch_is_the_median_over_pairs():
    summary = submit.summarize(rows())

    assert summary["cpu"] == pytest.approx(2 * (0.1 - 0.001))
    assert summary["warm_cpu"] == pytest.approx(2 * (0.02 - 0.001))
    assert summary["wall"] == pytest.approx(2 * (1.2 - 0.2))
    assert summary["warm_wall"] == pytest.approx(2 * (0.5 - 0.2))
    assert (summary["poll_cpu"], summary["imports_cpu"]) == pytest.approx((0.004, 0.7))


def test_a_report_is_drawn_with_a_name_and_a_unit_on_every_axis(tmp_path):
    measured = rows()

    drawn = submit.plot(Report("submit", {"cores": 2, "ranks": 4}, measured, submit.summarize(measured)))

    drawn.savefig(tmp_path / "bench.png")
    assert all(panel.get_xlabel() and panel.get_ylabel() for panel in drawn.axes)
