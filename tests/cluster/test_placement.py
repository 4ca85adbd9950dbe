"""Blocks on the ranks of an MPI world: rank i holds block i, and keeps it."""

from __future__ import annotations

import operator

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait
from scipy import sparse
from support.processes import DEADLINE

from workbench import MPICluster, blocks, map_blocks, place, reduce
from workbench.errors import RankLost
from workbench.placement.in_use import is_aligned

TABLE = np.arange(40_004.0).reshape(-1, 2)


def mpi_rank(block):
    """Return the rank in the MPI world of the process that holds the block."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.Get_rank()


def test_block_i_lies_on_rank_i_contiguous_and_aligned(client4):
    X, y = place(da.from_array(TABLE, chunks=(999, 1)), TABLE[:, 0].copy())

    assert X.chunks == ((5001, 5001, 5000, 5000), (2,))
    assert client4.gather(map_blocks(mpi_rank, X)) == [0, 1, 2, 3]
    assert client4.gather(map_blocks(is_aligned, X)) == [True] * 4
    assert client4.gather(map_blocks(lambda block, first: np.array_equal(block[:, 0], first), X, y)) == [True] * 4
    assert int(da.sum(y > 100).compute()) == int((TABLE[:, 0] > 100).sum())


@pytest.mark.parametrize("lazy", [False, True])
def test_sparse_rows_lie_in_csr_format(client4, lazy):
    scarce = np.where(TABLE % 7, 0, TABLE)
    given = da.from_array(scarce, chunks=(999, 2)).map_blocks(sparse.csc_array) if lazy else sparse.coo_array(scarce)
    X = place(given)

    assert X.chunks == ((5001, 5001, 5000, 5000), (2,))
    assert client4.gather(map_blocks(mpi_rank, X)) == [0, 1, 2, 3]
    pieces = client4.gather(blocks(X))
    assert [piece.format for piece in pieces] == ["csr"] * 4
    np.testing.assert_array_equal(sparse.vstack(pieces).toarray(), scarce)


def test_sparse_blocks_of_another_process_are_found(client4, cluster4):
    X = place(sparse.csr_array(TABLE))
    with Client(cluster4, set_as_default=False) as other:
        client4.publish_dataset(X, name="sparse")
        try:
            theirs = other.get_dataset("sparse")
            assert other.gather(map_blocks(lambda block: block.shape[0], theirs)) == [5001, 5001, 5000, 5000]
        finally:
            client4.unpublish_dataset("sparse")


@pytest.mark.parametrize("on", ["client", "workers"])
def test_a_sum_over_ranks_is_that_of_the_whole(client4, on):
    X = place(TABLE)
    assert reduce(operator.add, map_blocks(np.sum, X), on=on) == TABLE.sum()


def test_one_host_is_one_node(client4):
    X = place(TABLE, per="node")
    assert client4.gather(map_blocks(mpi_rank, X)) == [0]


def test_the_head_never_drops_or_moves_a_block(client4):
    futures = blocks(place(TABLE))
    wait(futures)
    home = {key: set(holders) for key, holders in client4.who_has(futures).items()}
    assert len(set().union(*home.values())) == 4

    client4.replicate(futures)
    client4.amm.run_once()
    client4.replicate(futures, n=1)
    client4.rebalance(futures)

    now = {key: set(holders) for key, holders in client4.who_has(futures).items()}
    assert all(home[key] <= now[key] for key in home)


def test_blocks_of_a_rank_that_is_gone_fail_at_once_and_say_so():
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        X = place(da.from_array(TABLE, chunks=(999, 2)))
        wait(blocks(X))
        cluster.restart()
        with pytest.raises(RankLost):
            blocks(X)[0].result(DEADLINE / 2)
        with pytest.raises(RankLost):
            client.gather(map_blocks(np.sum, X))
        assert reduce(operator.add, map_blocks(np.sum, place(TABLE))) == TABLE.sum()
