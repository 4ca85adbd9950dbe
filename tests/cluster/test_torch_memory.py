"""The memory of ranks with PyTorch: each test has a separate cluster."""

from __future__ import annotations

import math
from collections.abc import Iterator

import dask.array as da
import pytest
from distributed import Client
from support import streamed, stripped
from support.spmd import be_patient

from benchmarks import strips as bench
from benchmarks.strips import ONE, STRIPS, Bench
from workbench import MPICluster, run_on_ranks
from workbench.torch import stream


@pytest.fixture
def fresh4() -> Iterator[Client]:
    """A client of 4 ranks for tests of memory: what malloc keeps of other tests would be used again unseen."""
    with MPICluster(4, preload="workbench.torch", quiet=True) as cluster, Client(cluster) as client:
        client.run_on_scheduler(be_patient)
        yield client


@pytest.mark.parametrize("shuffle", [pytest.param("exchange", marks=pytest.mark.mpi_flavor), "local"])
def test_the_memory_of_a_rank_has_no_more_than_some_chunks(fresh4, shuffle):
    # 64 chunks of 4 MiB, of which a rank reads 16, and one in each window.
    rows, columns = 64 * 64, 8192
    lazy = stream(da.random.default_rng(0).random((rows, columns), chunks=(64, columns)), window=4)
    smallest = [math.inf] * 4
    # Other threads of a rank add to a measurement, more on a busy machine, so the smallest one of up to five counts.
    for _ in range(5):
        found = run_on_ranks(streamed.growth, lazy, 64, shuffle=shuffle, client=fresh4)
        assert [count for count, _ in found] == [rows // 4] * 4
        smallest = [min(before, nbytes) for before, (_, nbytes) in zip(smallest, found, strict=True)]
        if max(smallest) < 10 * (4 << 20):
            break
    assert max(smallest) < 10 * (4 << 20)


def test_four_ranks_train_within_half_of_the_memory_in_which_one_process_does_not(fresh4, tmp_path):
    stripped.written(tmp_path, size := 384)
    [(loss, needed)] = from_zarr(fresh4, tmp_path, None, alone=True)
    small = from_zarr(fresh4, tmp_path, needed // 2, alone=False)

    assert from_zarr(fresh4, tmp_path, needed // 2, alone=True)[0][0] == "out of memory"
    assert [found for found, _ in small] == [pytest.approx(loss, abs=1e-5)] * 4
    assert max(nbytes for _, nbytes in small) < needed // 2
    assert needed > 20 * 12 * size**2


def from_zarr(client, path, nbytes, *, alone):
    """Return what ranks found, after they have done the same without a limit once."""
    for limit in (None, nbytes):
        answers = run_on_ranks(stripped.trained_from_zarr, str(path), limit, alone=alone, client=client)
    return [answer for answer in answers if answer is not None]


def test_the_strips_bench_has_the_same_gradients_in_less_memory(fresh4):
    measured = Bench(fresh4, 384, 8)
    assert measured.check() <= 1e-10
    rows = list(measured.measure(1))
    summary = bench.summarize(rows) | measured.limited(rows)

    assert {(row["arm"], row["ranks"]) for row in rows} == {(STRIPS, 4), (ONE, 1)}
    # The bench has the target, for a larger image: here a part of the memory does not depend on the image.
    assert summary["memory"] <= 0.5
    assert (summary["strips_within_limit"], summary["one_process_within_limit"]) == ("trains", "out of memory")
