"""The whole training bench, at a tiny size; `test_torch.py` has a part of it every day."""

from __future__ import annotations

import json
from itertools import product

import pytest

from benchmarks import training
from workbench import bench


@pytest.mark.long
def test_training_measures_all_arms_quiet_and_busy_prints_json_and_draws(capsys, tmp_path):
    picture = tmp_path / "bench.png"

    assert bench.main(["training", "--rounds=1", "--scale=0.01", "--busy", "--json", f"--plot={picture}"]) == 0
    report = json.loads(capsys.readouterr().out)
    arms = {(what, arm) for what in training.WHAT for arm in training._arms(what)}
    assert {(row["what"], row["arm"], row["busy"]) for row in report["rows"]} == {
        (*arm, loops) for arm, loops in product(arms, (0, 2))
    }
    assert len(report["rows"]) == 2 * len(arms)
    figures = [f"{what}_vs_{peer}{ending}" for (what, peer), ending in product(training.TARGETS, ("", "_busy"))]
    assert min(report["summary"][name] for name in figures) > 0
    assert report["summary"]["listening_workbench"] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
