"""C on the blocks of a Dask array, where they lie, with the communicator of the call."""

from __future__ import annotations

import ctypes
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

from workbench import blocks, place, run_on_ranks
from workbench.errors import InvalidRequest
from workbench.mpi.native import build, handle, pointer

pytestmark = pytest.mark.mpi_flavor

SOURCE = Path(__file__).parents[2] / "notebooks" / "covariance.c"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(SOURCE, folder=tmp_path_factory.mktemp("libraries"))


@pytest.fixture
def X(client4):
    rows = np.random.default_rng(0).normal(size=(10_001, 7)) * np.arange(1, 8) + 100
    return place(da.from_array(rows, chunks=(3000, 7)))


def covariance(comm, X, library):
    """Call the program and return where the block lies, the error code, the means and the covariance."""
    columns = X.shape[1]
    mean, cov = np.full(columns, np.nan), np.full((columns, columns), np.nan)
    error = ctypes.CDLL(library).covariance(
        handle(comm),
        ctypes.c_long(len(X)),
        ctypes.c_int(columns),
        pointer(X, "float64"),
        pointer(mean, "float64", writable=True),
        pointer(cov, "float64", writable=True),
    )
    return X.ctypes.data, error, mean, cov


def addresses(keys, dask_worker):
    """Return the addresses of blocks in the memory of a Dask worker."""
    return [dask_worker.data[key].ctypes.data for key in keys if key in dask_worker.data]


def test_c_gets_the_blocks_where_dask_holds_them(client4, X, library):
    called = run_on_ranks(covariance, X, library)
    held = client4.run(addresses, [block.key for block in blocks(X)])

    assert sorted(held.values()) == sorted([address] for address, *_ in called)


def test_c_computes_what_numpy_does(client4, X, library):
    results = run_on_ranks(covariance, X, library)

    whole = X.compute()
    for _, error, mean, cov in results:
        assert error == 0
        np.testing.assert_allclose(mean, whole.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(cov, np.cov(whole, rowvar=False), rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(cov, results[0][3])


def test_an_error_code_of_c_arrives_on_all_ranks(client4, library):
    def of_one_row(comm, library):
        """Take the covariance of one row in all: there is none."""
        from mpi4py import MPI

        error = covariance(comm, np.ones((1 if comm.rank == 2 else 0, 3)), library)[1]
        return MPI.Get_error_class(error) == MPI.ERR_COUNT

    assert run_on_ranks(of_one_row, library, client=client4) == [True] * 4


def test_communicators_made_from_the_one_of_the_call_have_handles_too(client4, X, library):
    def by_halves(comm, X, library):
        half = comm.Split(comm.rank % 2, comm.rank)
        mean = covariance(half, X, library)[2]
        half.Free()
        with pytest.raises(InvalidRequest):
            handle(half)
        return mean

    means = run_on_ranks(by_halves, X, library, client=client4)

    parts = [block.result() for block in blocks(X)]
    for rank, mean in enumerate(means):
        np.testing.assert_allclose(mean, np.concatenate(parts[rank % 2 :: 2]).mean(axis=0), rtol=1e-12)


def test_ranks_may_build_it_themselves_and_one_of_a_node_does(client4, tmp_path):
    def build_here(comm, source, folder):
        return build(source, folder=folder)

    built = run_on_ranks(build_here, SOURCE, tmp_path / "libraries", client=client4)

    assert len(set(built)) == 1
    assert sorted((tmp_path / "libraries").iterdir()) == sorted([Path(built[0]), tmp_path / "libraries" / "lock"])


def test_what_is_no_communicator_and_a_block_of_another_dtype_are_refused_by_name(client4, X, library):
    with pytest.raises(InvalidRequest):
        run_on_ranks(lambda comm: handle(comm.rank), client=client4)
    with pytest.raises(InvalidRequest):
        run_on_ranks(covariance, place(X.astype("float32")), library, client=client4)
