from __future__ import annotations

import pytest

from benchmarks import hybrid
from benchmarks.deep_nets import resnet


def row(measure, arm, number, value):
    return {"measure": measure, "arm": arm, "round": number, "value": value}


def test_hybrid_sums_up_times_of_rounds_and_memory_over_that_of_one_process():
    rows = [row("ms", arm, number, ms * number) for number in (2, 1, 3) for arm, ms in (("one", 10.0), ("4x1", 15.0))]
    rows += [row("MB", "one", 1, 400.0), row("MB", "4x1", 1, 100.0)]
    summary = hybrid.summarize(rows, 4)

    assert summary["4x1_memory"] == 0.25 < summary["memory_target"] == pytest.approx(0.2875)
    assert summary["4x1_time"] == summary["4x1_time_low"] == 1.5
    assert (summary["one_ms"], summary["4x1_ms"], summary["4x1_mb"]) == (20.0, 30.0, 100.0)
    assert "one_memory" not in summary


def test_hybrid_has_each_layout_of_the_ranks_and_other_schedules_of_all_stages():
    assert [arm.name(4) for arm in hybrid.arms(4)] == ["one", "1x4", "2x2", "4x1", "4x1_gpipe", "4x1_bidirectional"]


def test_the_residual_nets_have_the_weights_of_their_paper():
    # Table 4 of He et al. (2016), Identity Mappings in Deep Residual Networks.
    for depth, millions in ((164, 1.7), (1001, 10.2)):
        assert sum(weight.numel() for weight in resnet(depth).parameters()) / 1e6 == pytest.approx(millions, rel=0.03)
    with pytest.raises(ValueError, match="depth=100 is not valid: choose 9 n"):
        resnet(100)
