"""The bench of how fits scale, at a tiny size, and the memory that they take, at one where it shows."""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
import pytest
from distributed import Client

from workbench import MPICluster
from workbench.bench import arms, scaling
from workbench.bench.bare_fits import Order
from workbench.bench.measuring import Watch
from workbench.launch import mpi_library

MIB = 2**20


def test_scaling_measures_both_kinds_on_every_arm():
    parser = argparse.ArgumentParser()
    scaling.add_options(parser)

    report = scaling.run(parser.parse_args(["--ranks=1", "--rounds=1", "--iterations=2", "--rows=4000"]))

    every = product(arms.MODELS, scaling.KINDS, (1,), ("mpi", "dask", "bare"))
    assert [(row["model"], row["scaling"], row["ranks"], row["arm"]) for row in report.rows] == list(every)
    assert {(row["rows"], row["fits"], row["efficiency"]) for row in report.rows} == {(4000, 1, 1.0)}
    assert min(row["seconds"] for row in report.rows) > 0


def test_no_rank_holds_more_than_its_block_and_the_work_space_that_is_stated():
    rows = 24 * MIB // Order("kmeans", 1, 1).nbytes
    with (
        arms.bare_world(mpi_library.find(), 2) as bare,
        MPICluster(2, quiet=True) as cluster,
        Client(cluster) as client,
    ):
        measured = {model: arms.Arms(client, bare, Order(model, rows, 2)) for model in arms.MODELS}
        # Twice, because other threads of a rank take and return some memory meanwhile.
        grown = {model: [each.growth() for _ in range(2)] for model, each in measured.items()}

    for model, rounds in grown.items():
        assert [set(by_arm) for by_arm in rounds] == [{"mpi", "dask", "bare"}] * 2
        for arm in rounds[0]:
            low, high = sorted(by_arm[arm].nbytes for by_arm in rounds)
            # At least a label, or a code, of every row; a copy of the block would be far above.
            assert 4 * rows <= high, (model, arm)
            assert low <= scaling.stated(model, rows) < 16 * MIB, (model, arm)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_watch_sees_memory_that_is_taken(sampled):
    watch = Watch(sampled=sampled)
    taken = np.ones(32 * MIB // 8)
    growth = watch.end()

    # Other threads of this process, of its client for one, take and return some memory meanwhile.
    assert abs(growth.nbytes - taken.nbytes) < 8 * MIB
    assert growth.how == "samples" or not sampled


def test_a_watch_sees_memory_that_was_free_before():
    for _ in range(2):
        watch = Watch()
        np.ones(32 * MIB // 8)
        assert abs(watch.end().nbytes - 32 * MIB) < 8 * MIB
