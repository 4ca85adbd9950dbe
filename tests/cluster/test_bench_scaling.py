"""The bench of how fits scale, at a size at which the memory that they take shows."""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
import pytest

from workbench.bench import arms, scaling
from workbench.bench.peak import Watch
from workbench.bench.training import Order

MIB = 2**20


def test_every_arm_on_every_number_of_ranks_finds_the_same_and_takes_no_more_memory_than_is_stated():
    parser = argparse.ArgumentParser()
    scaling.add_options(parser)
    rows = 32 * MIB // Order("kmeans", 1, 1).nbytes
    short = ["--ranks=2", "--rounds=1", "--iterations=2", f"--rows={rows - 1}"]

    report = scaling.run(parser.parse_args(short))

    every = product(arms.MODELS, scaling.KINDS, (1, 2), ("mpi", "dask", "bare"))
    assert [(row["model"], row["scaling"], row["ranks"], row["arm"]) for row in report.rows] == list(every)
    of_rank = {("strong", 1): rows, ("strong", 2): rows // 2, ("weak", 1): rows, ("weak", 2): rows}
    assert {(row["scaling"], row["ranks"]): row["rows"] for row in report.rows} == of_rank
    assert min(row["seconds"] for row in report.rows) > 0
    assert {row["efficiency"] for row in report.rows if row["ranks"] == 1} == {1.0}
    for row in report.rows:
        # At least a label, or a code, of every row; a copy of the block would be far above.
        assert 4 * row["rows"] <= row["beyond_block"] <= row["stated"] < 256 * row["rows"]


@pytest.mark.parametrize("sampled", [False, True])
def test_a_watch_sees_memory_that_is_taken(sampled):
    watch = Watch(sampled=sampled)
    taken = np.ones(32 * MIB // 8)
    growth = watch.end()

    assert abs(growth.nbytes - taken.nbytes) < MIB
    assert growth.how == "samples" or not sampled


def test_a_watch_sees_memory_that_was_free_before():
    for _ in range(2):
        watch = Watch()
        np.ones(32 * MIB // 8)
        assert abs(watch.end().nbytes - 32 * MIB) < MIB
