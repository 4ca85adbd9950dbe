"""Rows that are transformed, in the type that the user has set; of Dask collections nothing is gathered for that."""

from __future__ import annotations

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from support.recipes import MEANS

from workbench import place
from workbench.ml import PCA, LogisticRegression, Recipe, StandardScaler
from workbench.placement import sources

X = np.random.default_rng(8).normal(size=(200, 3))
TABLE = pd.DataFrame(X, columns=["a", "b", "c"], index=np.arange(200) + 1000)
Y = (X[:, 0] > 0) * 1.0
LAZY = da.from_array(X, chunks=(60, 3))
read: list[int] = []


@pytest.fixture
def pandas_output():
    with sklearn.config_context(transform_output="pandas"):
        yield


def seen(block):
    read.append(len(block))
    return block


@pytest.mark.parametrize(
    "model",
    [PCA(2), StandardScaler(), Recipe([(preprocessing.StandardScaler(), [0, 1])])],
    ids=lambda model: type(model).__name__,
)
def test_a_dask_array_becomes_a_dask_dataframe_with_names_and_nothing_is_computed(model, pandas_output):
    read.clear()
    model.fit(X)
    found = model.transform(LAZY.map_blocks(seen, meta=X[:0]))

    assert isinstance(found, dd.DataFrame)
    assert read == []
    with dask.config.set(scheduler="synchronous"):
        expected = model.transform(X)
        assert isinstance(expected, pd.DataFrame)
        pd.testing.assert_frame_equal(found.compute(), expected)
    assert sorted(read) == [20, 60, 60, 60]


def test_a_dask_dataframe_keeps_its_index(pandas_output):
    model = StandardScaler().fit(TABLE)
    with dask.config.set(scheduler="synchronous"):
        pd.testing.assert_frame_equal(
            model.transform(dd.from_pandas(TABLE, npartitions=3)).compute(), model.transform(TABLE)
        )


def test_set_output_of_one_estimator_holds_for_it(pandas_output):
    assert isinstance(StandardScaler().set_output(transform="default").fit(X).transform(LAZY), da.Array)
    with sklearn.config_context(transform_output="default"):
        assert isinstance(PCA(2).set_output(transform="pandas").fit(X).transform(LAZY), dd.DataFrame)
        assert isinstance(PCA(2).set_output(transform="pandas").fit_transform(X), pd.DataFrame)
        assert isinstance(PCA(2).fit_transform(X), np.ndarray)


def test_frames_of_another_kind_are_for_arrays_only():
    assert isinstance(StandardScaler().set_output(transform="polars").fit(X).transform(LAZY), da.Array)


def test_there_are_no_frames_of_sparse_rows(pandas_output):
    recipe = Recipe([(preprocessing.OneHotEncoder(handle_unknown="ignore"), [0])]).fit(np.round(X))
    with pytest.raises(ValueError, match="outputs sparse matrices"):
        recipe.transform(LAZY)


@pytest.mark.parametrize("output", ["default", "pandas"])
@pytest.mark.parametrize("table", [lambda: LAZY, lambda: dd.from_pandas(TABLE, npartitions=3)], ids=["array", "table"])
def test_each_step_of_a_pipeline_is_computed_once(client, output, table, monkeypatch):
    assembled, assemble = [], sources.build_blocks
    monkeypatch.setattr(sources, "build_blocks", lambda *given: assembled.append(given[1].name) or assemble(*given))
    steps = [([preprocessing.StandardScaler()], [0]), (MEANS, [1]), ([preprocessing.StandardScaler()], [2])]
    with sklearn.config_context(transform_output=output):
        target = place(da.from_array(Y, chunks=60))
        there = make_pipeline(Recipe(steps), StandardScaler(), PCA(2), LogisticRegression(tol=1e-8)).fit(
            table(), target
        )
        here = make_pipeline(Recipe(steps), StandardScaler(), PCA(2), LogisticRegression(tol=1e-8)).fit(TABLE, Y)

    np.testing.assert_allclose(abs(there[-1].coef_), abs(here[-1].coef_), atol=1e-7)
    assert assembled == ["X", "X", "others[0]", "X", "X", "X"]


def test_what_a_step_has_made_lies_on_the_ranks(client):
    found = StandardScaler().fit_transform(LAZY)

    assert sources.placed_by(found) == "rank"
    np.testing.assert_allclose(found.compute(), StandardScaler().fit_transform(X))
    weighted = StandardScaler().fit_transform(LAZY, sample_weight=da.from_array(Y + 1, chunks=50))
    np.testing.assert_allclose(weighted.compute(), StandardScaler().fit_transform(X, sample_weight=Y + 1))


@pytest.mark.parametrize("form", [sparse.csr_array, sparse.csr_matrix])
def test_sparse_rows_of_a_pipeline_lie_on_the_ranks(client, form):
    rows = form(np.where(np.abs(X) < 1, 0, X))
    lazy = LAZY.map_blocks(lambda block: form(np.where(np.abs(block) < 1, 0, block)), meta=form((0, 3)))
    model = make_pipeline(StandardScaler(with_mean=False), LogisticRegression(tol=1e-8))
    there = clone(model).fit(lazy, da.from_array(Y, chunks=60))

    np.testing.assert_allclose(there[-1].coef_, clone(model).fit(rows, Y)[-1].coef_, atol=1e-7)
    scaled = there[0].transform(lazy[da.from_array(np.arange(200) > 70, chunks=60)])
    # The first chunk has no rows.
    assert type(scaled._meta) is type(scaled.compute()) is type(there[0].transform(rows)) is form
    assert scaled.compute().shape == (129, 3)
