from __future__ import annotations

from itertools import chain

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from support import streamed
from support.raised import raises

from workbench.errors import InvalidRequest, PlacementError
from workbench.torch import fit, stream
from workbench.torch.exchange import rank_windows


def frame(rows=40, chunks=4, **columns):
    return dd.from_pandas(pd.DataFrame({"x": np.arange(float(rows)), **columns}), npartitions=chunks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_ranks_divide_the_windows_of_any_number_of_ranks(ranks):
    order = np.random.default_rng(0).permutation(13)
    windows = zip(*(rank_windows(order, 5, rank, ranks, together=True) for rank in range(ranks)), strict=True)
    assert [[*chain(*parts)] for parts in windows] == [order[:5].tolist(), order[5:10].tolist(), order[10:].tolist()]


def test_each_rank_has_its_own_windows_of_neighboring_chunks():
    own = [[*rank_windows(np.arange(7), 4, rank, 3, together=False)] for rank in range(3)]
    assert own == [[[0], [1], [2]], [[3], [4]], [[5], [6]]]


def test_a_chunk_is_one_task_with_all_that_its_rows_need():
    X, y = da.arange(12, chunks=3) + 1, da.arange(12, chunks=12) ** 2
    chunks = stream(X, y).chunks
    assert [len(chunk.dependencies) for chunk in chunks] == [0] * 4
    rows, labels = chunks[2]({})
    assert (rows.tolist(), labels.tolist()) == ([7, 8, 9], [36, 49, 64])


def test_chunks_get_the_declared_type_if_no_value_is_lost():
    def lazy(last):
        return da.concatenate(
            [
                da.ones(4, chunks=2, dtype="i8"),
                da.from_array(np.array(last)).map_blocks(lambda block: block, dtype="i8", meta=np.empty(0, "i8")),
            ]
        )

    assert {chunk({})[0].dtype for chunk in stream(lazy([1.0, 2.0])).chunks} == {np.dtype("i8")}
    for weight in (lazy([0.5, 1.0]), lazy([np.nan, 1.0])):
        with raises(PlacementError, given="float64", allowed="int64"):
            stream(da.ones(6, chunks=2), weight=weight).chunks[2]({})


def test_an_array_of_labels_gets_the_chunks_of_the_rows():
    X, y = da.ones((40, 3, 3), chunks=(7, 1, 2)), da.ones(40, chunks=40)
    lazy = stream(X, y)
    assert len(lazy.chunks) == 6
    assert [array.shape for array in lazy.empty] == [(0, 3, 3), (0,)]


def test_partitions_of_a_parquet_file_stay_what_they_are_when_few_columns_are_read(tmp_path):
    found = streamed.in_files(pd.DataFrame({"x": np.ones(40), "wide": "a long text"}), tmp_path, 4)
    assert len(stream(found[["x"]], found["x"]).chunks) == found.npartitions == 4


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([np.ones(3)], "X is a numpy.ndarray, and a stream takes lazy arrays and dataframes of Dask"),
        ([da.ones(())], "X is a dask.Array, and a stream takes"),
        ([frame(text="a")], "PyTorch has no tensors of object"),
        ([da.ones(8, chunks=2), da.ones(9, chunks=3)], "y has 9 rows and X has 8. Pass the same number of rows"),
        ([frame(), da.ones(40, chunks=8)], "y has 5 chunks and X has 4. Derive both from one collection"),
        ([frame(), None, frame(chunks=2)["x"]], "weight has 2 chunks and X has 4"),
    ],
)
def test_collections_that_are_no_stream_are_refused(columns, said):
    with pytest.raises(InvalidRequest, match=said):
        stream(*columns)


def test_a_window_has_a_chunk_at_least():
    with raises(InvalidRequest, option="window", given=0):
        stream(frame(), window=0)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"X": da.ones(8)}, "X"),
        ({"X": stream(da.ones(8))}, "X"),
        ({"X": stream(da.ones(8), da.ones(8)), "validation": stream(da.ones(8))}, "validation"),
        ({"X": da.ones(8), "y": da.ones(8), "validation": (da.ones(8),)}, "validation"),
    ],
)
def test_a_fit_without_labels_is_refused_in_a_sentence(given, name):
    with raises(InvalidRequest, option=name):
        fit(None, None, **given)
