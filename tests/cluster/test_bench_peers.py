"""The bench of our estimators against their peers, at a tiny size: what needs nothing that is not installed here."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import contests, peers


@pytest.mark.long
def test_the_decomposition_of_dask_comes_to_the_same_error_and_takes_turns_with_ours(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", {}.get)
    parser = argparse.ArgumentParser()
    peers.add_options(parser)

    report = peers.run(parser.parse_args(["--rounds=2", "--scale=0.002"]))

    both = (contests.OURS, contests.DASK)
    assert sorted((row["what"], row["arm"], row["round"]) for row in report.rows) == [
        ("svd", arm, number) for arm in sorted(both) for number in (1, 2)
    ]
    assert report.summary["svd_vs_svd_compressed"] > 0
    assert report.summary["kmeans_vs_dask_ml"] is None
    assert "dask-ml is not installed and scikit-learn-intelex is not installed" in report.summary["left_out"]
    assert 0 < report.machine["power iterations of svd_compressed"] < 8
