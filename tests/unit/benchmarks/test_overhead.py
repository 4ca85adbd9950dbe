from __future__ import annotations

import argparse
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom
from support.raised import raises

import workbench.ml
from benchmarks import overhead
from workbench.bench import arms, measuring
from workbench.bench.bare_fits import Order
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.launch.mpi_library import MPI

FOUND = MPI("openmpi", (5, 0, 11), "/lib/libmpi.so", "/bin/mpiexec")


def rows():
    """Three rounds, one pair each, and a machine that was ten times slower in the last one."""
    for what, engine, arm, times in (
        ("kmeans", "mpi", "bare", (1.0, 2.0, 30.0)),
        ("kmeans", "mpi", "mpi", (1.5, 2.0, 36.0)),
        ("kmeans", "dask", "bare", (1.0, 2.0, 10.0)),
        ("kmeans", "dask", "dask", (2.0, 6.0, 40.0)),
        ("logistic", "mpi", "bare", (2.0, 2.0, 2.0)),
        ("logistic", "mpi", "mpi", (2.0, 1.0, 2.0)),
        ("logistic", "dask", "bare", (2.0, 2.0, 2.0)),
        ("logistic", "dask", "dask", (5.0, 5.0, 1.0)),
        ("round trip", "dask", "dask", (0.25, 0.002, 0.001)),
    ):
        for start, seconds in enumerate(times, 1):
            yield {
                "start": start, "what": what, "engine": engine, "arm": arm, "ranks": 2, "round": 1, "seconds": seconds
            }  # fmt: skip


def test_overhead_sums_up_the_ratios_of_neighbors_with_their_intervals_and_the_round_trip():
    # the pairs are those of one start and round, whatever the order of the rows is
    summary = overhead.summarize(list(rows())[::-1])

    ratios = [summary[f"{model}_{engine}"] for model in arms.MODELS for engine in arms.ENGINES]
    assert ratios == [1.2, 3.0, 1.0, 2.5]
    assert (summary["kmeans_mpi_low"], summary["kmeans_mpi_high"]) == (1.0, 1.5)
    assert summary["round_trip_ms"] == 2.0
    assert [summary[name] for name in ("mpi_target", "dask_target", "round_trip_target_ms")] == [1.05, 1.10, 5.0]
    assert (summary["kmeans_bare_seconds"], summary["logistic_dask_seconds"]) == (2.0, 5.0)


@pytest.mark.parametrize("number", [6, 9, 18, 40])
def test_the_interval_has_the_median_in_95_of_100_cases_and_no_narrower_one_has(number):
    low, high = measuring.interval(range(number))

    assert low + high == number - 1
    assert 2 * binom.cdf(low, number, 0.5) <= 0.05 < 2 * binom.cdf(low + 1, number, 0.5)


def test_a_few_ratios_have_all_of_them_for_an_interval():
    assert measuring.interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert measuring.interval([1.5]) == (1.5, 1.5)


def test_the_full_form_has_four_times_the_starts_and_the_measurements(monkeypatch):
    def of(*words):
        """Return the starts and the rounds of each."""
        seen = []
        monkeypatch.setattr(overhead.mpi_library, "find", lambda: FOUND)
        monkeypatch.setattr(overhead, "machine", lambda _: {})
        monkeypatch.setattr(overhead, "bare_world", lambda *_: nullcontext())
        monkeypatch.setattr("workbench.cluster.MPICluster", lambda *_, **__: nullcontext())
        monkeypatch.setattr("distributed.Client", lambda *_: nullcontext())
        monkeypatch.setattr(
            overhead, "Arms", lambda *_: SimpleNamespace(pairs=lambda rounds: seen.append(rounds) or ())
        )
        monkeypatch.setattr(overhead, "_round_trips", lambda *_: ())
        monkeypatch.setattr(overhead, "summarize", lambda _: {})
        parser = argparse.ArgumentParser()
        overhead.add_options(parser)
        overhead.run(parser.parse_args([*words, "--rows=10"]))
        return seen[:: len(arms.MODELS)]

    assert of() == [6] * 3
    assert of("--full") == [6] * 12
    assert of("--rounds=4", "--starts=2", "--full") == [2] * 8


def test_a_fit_that_converges_before_its_iterations_are_made_is_refused():
    with raises(InvalidRequest, option="iterations", given=9):
        arms.require_same(Order("kmeans", 100, 9), "mpi", 7, np.ones(2), np.ones(2))


def test_results_that_differ_by_more_than_rounding_end_the_bench():
    order, expected = Order("logistic", 100, 9), np.array([1.0, -2.0])

    arms.require_same(order, "dask", 9, expected * (1 + 1e-9), expected)
    with pytest.raises(WorkbenchError):
        arms.require_same(order, "dask", 9, expected + 0.5, expected)


def test_names_of_ml_are_loaded_when_they_are_used_and_others_are_refused():
    assert set(workbench.ml.__all__) <= set(dir(workbench.ml))
    assert all(getattr(workbench.ml, name).__name__ == name for name in workbench.ml.__all__)
    with raises(AttributeError, name="Kmeans", obj=workbench.ml):
        workbench.ml.Kmeans  # noqa: B018
