"""The benches that measure on clusters, at a tiny size."""

from __future__ import annotations

import argparse
from itertools import product

import pytest
from support.raised import raises

from benchmarks import apps, idle
from workbench.bench import broadcast, spmd
from workbench.errors import InvalidRequest


def _run(module, *words):
    parser = argparse.ArgumentParser()
    module.add_options(parser)
    return module.run(parser.parse_args(words))


APPS = ("transpose", "merge", "svd")


@pytest.mark.long
def test_apps_measures_every_program_on_every_arm():
    report = _run(apps, "--pairs=1", "--scale=0.01")

    arms = ("tcp", "mpi", "tls", "mpi_tls")
    assert {(row["app"], row["arm"]) for row in report.rows} == set(product(APPS, arms))
    assert min(report.summary[app + ending] for app in APPS for ending in ("", "_tls")) > 0


@pytest.mark.long
def test_idle_looks_at_all_processes_of_both_clusters():
    report = _run(idle, "--ranks=2", "--windows=1", "--seconds=3")

    assert len(report.rows) == 1
    assert report.summary["mpi_percent"] > 0
    assert report.summary["tcp_percent"] > 0


def test_broadcast_has_the_array_on_every_rank_by_both_ways():
    report = _run(broadcast, "--pairs=1", "--ranks=2", "--size=4MiB")

    assert [(row["arm"], row["nbytes"]) for row in report.rows] == [("scatter", 2**22), ("broadcast", 2**22)]
    assert report.summary["speedup"] > 0


def test_spmd_times_empty_calls_at_both_sizes_and_the_kernel_in_both_arms():
    report = _run(spmd, "--ranks=1", "--many=2", "--rounds=1", "--size=64KiB", "--seconds=0.01")

    measured = [("empty call", "spmd", 1), ("kernel", "bare", 1), ("kernel", "spmd", 1), ("empty call", "spmd", 2)]
    assert [(row["what"], row["arm"], row["ranks"]) for row in report.rows] == measured
    assert min(row["ms"] for row in report.rows) > 0
    assert min(report.summary[name] for name in ("empty_call_ms", "empty_call_2_ms", "kernel_ratio")) > 0


def test_spmd_refuses_a_second_cluster_that_is_not_larger():
    with raises(InvalidRequest, option="many", given=2):
        _run(spmd, "--many=2")
