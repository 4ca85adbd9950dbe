"""Blocks of one placed collection have one type on all ranks, whatever the files and the number of ranks are."""

from __future__ import annotations

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from scipy import sparse
from support.raised import raises

from workbench import blocks, place
from workbench.errors import PlacementError
from workbench.placement import schema, sources

NAN = float("nan")
ORDERED = pd.CategoricalDtype(["low", "mid", "high"], ordered=True)


@pytest.fixture(autouse=True)
def objects_stay_objects():
    """Dask makes text of objects, of which nothing is left to agree on then."""
    with dask.config.set({"dataframe.convert-string": False}):
        yield


def lazy(parts, meta=None):
    """Return a dataframe of a column `c`, one partition for each part, of the types of the first as Dask declares."""
    frames = [pd.DataFrame({"c": part, "row": np.arange(len(part))}) for part in parts]
    declared = frames[0].iloc[:0] if meta is None else pd.DataFrame({"c": pd.Series([], dtype=meta), "row": [0][:0]})
    return dd.from_map(lambda frame: frame, frames, meta=declared, enforce_metadata=False)


def unknown(part):
    return dd.from_pandas(pd.DataFrame({"c": part}), npartitions=1)["c"].cat.as_unknown()._meta.dtype


def dtypes(placed, column="c"):
    found = {str(block.result()[column].dtype) for block in blocks(placed)}
    assert len(found) == 1
    assert str(placed.dtypes[column]) in found
    return found.pop()


AGREED = {
    "integers and numbers with missing values": ([[1, 2], [3.0, NAN], [4, 5]], "float64"),
    "numbers with missing values first": ([[3.0, NAN], [1, 2]], "float64"),
    "a column that is empty in one file": ([["a", "b"], [NAN, NAN]], "str"),
    "a column that is empty in the first file": ([[NAN, NAN], ["a", "b"]], "str"),
    "an empty column of objects": ([np.array([None, None], object), [1.5, 2.5]], "float64"),
    "integers, and an empty column": ([[1, 2], [NAN, NAN]], "float64"),
    "two sizes": ([np.array([1, 2], "f4"), np.array([0.1, 0.2], "f8")], "float64"),
    "real numbers that are whole": ([[1, 2], [3.0, 4.0]], "int64"),
    "other byte orders": ([np.array([1, 2], ">f8"), np.array([3, 4], ">f8")], "float64"),
    "byte orders of both kinds": ([np.array([1.0, 2]), np.array([3, 4], ">f8")], "float64"),
    "nullable integers": ([pd.array([1, None], "Int64"), [3, 4]], "Int64"),
    "units of time": (
        [pd.to_datetime(["2024"]).as_unit("s"), pd.to_datetime(["2024-01-01 00:00:00.5"])],
        "datetime64[us]",
    ),
    "truth with missing values": ([[True, False], np.array([True, None], object)], "object"),
    "text as objects": ([["a", "b"], np.array(["c", None], object)], "str"),
}


@pytest.mark.parametrize(("parts", "dtype"), AGREED.values(), ids=AGREED.keys())
def test_a_column_has_one_type_on_all_ranks_and_its_values(client, parts, dtype):
    table = lazy([*parts, *parts])
    placed = place(table)
    assert dtypes(placed).removesuffix(", UTC]") == dtype
    whole = [value for part in client.gather(client.compute(table.to_delayed())) for value in part["c"]]
    found = list(placed.compute()["c"])
    assert len(whole) == len(found)
    for one, other in zip(whole, found, strict=True):
        assert (pd.isna(one) and pd.isna(other)) or one == other


SPECIES = {
    "one in each file": ([["A"] * 2, ["C"] * 2, ["B"] * 2], ["A", "B", "C"]),
    "not sorted": (
        [pd.Categorical(["low"] * 2, ["low", "high"]), pd.Categorical(["mid"] * 2, ["low", "mid"])],
        ["low", "high", "mid"],
    ),
    "numbers": ([[3] * 2, [1] * 2], [1, 3]),
    "one without values": ([["A"] * 2, pd.Categorical([None] * 2, [])], ["A"]),
    "ordered": (
        [
            pd.Categorical(["low"] * 2, ["low", "high"], ordered=True),
            pd.Categorical(["mid"] * 2, ORDERED.categories, ordered=True),
        ],
        ["low", "mid", "high"],
    ),
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("parts", "categories"), SPECIES.values(), ids=SPECIES.keys())
def test_codes_of_categories_mean_the_same_on_all_ranks(client, parts, categories, known):
    parts = [pd.Categorical(part) for part in [*parts, parts[0]]]
    placed = place(lazy(parts) if known else lazy(parts, unknown(parts[0])))
    for block in blocks(placed):
        assert list(block.result()["c"].cat.categories) == categories
    assert list(placed["c"].cat.categories) == categories
    assert list(placed.compute()["c"]) == [value for part in parts for value in part] or "None" in str(parts)


def test_a_long_list_of_categories_is_fetched_only_once(client, monkeypatch):
    many = [pd.Categorical([f"value {number:05}" for number in range(start, start + 400)]) for start in (0, 200)]
    placed = place(lazy([many[0], many[1], many[0]], unknown(many[0])))
    assert {len(block.result()["c"].cat.categories) for block in blocks(placed)} == {600}


REFUSED = {
    "text and numbers": (
        [["a", "b"], [1.0, 2.0]],
        r"column 'c' of X has no common type: str on ranks 0, 2; float64 on ranks 1, 3\. .*astype\('str'\)",
    ),
    "objects and numbers": ([np.array(["a", "b"], object), [1.0, 2.0]], r"str on .*float64 on .*astype\('str'\)"),
    "integers that floats have not": ([[2**53 + 1, 1], [NAN, 1.0]], r"int64 on .*float64 on .*astype\('float64'\)"),
    "categories that are integers and real numbers": (
        [pd.Categorical([2**53, 2**53 + 1]), pd.Categorical([1.0, NAN])],
        r"categories \[9007199254740992, 9007199254740993\] on .*categories \[1\.0\] on",
    ),
    "an integer and its rounded value as categories": (
        [pd.Categorical([2**53 + 1] * 2), pd.Categorical([2.0**53, NAN])],
        r"categories \[9007199254740993\] on ",
    ),
    "categories with and without a sign": (
        [pd.Categorical(np.array([2**63 + 1, 2**63], "u8")), pd.Categorical([-1, 1])],
        r"categories \[9223372036854775808, 9223372036854775809\] on .*categories \[-1, 1\] on",
    ),
    "two orders and real numbers": (
        [
            pd.Categorical([2**53 + 1, 1], [2**53 + 1, 1], ordered=True),
            pd.Categorical([1, 1], [1, 2**53 + 1], ordered=True),
            [0.5, 1.5],
        ],
        r"ordered categories .*float64 on",
    ),
    "integers with and without a sign": (
        [pd.array([2**63 + 5, None], "UInt64"), pd.array([-1, 1], "Int64")],
        r"UInt64 on .*Int64 on",
    ),
    "periods of two lengths": (
        [pd.period_range("2024-01", periods=2, freq="M"), pd.period_range("2024-01-31", periods=2, freq="D")],
        r"period\[M\] on .*period\[D\] on",
    ),
    "zones": (
        [pd.to_datetime(["2024"] * 2), pd.to_datetime(["2024"] * 2).tz_localize("UTC")],
        r"datetime64\[.*UTC\] on",
    ),
    "orders": (
        [pd.Categorical(["a", "b"], ["a", "b"], ordered=True), pd.Categorical(["a", "b"], ["b", "a"], ordered=True)],
        r"ordered categories \['a', 'b'\] on .*ordered categories \['b', 'a'\].*CategoricalDtype",
    ),
}


@pytest.mark.parametrize(("parts", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_columns_without_a_common_type_are_refused_with_column_ranks_types_and_remedy(client, parts, words):
    with pytest.raises(PlacementError, match=words):
        place(lazy([*parts, *parts]))


def test_other_columns_are_refused_and_another_order_is_not(client):
    frames = [pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4]})] * 2

    def table(other):
        return dd.from_map(
            lambda number: [*frames, other][number], range(3), meta=frames[0].iloc[:0], enforce_metadata=False
        )

    placed = place(table(frames[0][["b", "a"]]))
    assert {tuple(block.result().columns) for block in blocks(placed)} == {("a", "b")}
    with pytest.raises(PlacementError):
        place(table(frames[0].rename(columns={"b": "d"})))


def test_the_type_does_not_depend_on_the_ranks_of_the_rows(client):
    placed = place(lazy([[1] * 5, [2] * 5, [3] * 5, [NAN, 4.0]]))
    assert dtypes(placed) == "float64"
    assert dtypes(place(lazy([[1] * 5, [NAN] * 100]))) == "float64"


def test_a_series_agrees_too(client):
    _, placed = place(lazy([[1, 2], [3.0, NAN]]), lazy([[1, 2], [3.0, NAN]])["c"])
    assert {str(block.result().dtype) for block in blocks(placed)} == {"float64"} == {str(placed.dtype)}


@pytest.mark.parametrize(
    ("declared", "names", "second"),
    [("z", [None, None], [2, 3]), (None, ["a", "b"], [2.5, 3.5]), (("t", 1), [("t", 1), "b"], [2, 3])],
)
def test_the_parts_of_a_series_get_the_declared_name_because_dask_does_not_enforce_it(client, declared, names, second):
    parts = [pd.Series(values, name=name) for values, name in zip([[1, 2], second], names, strict=True)]
    meta = parts[0].iloc[:0].rename(declared)
    placed = place(dd.from_map(lambda number: parts[number % 2], range(4), meta=meta, enforce_metadata=False))
    assert [block.result().name for block in blocks(placed)] == [declared] * 4
    assert placed.name == declared
    assert list(placed.compute()) == [1, 2, *second] * 2


INDEXES = {
    "integers and text": [[1, 2], ["x", "y"]],
    "time zones": [pd.to_datetime(["2024"] * 2).tz_localize(zone) for zone in ("UTC", "Europe/Berlin")],
    "orders of categories": [pd.CategoricalIndex([*"ab"], [*order], ordered=True) for order in ("ab", "ba")],
    "integers and several levels": [[1, 2], pd.MultiIndex.from_tuples([(1, 2), (3, 4)])],
}


@pytest.mark.parametrize("indexes", INDEXES.values(), ids=INDEXES.keys())
def test_an_index_without_a_common_type_becomes_one_of_objects_on_all_ranks(client, indexes):
    parts = [pd.DataFrame({"a": [1.0, 2.0]}, index=index) for index in indexes]
    table = dd.from_map(lambda number: parts[number % 2], range(4), meta=parts[0].iloc[:0], enforce_metadata=False)
    for placed in place(table, table["a"]):
        frames = [block.result() for block in blocks(placed)]
        assert {frame.index.dtype for frame in [*frames, placed._meta]} == {np.dtype(object)}
        assert [label for frame in frames for label in frame.index] == [
            label for part in parts * 2 for label in part.index
        ]


def test_chunks_that_agree_are_compared_only_and_not_converted(client, monkeypatch):
    table = dd.from_pandas(pd.DataFrame({"a": [1.0] * 9, "t": ["x"] * 9, "c": pd.Categorical(["p", "q", "p"] * 3)}), 3)
    monkeypatch.setattr(schema, "kept_in", None)
    made = []
    submit = sources.submit
    monkeypatch.setattr(
        sources,
        "submit",
        lambda client, calls, *rest, **more: made.extend(calls) or submit(client, calls, *rest, **more),
    )
    place(table)
    assert {call.function for call in made} == {sources.rows.owned_frame, sources.rows.cut_frame}


# --- arrays


def chunks(*arrays, dtype):
    return da.concatenate([da.from_delayed(delayed(array), np.shape(array), dtype=dtype) for array in arrays])


@pytest.mark.parametrize(
    ("arrays", "dtype"),
    [
        ((np.ones(3, "f8"), np.ones(3, "f4")), "float64"),
        ((np.ones(3, "f8"), np.ones(3, ">f8"), np.ones(3, "i8")), "float64"),
        ((np.ones(3, "f8"), np.array([1.0, 2.0])), "int64"),
        ((np.ones(3, ">f8"), np.ones(3, ">f8")), ">f8"),
        ((np.array([1.0, NAN]), np.array([NAN, 1.0], "f8")), "float32"),
        ((np.array(["a", "b"]), np.array(["ccc", "d"])), "<U3"),
    ],
)
def test_arrays_have_the_declared_dtype_in_native_order(client, arrays, dtype):
    placed = place(chunks(*arrays, *arrays, dtype=dtype))
    expected = np.dtype(dtype).newbyteorder("=")
    assert placed.dtype == expected
    assert {block.result().dtype for block in blocks(placed)} == {expected}
    np.testing.assert_array_equal(placed.compute(), np.concatenate([*arrays, *arrays]).astype(expected))


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([0.5, 1.0]), "int64"),
        (np.array([2**53 + 1, 1]), "float64"),
        (np.array([0.1, 1.0]), "float32"),
        (np.array([1j, 1.0]), "float64"),
        (np.array(["1", "2"]), "float64"),
        (np.array(["abcd", "2"]), "<U2"),
        (np.array([-1, 1], "i1"), "uint8"),
        (np.array([2**63 + 5, 1], "u8"), "int64"),
        (np.array([2.0**63, 1]), "int64"),
        (np.array([2**63 - 1, 1]), "float64"),
        (np.array([NAN, 1]), "int64"),
        (np.array([2, 1]), "bool"),
        (np.array([5, 1], "m8[s]"), "M8[s]"),
    ],
)
def test_a_chunk_that_loses_values_in_the_declared_dtype_is_refused(client, array, dtype):
    good = np.ones(2, dtype)
    with raises(PlacementError, given=str(array.dtype), allowed=str(good.dtype)):
        place(chunks(good, good, good, array, dtype=dtype)).compute()


def test_a_table_with_a_file_without_values_becomes_an_array_of_numbers(client):
    array = lazy([[1.0, 2.0], np.array([None, None], object)] * 2)[["c"]].to_dask_array()
    placed = place(array.compute_chunk_sizes())
    assert {block.result().dtype for block in blocks(placed)} == {np.dtype("f8")}
    np.testing.assert_array_equal(placed.compute()[:, 0], [1, 2, NAN, NAN] * 2)


def test_a_chunk_of_another_length_than_declared_is_refused(client):
    wrong = da.from_delayed(delayed(np.ones((3, 2))), (5, 2), dtype=float)
    with pytest.raises(PlacementError):
        place(da.concatenate([wrong] * 4)).compute()


def test_entries_of_a_matrix_are_once_in_it_and_of_the_declared_dtype(client):
    twice = sparse.csr_matrix(([1.0, 2.0, 3.0], [1, 1, 0], [0, 2, 3]), (2, 2))
    stacked = sparse.vstack([twice] * 4, format="csr")
    placed = place(stacked)
    for block in blocks(placed):
        assert block.result().has_canonical_format
        assert block.result().data.tolist() == [3.0, 3.0]
    assert stacked.nnz == 12
    lazy_matrix = da.concatenate(
        [
            da.from_delayed(delayed(twice.astype(dtype)), (2, 2), meta=sparse.csr_matrix((0, 0)))
            for dtype in ("f8", "f4", "i8", "f8")
        ]
    )
    assert {block.result().dtype for block in blocks(place(lazy_matrix))} == {np.dtype("f8")}


def test_frames_in_this_process_get_the_native_byte_order(client):
    placed = place(pd.DataFrame({"c": np.arange(9).astype(">f8")}))
    assert dtypes(placed) == "float64"
    assert placed["c"].sum().compute() == 36
