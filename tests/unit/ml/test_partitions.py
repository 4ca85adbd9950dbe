"""Some columns of several small Parquet files: Dask reads several files in one task, whatever the collection says."""

from __future__ import annotations

import operator

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn import preprocessing

from workbench import blocks, place
from workbench.ml import KMeans, LinearRegression, Recipe, StandardScaler
from workbench.placement import sources
from workbench.placement.sources import materialize, optimized

WHOLE = pd.DataFrame(np.random.default_rng(3).normal(size=(403, 12)), columns=list("abcdefghijkl"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parquet")
    for number, rows in enumerate(np.array_split(np.arange(len(WHOLE)), 8)):
        WHOLE.iloc[rows].to_parquet(folder / f"{number}.parquet")
    return folder


SOME = {
    "columns": lambda table: table[["a", "c"]],
    "a series": operator.itemgetter("b"),
    "converted": lambda table: table[["a", "c"]].astype("float32").astype("float64"),
    "computed": lambda table: table[["a", "c"]] + 1,
    "without missing values": lambda table: table[["a", "c"]].dropna(),
    "all": lambda table: table,
}


@pytest.mark.parametrize("some", SOME.values(), ids=SOME.keys())
def test_some_columns_of_several_files_are_placed(client, folder, some):
    placed = place(some(dd.read_parquet(folder)))
    assert [block.result().shape[0] for block in blocks(placed)] == [101, 101, 101, 100]
    assert placed.compute().equals(some(WHOLE))


def test_columns_of_one_table_are_placed_together_and_read_at_once(client, folder):
    table = dd.read_parquet(folder, columns=["a", "c", "h"])
    X, y = place(table[["a", "c"]], table["h"])
    assert X.compute().equals(WHOLE[["a", "c"]])
    assert y.compute().equals(WHOLE["h"])
    first, second = (set(each.dask) for each in optimized([table[["a", "c"]], table["h"]]))
    assert any("read" in str(key) for key in first & second)


def test_what_is_materialized_has_the_partitions_that_were_computed(client, folder):
    table = dd.read_parquet(folder)
    X, array, y = materialize(client, [table[["a", "c"]], table["b"].to_dask_array(), table["d"]])
    assert [X.npartitions, y.npartitions] == [len(sources.futures_in(X)), len(sources.futures_in(y))]
    assert X.npartitions < 8
    assert X.compute().equals(WHOLE[["a", "c"]])
    assert (X["a"] + y).compute().equals(WHOLE["a"] + WHOLE["d"])
    assert len(array.compute()) == 403


def test_estimators_fit_and_apply_some_columns(client, folder):
    table = dd.read_parquet(folder)
    X, y = table[["a", "c", "d", "e"]], table["b"]
    here, target = WHOLE[["a", "c", "d", "e"]], WHOLE["b"]
    np.testing.assert_allclose(StandardScaler().fit(X).mean_, here.mean())
    model, local = LinearRegression().fit(X, y), LinearRegression().fit(here, target)
    np.testing.assert_allclose(model.coef_, local.coef_)
    np.testing.assert_allclose(model.predict(X).compute(), local.predict(here))
    assert model.score(X, y) == pytest.approx(local.score(here, target))
    np.testing.assert_array_equal(
        KMeans(2, random_state=0).fit(here).predict(X).compute(), KMeans(2, random_state=0).fit(here).predict(here)
    )


@pytest.mark.parametrize(
    "model", [StandardScaler(), Recipe([(preprocessing.StandardScaler(), ["a", "c"])])], ids=["scaler", "recipe"]
)
@pytest.mark.parametrize("output", ["default", "pandas"])
def test_transformed_rows_of_some_columns_are_complete_and_keep_their_index(client, folder, model, output):
    X, here = dd.read_parquet(folder)[["a", "c"]], WHOLE[["a", "c"]]
    with sklearn.config_context(transform_output=output):
        found, expected = model.fit(X).transform(X).compute(), model.fit(here).transform(here)
    if output == "pandas":
        pd.testing.assert_frame_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected)


def test_the_array_of_some_columns_is_placed(client, folder):
    lazy = dd.read_parquet(folder)[["a", "c"]].to_dask_array().compute_chunk_sizes()
    np.testing.assert_array_equal(place(lazy).compute(), WHOLE[["a", "c"]])
