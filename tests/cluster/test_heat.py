"""Blocks of a Dask array as an array of Heat, and back."""

from __future__ import annotations

import argparse

import dask.array as da
import numpy as np
import pytest

from benchmarks import peers
from benchmarks.contests import HEAT, OURS
from workbench import blocks, place, run_on_ranks
from workbench.errors import InvalidRequest
from workbench.mpi.heat import from_heat, to_heat

pytestmark = pytest.mark.heat

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64", "complex64", "complex128"]


def import_heat(comm):
    """Import Heat on all ranks of the world, as `to_heat` does on its own when it is called on all."""
    import heat

    return heat.__version__


@pytest.fixture
def X(client4):
    rows = np.random.default_rng(0).normal(size=(10_001, 7)) * np.arange(1, 8) + 100
    return place(da.from_array(rows, chunks=(3000, 7)))


def test_heat_computes_what_numpy_does_and_the_result_is_a_dask_array_beside_the_blocks(client4, X):
    def centered(comm, X):
        import heat

        X = to_heat(comm, X)
        # heat.mean is of single precision when it puts the ranks together
        return from_heat(X - heat.sum(X, axis=0) / len(X))

    made = run_on_ranks(centered, X, result="blocks")

    assert made.chunks == X.chunks
    held = [[client4.who_has(block)[block.key] for block in blocks(array)] for array in (X, made)]
    assert held[0] == held[1]
    whole = X.compute()
    np.testing.assert_allclose(made.compute(), whole - whole.mean(axis=0), atol=1e-9)


def test_the_memory_of_the_blocks_is_that_of_the_array_on_the_way_there_and_back(client4, X):
    def addresses(comm, X):
        array = to_heat(comm, X)
        return X.ctypes.data, array.larray.data_ptr(), from_heat(array).ctypes.data, tuple(array.shape), array.split

    for block, tensor, back, shape, split in run_on_ranks(addresses, X):
        assert block == tensor == back
        assert (shape, split) == ((10_001, 7), 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_type_of_heat_keeps_its_values_its_shape_and_its_memory(client4, dtype):
    def there_and_back(comm, dtype):
        kept = []
        for tail in ((), (1,), (3,), (1, 5), (3, 1)):
            block = np.arange((4 + comm.rank) * int(np.prod(tail))).reshape(-1, *tail).astype(dtype)
            back = from_heat(to_heat(comm, block))
            kept.append(
                back.ctypes.data == block.ctypes.data and back.dtype == block.dtype and back.shape == block.shape
            )
        return kept

    assert run_on_ranks(there_and_back, dtype, client=client4) == [[True] * 5] * 4


def test_a_rank_without_rows_takes_part(client4):
    def mean(comm):
        import heat

        array = to_heat(comm, np.full((0 if comm.rank == 1 else 5, 2), float(comm.rank)))
        return tuple(array.shape), heat.mean(array, axis=0).larray.tolist(), from_heat(array).shape

    results = run_on_ranks(mean, client=client4)

    assert [result[:2] for result in results] == [((15, 2), pytest.approx([5 / 3] * 2))] * 4
    assert [result[2] for result in results] == [(5, 2), (0, 2), (5, 2), (5, 2)]


def test_arrays_of_one_call_go_together(client4, X):
    def products(comm, X):
        import heat

        array = to_heat(comm, X)
        gram = (heat.matmul(heat.transpose(array), to_heat(comm, X))).numpy()
        return gram, from_heat(array + to_heat(comm, 2 * X)).sum()

    whole = X.compute()
    for gram, _ in run_on_ranks(products, X):
        np.testing.assert_allclose(gram, whole.T @ whole, rtol=1e-9)


def test_heat_clusters_placed_blocks(client4):
    centers = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = np.concatenate([np.random.default_rng(0).normal(center, 0.1, size=(400, 2)) for center in centers])

    def kmeans(comm, points):
        import heat

        found = heat.cluster.KMeans(n_clusters=3, init="kmeans++", random_state=1).fit(to_heat(comm, points))
        return found.cluster_centers_.numpy()

    found = run_on_ranks(kmeans, place(points[np.random.default_rng(1).permutation(len(points))]), result="root")

    np.testing.assert_allclose(sorted(found.round().tolist()), sorted(centers.tolist()), atol=1e-6)


def test_ranks_of_a_part_of_the_world_need_heat_imported_before(client4):
    run_on_ranks(import_heat, client=client4)

    def of_halves(comm):
        half = comm.Split(comm.rank % 2, comm.rank)
        return tuple(to_heat(half, np.ones((3, 2))).shape)

    assert run_on_ranks(of_halves, client=client4) == [(6, 2)] * 4


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda rank: np.zeros((3, 2), object if rank == 2 else float),
            "rank 2 of 4 has no block .* no type for object",
        ),
        (lambda rank: np.zeros((3, 2 + rank // 3)), r"rank 0 has float64 of shape \(rows, 2\); rank 3 has .*rows, 3\)"),
        (lambda rank: np.zeros((3, 2), f"f{8 - 4 * (rank == 1)}"), r"rank 1 has float32 of shape \(rows, 2\)"),
        (lambda _: [1.0], "rank 0 of 4 .* list is not an array of rows"),
        (lambda _: np.zeros((2, 3)).T, r"the block is not contiguous, or is read-only\. Pass block\.copy\(\)"),
        (lambda _: np.broadcast_to(1.0, (3,)), r"the block is not contiguous, or is read-only\. Pass block\.copy\(\)"),
    ],
)
def test_blocks_that_are_none_of_heats_are_refused_by_name_and_the_next_call_works(client4, make, said):
    with pytest.raises(InvalidRequest, match=said):
        run_on_ranks(lambda comm: to_heat(comm, make(comm.rank)), client=client4)
    assert run_on_ranks(import_heat, client=client4)


def test_an_array_that_is_not_split_by_rows_is_no_block(client4):
    def other(comm):
        import heat

        return from_heat(heat.resplit(to_heat(comm, np.zeros((2, 8))), 1))

    with pytest.raises(InvalidRequest):
        run_on_ranks(other, client=client4)
    with pytest.raises(InvalidRequest):
        from_heat(np.zeros(3))


def test_the_bench_of_peers_compares_its_k_means_with_ours(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: name if name == "heat" else None)
    parser = argparse.ArgumentParser()
    peers.add_options(parser)

    report = peers.run(parser.parse_args(["--rounds=1", "--scale=0.01"]))

    assert {row["arm"] for row in report.rows if row["what"] == "kmeans"} == {OURS, HEAT}
    assert report.summary["kmeans_vs_heat"] > 0
    assert "heat" not in report.summary["left_out"].split("; to get them")[0]
