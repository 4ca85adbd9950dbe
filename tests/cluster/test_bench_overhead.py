"""The bench of what our engines cost over bare MPI, at a tiny size."""

from __future__ import annotations

import argparse
import subprocess
import sys
from itertools import product

import numpy as np
import psutil
import pytest
from support.processes import DEADLINE

from benchmarks import overhead
from benchmarks.engines import compare_engines
from workbench.bench import arms, turns
from workbench.bench.bare_fits import Order
from workbench.errors import LaunchError
from workbench.launch import mpi_library
from workbench.ml import KMeans, StandardScaler

X = np.random.default_rng(11).normal(size=(1003, 5))
PROGRAM = "workbench.bench.bare_fits"


def _run(*words):
    parser = argparse.ArgumentParser()
    overhead.add_options(parser)
    return overhead.run(parser.parse_args(words))


@pytest.mark.long
def test_overhead_fits_both_models_on_both_engines_and_in_bare_mpi():
    report = _run("--rounds=1", "--starts=1", "--iterations=2", "--iteration-ms=1")

    fits = [(*fit, arm) for fit in product(("kmeans", "logistic"), ("mpi", "dask")) for arm in (fit[1], "bare")]
    measured = sorted((row["what"], row["engine"], row["arm"]) for row in report.rows)
    assert measured == sorted([*fits, ("round trip", "dask", "dask")])
    assert min(row["seconds"] for row in report.rows) > 0
    assert min(report.machine[f"rows of {model}"] for model in arms.MODELS) > 0
    assert report.summary["round_trip_ms"] > 0


def test_the_bare_program_comes_to_the_same_on_all_ranks():
    with turns.taking(mpi_library.find(), 2, PROGRAM, DEADLINE) as bare:
        kmeans, logistic = (bare.take(Order(model, 200, 3), DEADLINE) for model in arms.MODELS)

    for fits in (kmeans, logistic):
        assert fits[0].found.tolist() == fits[1].found.tolist()
        assert [fit.iterations for fit in fits] == [3, 3]
        assert min(fit.seconds for fit in fits) > 0


def test_a_bare_program_that_fails_in_its_turn_is_shown():
    with (
        pytest.raises(LaunchError, match=r"took no turn(.|\n)*KeyError: 'no such model'"),
        turns.taking(mpi_library.find(), 1, PROGRAM, DEADLINE) as bare,
    ):
        bare.take(Order("no such model", 10, 1), DEADLINE)


def test_a_turn_that_takes_too_long_ends_the_bare_program():
    before = psutil.Process().children(recursive=True)
    with (
        pytest.raises(LaunchError),
        turns.taking(mpi_library.find(), 1, PROGRAM, DEADLINE) as bare,
    ):
        bare.take(Order("kmeans", 100_000, 10_000), 0.01)

    assert set(psutil.Process().children(recursive=True)) <= set(before)


def test_what_computes_on_a_block_is_imported_without_dask():
    program = f"import sys, {PROGRAM}; print(sorted({{'dask', 'distributed'}} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=DEADLINE)

    assert told.stdout == "[]\n"


def test_engines_are_compared_side_by_side(client4, capsys):
    table = compare_engines(KMeans(4, random_state=5), X)

    assert list(table.index) == ["dask", "mpi"]
    assert table["seconds"].min() > 0
    assert table.loc["dask", "iterations"] == table.loc["mpi", "iterations"]
    assert table[["cluster_centers_", "inertia_"]].to_numpy().max() < 1e-12
    assert "cluster_centers_" in capsys.readouterr().out


def test_engines_are_compared_with_one_weight_for_all_rows(client4):
    table = compare_engines(StandardScaler(), X, sample_weight=2.0)

    assert table[["mean_", "var_"]].to_numpy().max() < 1e-12
