from __future__ import annotations

import psutil
import pytest
from support.processes import until

from benchmarks import training
from benchmarks.nets import BATCHES, GLOO, LOADER, OURS
from benchmarks.parameter_server import SERVER
from workbench.errors import WorkbenchError

TIMES = {
    ("mlp", OURS): 10.0,
    ("mlp", GLOO): 15.0,
    ("mlp", SERVER): 20.0,
    ("resnet", OURS): 4.0,
    ("resnet", GLOO): 4.0,
    ("feeding", BATCHES): 1.0,
    ("feeding", LOADER): 30.0,
}


def rows(*loads):
    return [
        {"start": 1, "busy": loops, "what": what, "arm": arm, "ranks": 2, "round": number, "ms": ms * factor}
        for loops in loads
        for number, factor in ((2, 1.0), (1, 3.0), (3, 1.5))
        for (what, arm), ms in TIMES.items()
    ]


def test_training_sums_up_the_ratios_of_each_round_and_of_the_lowest_times():
    summary = training.summarize(rows(0, 2))

    for ending in ("", "_busy"):
        assert summary[f"mlp_vs_gloo{ending}"] == summary[f"mlp_vs_gloo{ending}_lowest"] == 1.5
        assert summary[f"mlp_vs_server{ending}"] == 2.0
        assert summary[f"feeding_vs_DataLoader{ending}"] == 30.0
        assert summary[f"mlp_workbench{ending}_ms"] == 15.0
        assert summary[f"mlp_workbench{ending}_lowest_ms"] == 10.0
    assert (summary["mlp_vs_gloo_target"], summary["mlp_vs_server_target"]) == (1.15, 1.8)
    assert not any(name.startswith("small") for name in summary)


@pytest.mark.parametrize("other", [1.1, float("nan")])
def test_training_refuses_losses_that_differ(other):
    expected = {}
    training.require_same("the losses of mlp by workbench", [1.0, 0.5], expected, ("mlp", "float32"))
    training.require_same("the losses of mlp by gloo", [1.0, 0.500_001], expected, ("mlp", "float32"))
    with pytest.raises(WorkbenchError):
        training.require_same("the losses of mlp by server", [1.0, other], expected, ("mlp", "float32"))


def test_busy_processes_end_with_their_block():
    before = set(psutil.Process().children())
    with training.busy(2):
        loops = set(psutil.Process().children()) - before
        assert len(loops) == 2
        until("two busy processes", lambda: all(sum(loop.cpu_times()[:2]) > 0.1 for loop in loops))
    assert set(psutil.Process().children()) == before
