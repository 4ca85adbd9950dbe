"""The whole hybrid bench, at a tiny size; `test_torch_pipelines.py` has a part of it every day."""

from __future__ import annotations

import json

import pytest

from workbench import bench


@pytest.mark.long
def test_hybrid_measures_time_and_memory_of_all_layouts_and_prints_json(capsys):
    size = ["--depth=11", "--width=4", "--image=8", "--size=16", "--rounds=1"]

    assert bench.main(["hybrid", *size, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    arms = {"one", "1x4", "2x2", "4x1", "4x1_gpipe", "4x1_bidirectional"}
    assert {(row["measure"], row["arm"]) for row in report["rows"]} == {
        (each, arm) for each in ("ms", "MB") for arm in arms
    }
    assert min(row["value"] for row in report["rows"]) > 0
    assert report["summary"]["float64_apart"] <= 1e-10
    assert report["summary"]["memory_target"] == pytest.approx(1.15 / 4)
    assert bench.main(["hybrid", "--ranks=1"]) == 1
    assert "a pipeline needs 2 ranks or more" in capsys.readouterr().err
