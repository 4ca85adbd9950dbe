from __future__ import annotations

import argparse
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from support.raised import raises

from workbench.bench import bare_fits, scaling
from workbench.bench.report import Report


def rows():
    for model, kind, ranks, (arm, slower) in product(
        ("kmeans", "logistic"), scaling.KINDS, (1, 2, 4), (("mpi", 1.0), ("dask", 1.25), ("bare", 1.0))
    ):
        seconds = scaling.best(kind, ranks, 2) * slower**ranks
        yield {
            "model": model,
            "scaling": kind,
            "ranks": ranks,
            "arm": arm,
            "rows": 8000 // ranks,
            "seconds": seconds,
            "fastest": seconds * 0.9,
            "slowest": seconds * 1.1,
            "efficiency": slower * scaling.best(kind, ranks, 2) / seconds,
            "beyond_block": 1000 * ranks,
            "stated": 5000,
        }


def test_blocks_of_as_many_pieces_in_all_are_the_same_data_on_any_number_of_ranks():
    alone = bare_fits.block(SimpleNamespace(rank=0), 800, 4)
    parts = zip(*(bare_fits.block(SimpleNamespace(rank=rank), 400, 2) for rank in range(2)), strict=True)

    for whole, its in zip(alone, parts, strict=True):
        np.testing.assert_array_equal(np.concatenate(its), whole)


def test_what_the_cores_allow_is_the_best_that_ranks_without_a_core_of_their_own_can_reach():
    assert [scaling.best("strong", ranks, 4) for ranks in (1, 2, 4, 8)] == [1, 0.5, 0.25, 0.25]
    assert [scaling.best("weak", ranks, 4) for ranks in (1, 2, 4, 8)] == [1, 1, 1, 2]


def test_scaling_sums_up_where_each_rank_has_a_core_and_the_most_memory_over_what_is_stated():
    summary = scaling.summarize(list(rows()), 3)

    assert summary["ranks_with_cores"] == 2
    assert summary["kmeans_strong_mpi"] == pytest.approx(1.0)
    assert summary["logistic_weak_dask"] == pytest.approx(0.8)
    assert summary["kmeans_memory"] == 0.8
    assert summary["logistic_beyond_block"] == 4000


def test_ranks_are_given_as_numbers_and_1_is_always_among_them():
    parser = argparse.ArgumentParser(exit_on_error=False)
    scaling.add_options(parser)

    assert parser.parse_args(["--ranks=4,2"]).ranks == [1, 2, 4]
    with raises(argparse.ArgumentError, argument_name="--ranks"):
        parser.parse_args(["--ranks=2,x"])


def test_a_report_of_the_scaling_is_drawn_with_a_name_and_a_unit_on_every_axis(tmp_path):
    drawn = scaling.plot(Report("scaling", {"cores": 2}, list(rows()), scaling.summarize(list(rows()), 2)))

    drawn.savefig(tmp_path / "scaling.png")
    assert len(drawn.axes) == 4
    for panel in drawn.axes:
        assert panel.get_xlabel() == "ranks"
        assert panel.get_ylabel() == "time of a fit (s)"
