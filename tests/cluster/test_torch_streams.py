"""Rows that are computed while ranks train. One file, so that one world imports PyTorch, once."""

from __future__ import annotations

import functools
from concurrent.futures import CancelledError

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from support import streamed, torched
from support.patience import DEADLINE
from support.processes import until
from support.raised import raises
from support.spmd import doing, total, wait_for

from workbench import place, run_on_ranks, spmd
from workbench.cells import client as cells
from workbench.errors import InvalidRequest, PlacementError
from workbench.torch import fit, stream

COLUMNS = list("abcdef")
# So that Dask does not call functions of blocks to know their type.
NUMBERS = np.empty(0, int)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    """Return a lazy frame of the rows of `torched.blobs` with their labels, in eight files."""
    X, y = torched.blobs()
    frame = pd.DataFrame(X, columns=COLUMNS).assign(label=y)
    return streamed.in_files(frame, tmp_path_factory.mktemp("parquet"), 8)


@pytest.fixture
def streams(parquet):
    return functools.partial(stream, parquet[COLUMNS], parquet["label"])


@pytest.mark.parametrize("window", [1, 5, 16])
def test_losses_of_a_frame_in_parquet_are_those_of_rows_in_memory(client4, streams, window):
    X, y = place(*torched.blobs(), client=client4)
    options = {"epochs": 2, "size": 24, "shuffle": None}
    in_memory = fit(torched.net(), torched.cross_entropy, X, y, validation=(X, y), **options)
    lazy, options["client"] = streams(window=window), client4
    found = fit(torched.net(), torched.cross_entropy, lazy, validation=streams(), **options)

    assert found == [pytest.approx(record, abs=1e-12) for record in in_memory]


def test_losses_of_images_in_zarr_are_those_of_images_in_memory(client4, tmp_path):
    source = np.random.default_rng(4)
    images, labels = source.normal(size=(80, 2, 4, 4)), source.integers(0, 3, 80)
    da.from_array(images, chunks=(10, 1, 4, 4)).to_zarr(tmp_path / "images", compute=True)
    da.from_array(labels, chunks=80).to_zarr(tmp_path / "labels", compute=True)
    lazy = stream(da.from_zarr(tmp_path / "images"), da.from_zarr(tmp_path / "labels"))
    options = {"epochs": 2, "size": 16, "shuffle": None, "client": client4}
    in_memory = fit(streamed.net_of_images(), torched.cross_entropy, *place(images, labels), **options)

    assert repr(lazy) == "<stream of 8 chunks, window=16>"
    found = fit(streamed.net_of_images(), torched.cross_entropy, lazy, **options)
    assert found == [pytest.approx(record, abs=1e-12) for record in in_memory]


def test_batches_of_a_stream_are_the_same_on_any_number_of_ranks(client4):
    lazy = stream(*streamed.numbered(7), window=3)
    taken = functools.partial(torched.batched, size=8)
    one, two, four = (
        run_on_ranks(torched.of_part, ranks, taken, lazy, None, 2, client=client4)[0] for ranks in (1, 2, 4)
    )
    assert one == two == four
    assert one[0] != one[1]
    for epoch in one:
        rows = [row for batch in epoch for row in batch]
        assert len(rows) == len({*rows}) == 40
        assert [len(batch) for batch in epoch] == [8] * 5


@pytest.mark.parametrize("shuffle", [pytest.param("exchange", marks=pytest.mark.mpi_flavor), "local", None])
@pytest.mark.parametrize("window", [1, 4, 16])
def test_every_row_of_a_stream_is_in_a_batch_of_each_epoch(client4, shuffle, window):
    lazy = stream(*streamed.numbered(7), window=window)
    epochs = run_on_ranks(torched.batched, lazy, None, 2, size=10, shuffle=shuffle, drop_last=False)[0]
    for epoch in epochs:
        assert sorted(row for batch in epoch for row in batch) == [*range(20), *range(37, 60)]
    assert (epochs[0] == epochs[1]) == (shuffle is None)


def test_an_error_in_a_chunk_ends_the_call_with_the_chunk_and_the_next_call_works(client4):
    X = da.arange(64, chunks=8).map_blocks(streamed.failing, 51, meta=NUMBERS)
    with raises(ValueError, args=("row 51 is bad",)) as caught:
        run_on_ranks(torched.batched, stream(X, X, window=4), None, 1, size=8, client=client4)
    assert "in chunk 6 of a stream" in caught.value.__notes__
    assert run_on_ranks(total, client=client4, timeout=DEADLINE) == [6] * 4


@pytest.mark.mpi_flavor
def test_a_call_that_is_cancelled_while_it_waits_for_chunks_ends_at_once(client4, tmp_path):
    file = tmp_path / "file"
    lazy = stream(da.arange(64, chunks=8).map_blocks(streamed.slow, file, meta=NUMBERS))
    call = spmd(streamed.first_rows, client=client4).submit(lazy, 8)
    try:
        until("all ranks to wait", lambda: {*client4.run(doing).values()} >= waiting(4))
        assert call.cancel()
        with pytest.raises(CancelledError):
            call.result(DEADLINE)
        until("all ranks to be back", lambda: all(what == "" for _, what in client4.run(doing).values()))
    finally:
        file.touch()
    assert run_on_ranks(streamed.first_rows, lazy, 8, client=client4)[1] == [16, 17]


def waiting(ranks):
    return {(rank, "the computing of chunks") for rank in range(ranks)}


def test_chunks_wait_for_a_task_that_runs_and_overtake_tasks_that_wait(client4, tmp_path):
    running, queued = tmp_path / "running", tmp_path / "queued"
    workers = client4.scheduler_info(n_workers=-1)["workers"]
    first = [client4.submit(wait_for, running, workers=[address], pure=False) for address in workers]
    until("the tasks to run", lambda: all(client4.processing().values()))
    later = [client4.submit(wait_for, queued, workers=[address], pure=False) for address in workers]
    call = spmd(streamed.first_rows, client=client4).submit(stream(da.arange(64, chunks=8)), 8)
    try:
        until("the chunks to wait", lambda: {len(tasks) for tasks in client4.processing().values()} == {4})
        assert {*client4.run(doing).values()} == waiting(4)
        running.touch()
        assert call.result(DEADLINE) == [[0, 1], [16, 17], [32, 33], [48, 49]]
        assert not any(future.done() for future in later)
    finally:
        running.touch()
        queued.touch()
    client4.gather([*first, *later])


def test_a_cell_reads_a_stream_and_may_leave_it(client4):
    code = "from support import streamed\nstreamed.first_rows(comm, lazy, 8)"
    result = cells.run(code, {"lazy": stream(da.arange(64, chunks=8))}, client=client4, values=True)
    result.check()
    assert [*result.values()] == [[0, 1], [16, 17], [32, 33], [48, 49]]


def test_a_fit_of_a_stream_goes_on_from_its_checkpoint(client4, streams, tmp_path):
    options = {"size": 24, "client": client4}
    whole = fit(torched.net(), torched.cross_entropy, streams(window=3), epochs=2, **options)
    options["checkpoint"] = str(tmp_path / "run.pt")
    fit(torched.net(), torched.cross_entropy, streams(window=3), epochs=1, **options)
    resumed = fit(torched.net(), torched.cross_entropy, streams(window=3), epochs=2, **options)
    assert resumed == [pytest.approx(record, abs=1e-12) for record in whole]


@pytest.mark.parametrize("options", [{"size": 3}, {"size": 400}, {"size": 400, "shuffle": None}])
def test_batches_of_a_stream_that_cannot_be_are_refused(client4, options):
    with raises(InvalidRequest, option="size", given=options["size"]):
        run_on_ranks(torched.batched, stream(*streamed.numbered(7)), None, 1, **options)


def test_labels_of_other_rows_are_refused_when_they_are_read(client4):
    X, y = streamed.numbered(7)
    with pytest.raises(InvalidRequest):
        run_on_ranks(torched.batched, stream(X, y[y != 40]), None, 1, size=8)
    with pytest.raises(InvalidRequest):
        run_on_ranks(torched.batched, stream(X, y), np.ones(3), 1, size=8)


def test_columns_with_missing_values_in_some_chunks_are_refused(client4):
    X = da.arange(64, chunks=8).map_blocks(
        lambda block: np.where(block == 40, np.nan, block) if 40 in block else block, meta=NUMBERS
    )
    with raises(PlacementError, given="float64", allowed="int64") as caught:
        run_on_ranks(torched.batched, stream(X, X), None, 1, size=8)
    assert "in chunk 5 of a stream" in caught.value.__notes__


def test_a_stream_is_read_on_ranks_alone(client4):
    with pytest.raises(InvalidRequest):
        run_on_ranks(streamed.without_a_rank, stream(da.arange(64, chunks=8)))


def test_rows_in_the_memory_of_the_cluster_are_no_stream(client4):
    frame = dd.from_pandas(pd.DataFrame({"x": np.arange(8.0)}), npartitions=4)
    for rows in (place(np.ones((40, 3))), frame.persist()):
        with pytest.raises(InvalidRequest):
            stream(rows)


def test_a_shuffled_frame_is_no_stream(client4):
    with pytest.raises(InvalidRequest):
        stream(dd.from_pandas(pd.DataFrame({"x": np.arange(8.0)}), npartitions=4).shuffle("x"))
