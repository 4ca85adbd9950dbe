from __future__ import annotations

import numpy as np
import pytest

import workbench.ml
from workbench.bench import arms, overhead
from workbench.bench.report import Report
from workbench.bench.training import Order
from workbench.errors import InvalidRequest, WorkbenchError


def rows():
    for what, arm, times in (
        ("kmeans", "bare", (1.0, 2.0, 30.0)),
        ("kmeans", "mpi", (2.0, 3.0, 4.0)),
        ("kmeans", "dask", (4.0, 1.0, 5.0)),
        ("logistic", "bare", (2.0, 2.0, 2.0)),
        ("logistic", "mpi", (2.0, 1.0, 2.0)),
        ("logistic", "dask", (5.0, 5.0, 1.0)),
        ("round trip", "dask", (0.25, 0.002, 0.001)),
    ):
        for number, seconds in enumerate(times, 1):
            yield {"start": 1, "what": what, "arm": arm, "ranks": 2, "round": number, "seconds": seconds}


def test_overhead_sums_up_the_ratios_of_medians_to_bare_mpi_and_the_round_trip():
    summary = overhead.summarise(list(rows()))

    ratios = [summary[f"{model}_{engine}"] for model in arms.MODELS for engine in arms.ENGINES]
    assert ratios == [1.5, 2.0, 1.0, 2.5]
    assert summary["round_trip_ms"] == 2.0
    assert [summary[name] for name in ("mpi_target", "dask_target", "round_trip_target_ms")] == [1.05, 1.10, 5.0]
    assert (summary["kmeans_bare_seconds"], summary["logistic_dask_seconds"]) == (2.0, 5.0)


def test_a_fit_that_converges_before_its_iterations_are_made_is_refused():
    with pytest.raises(InvalidRequest, match="--iterations 9: kmeans by mpi was done after 7; ask for fewer"):
        arms.require_same(Order("kmeans", 100, 9), "mpi", 7, np.ones(2), np.ones(2))


def test_results_that_differ_by_more_than_rounding_end_the_bench():
    order, expected = Order("logistic", 100, 9), np.array([1.0, -2.0])

    arms.require_same(order, "dask", 9, expected * (1 + 1e-9), expected)
    with pytest.raises(
        WorkbenchError, match=r"logistic by dask came to another result than the first fit, apart by 0\.5"
    ):
        arms.require_same(order, "dask", 9, expected + 0.5, expected)


def test_a_report_of_the_overhead_is_drawn_with_a_name_and_a_unit_on_every_axis(tmp_path):
    drawn = overhead.plot(Report("overhead", {"cores": 2}, list(rows()), overhead.summarise(list(rows()))))

    drawn.savefig(tmp_path / "overhead.png")
    assert len(drawn.axes) == 4
    for panel in drawn.axes:
        assert panel.get_xlabel()
        assert panel.get_ylabel()


def test_names_of_ml_are_loaded_when_they_are_used_and_others_are_refused():
    assert set(workbench.ml.__all__) <= set(dir(workbench.ml))
    assert all(getattr(workbench.ml, name).__name__ == name for name in workbench.ml.__all__)
    with pytest.raises(AttributeError, match=r"'workbench\.ml' has no attribute 'Kmeans'"):
        workbench.ml.Kmeans  # noqa: B018
