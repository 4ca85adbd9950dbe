from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import psutil
import pytest
from support.processes import until

from benchmarks import contests, peers
from benchmarks.contests import DAAL, DASK, DASK_ML, HEAT, OURS, UNSCALED, Contest
from benchmarks.peer_data import DATA
from workbench.bench import measuring
from workbench.errors import WorkbenchError
from workbench.launch.mpi_library import MPI

MPICH = MPI("mpich", (5, 0, 2), "libmpi.so.12", "mpiexec")


def rows(*contestants):
    return [
        {"what": what, "arm": arm, "ranks": 2, "round": number, "seconds": seconds * number}
        for what, arm, seconds in contestants
        for number in (1, 2, 30)
    ]


ALL = rows(
    ("kmeans", OURS, 1.0),
    ("kmeans", DASK_ML, 4.0),
    ("kmeans", DAAL, 0.9),
    ("kmeans", HEAT, 7.0),
    ("logistic", OURS, 0.5),
    ("logistic", DASK_ML, 3.0),
    ("logistic", UNSCALED, 1.0),
    ("svd", OURS, 2.0),
    ("svd", DASK, 5.0),
)


def test_peers_sums_up_the_medians_of_the_peers_over_ours():
    summary = peers.summarize(ALL)

    figures = ("kmeans_vs_dask_ml", "kmeans_vs_daal4py", "logistic_vs_dask_ml", "svd_vs_svd_compressed")
    assert [summary[name] for name in figures] == [4.0, 0.9, 6.0, 2.5]
    assert [summary[f"{name}_target"] for name in figures] == [3.0, 1.0, 5.0, 4.0]
    assert summary["logistic_vs_dask_ml_unscaled"] == 2.0
    assert summary["kmeans_vs_heat"] == 7.0
    assert summary["kmeans_daal4py_seconds"] == 1.8


def test_a_peer_that_was_not_there_has_no_figure():
    summary = peers.summarize(rows(("svd", OURS, 1.0), ("svd", DASK, 4.0)))

    assert summary["svd_vs_svd_compressed"] == 4.0
    assert summary["kmeans_vs_dask_ml"] is summary["kmeans_vs_daal4py"] is summary["logistic_vs_dask_ml"] is None


def test_who_is_not_installed_is_told_with_how_to_get_them(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", {}.get)

    sentence = peers.how_to_get(peers.missing(MPICH))

    assert sentence.startswith("dask-ml is not installed and scikit-learn-intelex is not installed and heat is not in")
    assert sentence.count("pip install 'mpi-workbench[mpich,bench,peers]'") == 1
    assert sentence.endswith("pip install 'mpi-workbench[bench,heat]', which brings PyTorch")


def test_daal4py_takes_no_part_on_an_mpi_that_it_does_not_load(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: name)

    assert peers.missing(replace(MPICH, flavor="openmpi", version=(5, 0, 11))) == {
        DAAL: "daal4py needs the library of MPICH, and this is Open MPI 5.0.11"
    }
    assert peers.missing(MPICH) == {}
    assert peers.how_to_get({}) is None


def test_results_that_differ_end_the_bench_before_there_are_figures():
    contest = Contest("kmeans", {}, np.asarray, 1e-6)
    expected = np.array([1.0, -2.0])

    contest.require_same(DAAL, expected * (1 + 1e-7), expected)
    for found in (expected + 0.5, expected * np.nan):
        with pytest.raises(WorkbenchError):
            contest.require_same(DAAL, found, expected)


def test_kmeans_that_ends_early_is_told():
    contests.require_all(contests.ITERATIONS)
    with pytest.raises(WorkbenchError):
        contests.require_all(7)


def test_a_rank_has_its_share_of_the_rows_but_never_less_than_a_fit_takes():
    assert DATA["kmeans"].per_rank(2, 0.5) == 500_000
    assert DATA["svd"].per_rank(4, 1e-9) == 256


def test_processes_that_are_halted_go_on_afterwards():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        its = psutil.Process(child.pid)
        with measuring.halted([child.pid]):
            until("it stops", lambda: its.status() == psutil.STATUS_STOPPED)
        until("it goes on", lambda: its.status() != psutil.STATUS_STOPPED)
        child.communicate(os.linesep.encode())

    assert child.returncode == 0
