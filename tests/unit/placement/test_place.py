"""Blocks are on their ranks, in order, aligned with each other; what cannot be placed is refused."""

from __future__ import annotations

import asyncio
import functools
import gc
import re
import signal
import threading
from dataclasses import dataclass

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, get_worker, wait
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from support.patience import DEADLINE
from support.processes import until
from support.raised import raises

from workbench import blocks, map_blocks, place, run_on_ranks
from workbench.errors import PlacementError
from workbench.placement import sources
from workbench.placement.in_use import is_aligned

ROWS = 1003
TABLE = np.arange(ROWS * 3, dtype=np.float64).reshape(ROWS, 3)
FRAME = pd.DataFrame(
    {"delay": np.arange(ROWS), "carrier": pd.Categorical((["AA", "UA"] * ROWS)[:ROWS]), "tail": ["N1"] * ROWS}
)
SIZES = (251, 251, 251, 250)

ARRAYS = {
    "numpy": TABLE,
    "numpy in Fortran order": np.asfortranarray(TABLE),
    "numpy view": np.repeat(TABLE, 2, axis=0)[::2],
    "one chunk": da.from_array(TABLE, chunks=-1),
    "many chunks": da.from_array(TABLE, chunks=(100, 2)),
    "a chunk per rank": da.from_array(TABLE, chunks=(SIZES, 3)),
    "chunks of columns": da.from_array(TABLE, chunks=(-1, 1)),
    "not computed": da.from_array(TABLE + 1, chunks=(77, 3)) - 1,
}


def who_runs(block):
    return get_worker().name


def test_an_interrupted_place_leaves_nothing_on_the_ranks(client, local_cluster, monkeypatch):
    scheduler, interrupted, uploaded = local_cluster.scheduler, threading.Event(), threading.Event()
    scatter = scheduler.handlers["scatter"]

    async def interrupting(**upload):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        await asyncio.to_thread(interrupted.wait)
        try:
            return await scatter(**upload)
        finally:
            uploaded.set()

    monkeypatch.setitem(scheduler.handlers, "scatter", interrupting)
    with pytest.raises(KeyboardInterrupt):
        place(TABLE)
    client.sync(asyncio.sleep, 0)  # the cancellation has arrived
    interrupted.set()

    assert uploaded.wait(DEADLINE)
    until("the data are released", lambda: not scheduler.tasks)


@pytest.mark.parametrize("given_array", ARRAYS.values(), ids=ARRAYS.keys())
def test_an_array_gets_one_aligned_block_per_rank_in_rank_order(client, given_array):
    X = place(given_array)

    assert X.chunks == (SIZES, (3,))
    assert client.gather(map_blocks(who_runs, X)) == [0, 1, 2, 3]
    assert client.gather([client.submit(is_aligned, block) for block in blocks(X)]) == [True] * 4
    np.testing.assert_array_equal(X.compute(), TABLE)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 2, 3)])
def test_arrays_of_other_dimensions_are_placed_too(client, shape):
    array = np.random.default_rng(0).integers(0, 100, shape)
    np.testing.assert_array_equal(place(da.from_array(array, chunks=50)).compute(), array)
    np.testing.assert_array_equal(place(array).compute(), array)


@pytest.mark.parametrize("frame", [FRAME, dd.from_pandas(FRAME, npartitions=7)], ids=["pandas", "dask"])
def test_a_frame_gets_one_block_per_rank_with_all_its_rows(client, frame):
    placed, delay = place(frame, frame["delay"])

    assert isinstance(placed, dd.DataFrame)
    assert isinstance(delay, dd.Series)
    assert placed.npartitions == 4
    assert client.gather(map_blocks(len, placed)) == list(SIZES)
    assert client.gather(map_blocks(who_runs, placed)) == [0, 1, 2, 3]
    assert len(placed) == ROWS
    pd.testing.assert_frame_equal(placed.compute(), frame if frame is FRAME else frame.compute())
    assert int((placed["delay"] == delay).sum().compute()) == ROWS


@pytest.mark.parametrize("kind", ["array", "view", "frame", "matrix"])
def test_what_is_written_to_blocks_does_not_reach_what_was_persisted_before(client, kind):
    whole = {"frame": FRAME[["delay"]] + 1.0, "matrix": sparse.csr_matrix(TABLE + 1)}.get(kind, TABLE + 1)
    X = place(whole)  # so that each chunk lies where its block is made
    placed = place(X[:] if kind == "view" else X)

    def clear(block):
        if sparse.issparse(block):
            block.data[:] = 0
        elif isinstance(block, pd.DataFrame):
            block.loc[:, "delay"] = 0.0
        else:
            block[:] = 0

    client.gather(map_blocks(clear, placed))

    assert [float(abs(part).max()) for part in chunk_sums(client, placed)] == [0] * 4
    assert min(float(abs(part).max()) for part in chunk_sums(client, X)) > 0


def chunk_sums(client, collection):
    """Return the sums of the columns of each chunk where it lies."""
    return client.gather([client.submit(column_sums, future, pure=False) for future in sources.futures_in(collection)])


def column_sums(chunk):
    return np.asarray(chunk.sum(axis=0))


def test_a_collection_that_is_placed_twice_in_one_call_has_blocks_of_its_own_each(client):
    X = da.from_array(TABLE, chunks=(SIZES, 3)) + 1
    placed, other = place(X, X)

    def clear(block):
        block[:] = 0

    client.gather(map_blocks(clear, placed))

    assert other.sum().compute() == (TABLE + 1).sum()


def test_a_chunk_that_nobody_else_holds_is_not_copied(client):
    X = da.ones((ROWS, 3), chunks=(SIZES, 3))

    assert [one.shared for one in sources.persist(client, [sources.inspect_collection("X", X)])] == [False]
    # The later one may be computed after a function has written to the blocks of the first.
    both = [sources.inspect_collection("X", one) for one in (X, X + 1)]
    assert [one.shared for one in sources.persist(client, both)] == [True, True]
    table = da.zeros((ROWS, 3), chunks=(SIZES, 3))
    columns = [sources.inspect_collection("X", one) for one in (table[:, :2] + 1, table[:, 2] + 1)]
    assert [one.shared for one in sources.persist(client, columns)] == [False, True]
    kept = X.persist()
    for other in (kept, X, kept[:] + 0):
        assert [one.shared for one in sources.persist(client, [sources.inspect_collection("X", other)])] == [True]


def test_rows_of_all_kinds_of_collections_meet_on_the_same_rank(client):
    frame = dd.from_pandas(FRAME, npartitions=3)
    X, y, z, w = place(da.from_array(TABLE, chunks=(90, 3)), FRAME["delay"], frame, TABLE[:, 0].copy())

    def meet(table, delay, frame, first):
        return (
            np.array_equal(table[:, 0], delay * 3)
            and delay.equals(frame["delay"])
            and np.array_equal(table[:, 0], first)
        )

    assert client.gather(map_blocks(meet, X, y, z, w)) == [True] * 4


@settings(max_examples=10)
@given(
    st.lists(st.integers(1, 30), min_size=4, max_size=8),
    st.integers(1, 40),
)
def test_rows_stay_aligned_whatever_the_chunks_are(client, chunks, others_chunk):
    values = np.arange(sum(chunks))
    X, y = place(da.from_array(values, chunks=(tuple(chunks),)), da.from_array(values, chunks=others_chunk))

    assert all(client.gather(map_blocks(np.array_equal, X, y)))
    np.testing.assert_array_equal(X.compute(), values)


def test_a_placed_collection_is_used_as_any_other(client):
    y = place(da.from_array(TABLE[:, 0] - 300, chunks=100))
    assert int(da.sum(y > 0).compute()) == int(np.sum(TABLE[:, 0] - 300 > 0))


def test_one_block_per_node_lies_on_its_lowest_rank(client):
    X = place(TABLE, per="node")
    assert X.chunks == ((ROWS,), (3,))
    assert client.gather(map_blocks(who_runs, X)) == [0]


def test_a_placed_collection_can_be_placed_again(client):
    again, frame = place(place(TABLE), place(FRAME))
    assert client.gather(map_blocks(lambda block, rows: len(block) == len(rows), again, frame)) == [True] * 4


def test_chunks_that_were_put_together_are_released(client, local_cluster):
    placed = place(dd.from_pandas(FRAME, npartitions=7))
    keys = {block.key for block in blocks(placed)}

    def in_memory():
        return {key for key, task in local_cluster.scheduler.tasks.items() if task.state == "memory"}

    gc.collect()  # collections of other tests, in cycles
    until("only the blocks are kept", lambda: in_memory() == keys)


def test_functions_get_their_block_with_values_and_keywords(client):
    X, y = place(TABLE, TABLE[:, 1].copy())
    scale = client.submit(lambda: 2.0)
    halves = [client.submit(lambda: 0.5), 1]

    def check(block, target, factor, parts, *, weights, again):
        return np.array_equal(block[:, 1], target) and target is not again, factor, parts, weights

    results = client.gather(map_blocks(check, X, y, scale, halves, weights=(1, 2), again=y))
    assert results == [(False, 2.0, [0.5, 1], (1, 2))] * 4


@dataclass
class Holder:
    value: object

    def __call__(self, block):
        return len(self.value)


WITHIN = {
    "attribute": lambda given: ([lambda _, held: len(held.value)], [Holder(given)], ", Holder.value,"),
    "partial": lambda given: ([functools.partial(lambda _, rows: len(rows), rows=given)], [], ""),
    "variable": lambda given: ([lambda _: len(given)], [], ", given,"),
    "object that is a function": lambda given: ([Holder(given)], [], ""),
    "dict in a list": lambda given: ([lambda _, held: len(held)], [[{"rows": given}]], ", dict,"),
    "list": lambda given: ([lambda _, held: len(held)], [(given,)], ", tuple,"),
}


@pytest.mark.parametrize("way", WITHIN)
@pytest.mark.parametrize("kind", ["dask.Array", "distributed.Future"])
def test_what_lies_on_the_ranks_is_refused_inside_of_other_objects_which_would_have_all_rows(client, kind, way):
    X = place(TABLE)
    (function,), values, path = WITHIN[way](X if kind == "dask.Array" else client.submit(len, "abc"))
    words = rf"uses a {re.escape(kind)}{re.escape(path)} inside of another object or as a variable\. Pass placed"
    with pytest.raises(PlacementError, match=words):
        map_blocks(function, X, *values)


def test_futures_in_lists_of_a_list_with_a_future_are_passed_as_their_values(client):
    length = client.submit(len, "abc")
    assert client.gather(map_blocks(lambda _, held: held, place(TABLE), [length, [length, 1]])) == [[3, [3, 1]]] * 4


def test_a_lazy_collection_may_be_inside_of_an_object(client):
    X = place(TABLE)
    assert client.gather(map_blocks(lambda _, held: held.value.shape, X, Holder(X + 1))) == [TABLE.shape] * 4


def test_every_call_runs_anew(client):
    X = place(TABLE)
    first, second = map_blocks(np.sum, X), map_blocks(np.sum, X)
    assert not {future.key for future in first} & {future.key for future in second}


def test_a_call_asks_the_scheduler_nothing(client, local_cluster, monkeypatch):
    X, y = place(TABLE, TABLE[:, 0].copy())
    monkeypatch.setattr(client, "sync", None)  # every question goes through it
    assert len(map_blocks(np.array_equal, X, y)) == 4


def test_another_client_finds_the_blocks_of_a_published_collection(client, local_cluster):
    client.publish_dataset(X=place(TABLE), frame=place(FRAME))
    with Client(local_cluster, set_as_default=False) as other:
        X, frame = other.get_dataset("X"), other.get_dataset("frame")
        assert other.gather(map_blocks(lambda a, b: (get_worker().name, len(a) - len(b)), X, frame, client=other)) == [
            (number, 0) for number in range(4)
        ]
    client.unpublish_dataset("X")
    client.unpublish_dataset("frame")


def test_another_client_finds_blocks_that_only_some_of_the_ranks_have(client, local_cluster):
    """A call with ``ranks=[1, 2]`` and ``result="blocks"`` returns a collection like this."""
    X = place(TABLE)
    name = sources.placed_name("rank", 1, 0)
    values = [
        client.submit(np.copy, block, key=(name, number, 0), workers=[number + 1])
        for number, block in enumerate(blocks(X)[1:3])
    ]
    wait(values)
    client.publish_dataset(
        some=sources.collection(
            np.empty((0, 3)), name, dict(zip(((name, 0, 0), (name, 1, 0)), values, strict=True)), SIZES[1:3]
        )
    )
    with Client(local_cluster, set_as_default=False) as other:
        found = map_blocks(who_runs, other.get_dataset("some"), client=other)
        assert other.gather(found) == [1, 2]
    client.unpublish_dataset("some")


class OfAnotherLibrary:
    """An array as CuPy has them: with the properties that Dask needs, and with DLPack."""

    def __init__(self, array):
        self.array, self.shape, self.ndim, self.dtype = array, array.shape, array.ndim, array.dtype

    def __getitem__(self, part):
        return OfAnotherLibrary(self.array[part])

    def astype(self, dtype):
        return OfAnotherLibrary(self.array.astype(dtype))

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_chunks_of_a_library_with_dlpack_are_placed_as_tensors(client):
    import torch

    there = da.from_array(TABLE, chunks=(100, 3)).map_blocks(
        OfAnotherLibrary, dtype=TABLE.dtype, meta=OfAnotherLibrary(np.empty((0, 0)))
    )
    with pytest.raises(PlacementError):
        place(there)
    placed, labels = place(there, TABLE[:, 0].copy(), device="cpu")
    found = [block.result() for block in blocks(placed)]
    assert {type(block) for block in found} == {torch.Tensor}
    np.testing.assert_array_equal(torch.cat(found).numpy(), TABLE)
    np.testing.assert_array_equal(torch.cat([block.result() for block in blocks(labels)]).numpy(), TABLE[:, 0])


# --- what is refused

UNKNOWN = da.from_array(TABLE, chunks=100)
UNKNOWN = UNKNOWN[UNKNOWN[:, 0] > 0]

REFUSED = {
    "no rows": ((np.empty((0, 3)),), r"X is empty: its shape is \(0, 3\)"),
    "no columns": ((da.zeros((10, 0)),), r"X is empty: its shape is \(10, 0\)"),
    "an empty frame": ((FRAME.iloc[:0],), r"X is empty: its shape is \(0, 3\)"),
    "an empty dask frame": ((dd.from_pandas(FRAME, npartitions=2).query("delay < 0"),), r"X is empty"),
    "unknown chunks": ((UNKNOWN,), r"X has chunks of unknown lengths.*X\.compute_chunk_sizes\(\)"),
    "fewer rows than ranks": (
        (TABLE[:3],),
        r"X has 3 rows for 4 blocks.*fewer ranks.*fit in this process.*X\.compute\(\)",
    ),
    "other lengths": ((TABLE, FRAME, TABLE[1:]), r"others\[1\] has 1002 rows and X has 1003"),
    "other lengths, once computed": ((TABLE[1:], dd.from_pandas(FRAME, npartitions=2)), r"others\[0\] has 1003 rows"),
    "one number": ((np.array(1.0),), r"X is one number and has no rows"),
    "a list": (([1, 2, 3, 4],), r"X is a list, which cannot be placed\. Convert X to a Dask or NumPy array"),
    "a masked array": ((np.ma.masked_array(TABLE),), r"X is a numpy\.\w+(\.\w+)*, which cannot be placed"),
    "an index": ((FRAME.index,), r"X is a pandas\.\w+, which cannot be placed"),
    "a delayed value": ((dask.delayed(1),), r"X is a dask\.Delayed\w*, which cannot be placed"),
    "blocks over the memory limit": (
        (da.zeros((4_000_000, 1000)), np.empty(4_000_000)),
        r"block of rank 0 would have 7\.46 GiB, and the memory limit of the rank is 3\.73 GiB\. Use more ranks",
    ),
}


@pytest.mark.parametrize(("collections", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_placed_is_refused_in_one_sentence(client, collections, message):
    with pytest.raises(PlacementError, match=message):
        place(*collections)


def test_a_frame_that_has_lost_partitions_when_dask_persisted_it_is_refused(client, tmp_path):
    for part in range(8):
        FRAME[part::8].to_parquet(tmp_path / f"{part}.parquet")
    lazy = dd.read_parquet(tmp_path, columns=FRAME.columns[:1])
    for frame in (lazy.persist(), lazy.persist() + 1):
        with pytest.raises(PlacementError):
            place(frame)
    assert len(place(lazy)) == len(place(dd.from_pandas(FRAME, npartitions=8).persist())) == len(FRAME)


def test_blocks_for_something_else_than_ranks_and_nodes_are_refused(client):
    with raises(PlacementError, option="per", given="nodes"):
        place(TABLE, per="nodes")


def test_a_collection_that_is_not_placed_is_refused(client):
    X = place(TABLE)
    for other in (
        da.from_array(TABLE),
        client.persist(da.ones(8)),
        X + 1,
        dd.from_pandas(FRAME),
        place(FRAME)["delay"],
    ):
        with pytest.raises(PlacementError):
            blocks(other)
        with pytest.raises(PlacementError):
            map_blocks(len, X, other)
    with pytest.raises(PlacementError):
        map_blocks(len, TABLE)


@pytest.mark.parametrize("other", [lambda: place(TABLE[1:]), lambda: place(TABLE, per="node")], ids=["rows", "ranks"])
def test_a_collection_that_is_placed_differently_is_refused(client, other):
    with pytest.raises(PlacementError):
        map_blocks(len, place(TABLE), other())


def test_a_cluster_without_ranks_is_refused(local_cluster):
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as empty,
        Client(empty, set_as_default=False) as lonely,
        pytest.raises(PlacementError),
    ):
        place(TABLE, client=lonely)


@pytest.fixture
def elsewhere():
    """A client of another cluster, of one worker."""
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_what_is_on_another_cluster_is_refused(client, elsewhere):
    X, there = place(TABLE), place(TABLE, client=elsewhere)
    here = client.scheduler.address
    both = rf"on the cluster at {elsewhere.scheduler.address}, .* the cluster at {here}\. Pass a client"
    for ask in (
        lambda: map_blocks(len, there, client=client),
        lambda: map_blocks(len, X, there),
        lambda: map_blocks(len, X, elsewhere.submit(len, [])),
        lambda: map_blocks(len, X, [elsewhere.submit(len, [])]),
        lambda: place(there, client=client),
        lambda: run_on_ranks(len, elsewhere.submit(len, []), client=client),
    ):
        with pytest.raises(PlacementError, match=both):
            ask()


def test_a_closed_client_is_refused(local_cluster):
    with Client(local_cluster, set_as_default=False) as closed:
        pass
    with pytest.raises(PlacementError):
        place(TABLE, client=closed)


@pytest.mark.parametrize("thing", ["a cluster's address", LocalCluster])
def test_what_is_no_client_is_refused(thing):
    with raises(PlacementError, option="client"):
        place(np.zeros(8), client=thing)


async def test_an_asynchronous_client_is_refused(local_cluster):
    async with Client(local_cluster.scheduler_address, asynchronous=True, set_as_default=False) as client:
        with raises(PlacementError, option="client"):
            place(TABLE, client=client)
