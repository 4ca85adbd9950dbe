"""Placed collections of a notebook get one block per rank again, when the ranks are others than before."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import torch
from distributed import Client, LocalCluster
from support.raised import raises

from workbench import blocks, map_blocks, place
from workbench.errors import PlacementError
from workbench.placement import pinning
from workbench.placement.place import PlacedBlocks, place_again

TABLE = np.arange(300.0).reshape(100, 3)
FRAME = pd.DataFrame({"delay": np.arange(100), "carrier": pd.Categorical(["AA", "UA"] * 50)})


@pytest.fixture
def start():
    """Start clusters of so many ranks, and return a client of each."""
    opened = []

    def run(ranks):
        cluster = LocalCluster(
            n_workers=ranks, threads_per_worker=1, processes=False, protocol="tcp://", dashboard_address=":0"
        )
        opened.append((Client(cluster), cluster))
        return opened[-1][0]

    yield run
    for client, cluster in reversed(opened):
        client.close()
        cluster.close()


def grow(client, ranks):
    client.cluster.scale(ranks)
    client.wait_for_workers(ranks)
    pinning.forget_pins()


def shrink(client, gone):
    """Let the ranks with these names leave, and the others get their values."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    client.retire_workers([address for address, worker in workers.items() if worker["name"] in gone])
    pinning.forget_pins()


def names_of(client, X):
    names = {rank.address: rank.name for rank in pinning.target_workers(client, "rank")}
    return [names[pin.address] for pin in PlacedBlocks.of(X, client).pins]


def test_collections_get_a_block_on_each_further_rank_and_keep_their_rows(start):
    client = start(2)
    X, frame = place(TABLE, dd.from_pandas(FRAME, npartitions=3))
    node = place(TABLE, per="node")
    names = {"X": X, "same": X, "_": X, "frame": frame, "node": node, "plain": TABLE, "lazy": X + 1, "text": "placed"}
    before = dict(names)
    grow(client, 4)

    assert place_again(names, client.scheduler_info()["id"]) == (["X", "same", "frame"], [])

    assert names["X"] is names["same"]
    assert all(names[name] is before[name] for name in ("_", "node", "plain", "lazy", "text"))
    assert names_of(client, names["X"]) == names_of(client, names["frame"]) == [0, 1, 2, 3]
    np.testing.assert_array_equal(names["X"].compute(), TABLE)
    pd.testing.assert_frame_equal(names["frame"].compute(), FRAME)
    lengths = client.gather(map_blocks(lambda X, frame: (len(X), len(frame)), names["X"], names["frame"]))
    assert lengths == [(25, 25)] * 4
    assert place_again(names, client.scheduler_info()["id"]) == ([], [])


def test_blocks_that_share_a_rank_are_refused_until_they_are_placed_again(start):
    client = start(4)
    names = {"X": place(TABLE)}
    client.gather(map_blocks(len, names["X"]))
    shrink(client, {2, 3})
    with pytest.raises(PlacementError):
        PlacedBlocks.of(names["X"], client)

    assert place_again(names, client.scheduler_info()["id"]) == (["X"], [])

    assert names_of(client, names["X"]) == [0, 1]
    np.testing.assert_array_equal(names["X"].compute(), TABLE)


def test_blocks_on_fewer_ranks_than_there_are_stay_usable(start):
    client = start(2)
    X = place(TABLE)
    client.gather(map_blocks(len, X))
    grow(client, 4)

    assert names_of(client, X) == [0, 1]
    assert client.gather(map_blocks(len, X)) == [50, 50]


def test_tensors_stay_tensors_and_keep_no_larger_tensor_alive(start):
    client = start(2)
    names = {"X": place(TABLE, device="cpu")}
    grow(client, 4)

    assert place_again(names, client.scheduler_info()["id"]) == (["X"], [])

    found = client.gather(blocks(names["X"]))
    assert {type(block) for block in found} == {torch.Tensor}
    np.testing.assert_array_equal(torch.cat(found).numpy(), TABLE)
    held = map_blocks(lambda block: block.untyped_storage().nbytes(), names["X"])
    assert client.gather(held) == [25 * 3 * 8] * 4


def test_what_cannot_be_placed_again_stays_with_its_name(start):
    client = start(2)
    X, rows = place(TABLE), place(TABLE[:3])
    names = {"rows": rows, "X": X, "again": rows}
    grow(client, 4)

    assert place_again(names, client.scheduler_info()["id"]) == (["X"], ["rows", "again"])

    assert names["rows"] is names["again"] is rows
    np.testing.assert_array_equal(rows.compute(), TABLE[:3])


def test_collections_of_another_cluster_are_left_alone(start):
    other, client = start(1), start(2)
    names = {"X": place(TABLE, client=other)}
    X = names["X"]

    assert place_again(names, client.scheduler_info()["id"]) == ([], [])
    assert names["X"] is X


def test_ranks_with_other_names_count_only_where_no_rank_has_a_number(start):
    client = start(2)
    addresses = {rank.name: rank.address for rank in pinning.target_workers(client, "rank")}
    workers = client.cluster.scheduler.workers
    workers[addresses[1]].name = "1 of world 1"
    assert [rank.name for rank in pinning.target_workers(client, "rank")] == [0]
    workers[addresses[0]].name = "0 of world 1"
    assert [rank.name for rank in pinning.target_workers(client, "rank")] == ["0 of world 1", "1 of world 1"]
    with raises(PlacementError, option="per", given="host"):
        pinning.target_workers(client, "host")
