"""Rows are split, cut and put together without loss; no cluster is needed for that."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from dask.sizeof import sizeof
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from workbench.errors import PlacementError
from workbench.placement import rows
from workbench.placement.in_use import empty_aligned, is_aligned
from workbench.placement.pinning import Rank, select


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_rows_are_split_as_numpy_splits_them(length, parts):
    assert rows.split(length, parts) == [len(part) for part in np.array_split(np.empty(length), parts)]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(any), st.integers(1, 8))
def test_cuts_of_chunks_make_up_the_blocks_in_order(chunks, parts):
    values = np.arange(sum(chunks))
    pieces = np.split(values, np.cumsum(chunks)[:-1])
    sizes = rows.split(len(values), parts)

    blocks = [
        np.concatenate([values[:0], *(rows.cut_array(pieces[cut.chunk], cut.start, cut.stop) for cut in block)])
        for block in rows.cuts(chunks, sizes)
    ]

    assert [len(block) for block in blocks] == sizes
    assert np.array_equal(np.concatenate(blocks), values)


@given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=1, max_dims=3)), st.integers(1, 4), st.booleans())
def test_an_array_in_pieces_becomes_one_that_is_contiguous_and_aligned(array, parts, fortran):
    pieces = np.array_split(np.asfortranarray(array) if fortran else array, min(parts, len(array)))

    owned = rows.owned_array(pieces)

    assert is_aligned(owned)
    assert owned.dtype == array.dtype
    np.testing.assert_array_equal(owned, array)


def test_an_aligned_array_is_not_copied_again():
    array = empty_aligned((100, 3), np.float64)
    assert rows.owned_array([array]) is array


def test_a_large_array_begins_at_a_large_page_and_is_not_copied_again():
    array = empty_aligned((1 << 20,), np.float64)
    assert array.ctypes.data % (2 << 20) == 0
    assert rows.owned_array([array]) is array


def test_a_block_does_not_keep_the_larger_array_alive_that_it_was_cut_from():
    whole = empty_aligned((128, 8), np.float64)
    block = rows.owned_array([whole[:64]])
    assert not np.shares_memory(block, whole)


def test_a_block_does_not_stay_in_the_buffer_of_a_message():
    message = bytearray(64 * 8)
    assert not np.shares_memory(rows.owned_array([np.frombuffer(message)]), np.frombuffer(message))


def test_a_function_can_write_to_the_block_of_an_array_that_is_read_only():
    array = empty_aligned((100, 3), np.float64)
    array.flags.writeable = False
    assert rows.owned_array([array]).flags.writeable


@pytest.mark.parametrize("chunk", [np.ma.masked_array([1.0, 2.0], [False, True]), sparse.csr_array(np.eye(2))])
@pytest.mark.parametrize("count", [1, 2])
def test_a_chunk_of_another_type_than_its_collection_declares_is_refused(chunk, count):
    with pytest.raises(PlacementError):
        rows.owned_array([chunk] * count)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([None, None], "f8", [np.nan, np.nan]),
        ([[None, 1], [np.nan, pd.NA]], "f4", [[np.nan, 1], [np.nan, np.nan]]),
        ([None, 1j], "c16", [np.nan, 1j]),
        ([None, pd.NaT], "M8[ns]", ["NaT", "NaT"]),
        ([1, 2.0], "i8", [1, 2]),
    ],
)
def test_objects_that_are_numbers_or_missing_get_the_declared_dtype(values, dtype, expected):
    array = np.array(values, object)
    found = rows.exact(array, rows.Declared("the block", array.shape, np.dtype(dtype)))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array(expected, dtype))


@pytest.mark.parametrize(
    ("values", "dtype", "remedy"),
    [
        ([None, 1], "i8", "float64"),
        ([None, True], "?", "float64"),
        (["1", "2"], "f8", "float64"),
        ([2**53 + 1, None], "f8", "float64"),
        ([0.1, None], "f4", "float32"),
        ([None, "a"], "<U2", "<U2"),
    ],
)
def test_objects_that_lose_values_are_refused_and_the_remedy_is_no_dtype_of_objects(values, dtype, remedy):
    with pytest.raises(PlacementError, match=rf"rows of dtype object.*X\.map_blocks\(.*astype\('{remedy}'\)\)\.$"):
        rows.exact(np.array(values, object), rows.Declared("the block", (2,), np.dtype(dtype)))


def test_python_objects_are_kept_contiguous():
    array = np.array([["a", 1], [None, 2.0]], dtype=object)
    owned = rows.owned_array([array.T])
    assert owned.flags.c_contiguous
    assert owned.tolist() == array.T.tolist()


def test_frames_are_joined_with_the_categories_of_both():
    frames = [pd.DataFrame({"carrier": pd.Categorical([name])}) for name in ("AA", "UA")]
    joined = rows.owned_frame(frames)
    assert list(joined["carrier"]) == ["AA", "UA"]
    assert list(joined["carrier"].cat.categories) == ["AA", "UA"]


def test_functions_get_aligned_arrays_and_everything_else_as_it_is():
    memory = empty_aligned((1001,), np.float64)
    shifted = memory[1:]
    values = rows.call_with_aligned(
        lambda array, name, *, weights: (array, name, weights), shifted, "text", weights=shifted[2:]
    )
    assert [is_aligned(values[0]), values[1], is_aligned(values[2])] == [True, "text", True]


RANKS = [Rank(f"tcp://{number}", name, host, None) for number, (name, host) in enumerate(
    [("other", "d"), (1, "a"), (10, "c"), ("another", "b"), (0, "c"), (2, "a")]
)]  # fmt: skip


def test_ranks_are_in_the_order_of_their_numbers_before_other_names():
    assert [rank.name for rank in select(RANKS, "rank")] == [0, 1, 2, 10, "another", "other"]


def test_a_node_is_stood_for_by_its_lowest_rank():
    assert [(rank.host, rank.name) for rank in select(RANKS, "node")] == [
        ("c", 0),
        ("a", 1),
        ("b", "another"),
        ("d", "other"),
    ]


def test_dask_counts_the_bytes_of_a_tensor():
    assert sizeof(torch.zeros(1000, 2)) == 8000


def test_a_tensor_of_another_library_is_copied_only_where_a_copy_is_needed():
    whole = torch.arange(12.0).reshape(6, 2)

    assert rows.owned_tensor([whole], device="cpu").data_ptr() == whole.data_ptr()
    for copied in (
        rows.owned_tensor([whole], device="cpu", copy=True),
        rows.owned_tensor([whole[:3], whole[3:]], device="cpu"),
    ):
        assert copied.data_ptr() != whole.data_ptr()
        assert copied.equal(whole)
    assert rows.owned_tensor([whole.T], device="cpu").is_contiguous()
