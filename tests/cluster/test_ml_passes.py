"""Estimators that look at the rows on the ranks once or some times: scaling, linear models, searches for neighbors."""

from __future__ import annotations

import pickle

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn import linear_model
from sklearn.base import clone
from support import refused
from support.raised import raises

from workbench import place
from workbench.collective import broadcast
from workbench.errors import InvalidRequest
from workbench.ml import PCA, LinearRegression, NearestNeighbors, Ridge, StandardScaler
from workbench.placement import sources

X = np.random.default_rng(5).normal(size=(1003, 4)) + 7
QUERIES = np.random.default_rng(6).normal(size=(100, 4)) + 7
BOTH = pytest.mark.parametrize("engine", ["mpi", "dask"])


def as_dask(array, rows=300):
    return da.from_array(array, chunks=(rows, 3))


@BOTH
def test_scaling_is_the_same_on_all_ranks(client4, engine):
    gaps = np.where(X > 9, np.nan, X)
    weight = np.random.default_rng(7).uniform(size=len(X))
    here = StandardScaler().fit(gaps, sample_weight=weight)
    there = StandardScaler(engine=engine).fit(as_dask(gaps), sample_weight=da.from_array(weight, chunks=300))

    assert there.engine_ == engine
    for name in ("n_samples_seen_", "mean_", "var_", "scale_"):
        np.testing.assert_allclose(getattr(there, name), getattr(here, name), rtol=1e-12)
    np.testing.assert_allclose(there.transform(as_dask(gaps)).compute(), here.transform(gaps), rtol=1e-10)


@BOTH
def test_a_frame_and_an_array_come_to_the_fit_of_both(client4, engine):
    names = list("abcd")
    frame = dd.from_pandas(pd.DataFrame(X[:500], columns=names), npartitions=3)
    rest = dd.from_pandas(pd.DataFrame(X[500:], columns=names), npartitions=2)
    model = StandardScaler(engine=engine).fit(frame).partial_fit(rest)

    np.testing.assert_allclose(model.mean_, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(model.var_, X.var(axis=0), rtol=1e-12)
    with refused.other_features():
        model.partial_fit(rest[names[::-1]])


@BOTH
def test_several_targets_are_fitted_as_by_scikit_learn_and_passes_are_told(client4, engine):
    y, told = np.column_stack([X @ np.arange(4.0), X[:, 0] ** 2]), []
    theirs = linear_model.Ridge(alpha=[0.5, 20.0]).fit(X, y)
    ours = Ridge(alpha=[0.5, 20.0], engine=engine, callback=told.append).fit(as_dask(X), da.from_array(y, (300, 1)))

    assert ours.engine_ == engine
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-10)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-9)
    assert [record["name"] for record in told] == ["sample", "products", "pull"]


@BOTH
def test_neighbors_are_the_same_on_all_ranks(client4, engine):
    here = NearestNeighbors(6).fit(X)
    there = NearestNeighbors(6, engine=engine).fit(place(as_dask(X)))

    assert there.engine_ == engine
    for found, expected in (
        (there.kneighbors(QUERIES), here.kneighbors(QUERIES)),
        (there.kneighbors(as_dask(QUERIES, 30)), here.kneighbors(QUERIES)),
        (there.kneighbors(), here.kneighbors()),
    ):
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
    # They stay with the queries, and those of own rows with the rows.
    assert there.kneighbors(as_dask(QUERIES, 30))[1].chunks == ((25,) * 4, (6,))
    for queries in (as_dask(QUERIES, 30), None):
        assert [sources.placed_by(found) for found in there.kneighbors(queries)] == ["rank", "rank"]
    graph = there.kneighbors_graph(as_dask(QUERIES, 30), mode="distance").compute()
    np.testing.assert_array_equal(graph.toarray(), here.kneighbors_graph(QUERIES, mode="distance").toarray())


def test_a_result_of_a_fit_may_have_any_size(client4):
    model = NearestNeighbors(6, engine="mpi").fit(X)
    with dask.config.set({"workbench.spmd.result-limit": "1 KiB"}):
        assert model.kneighbors(QUERIES)[0].nbytes > 1024


def test_large_queries_go_to_the_ranks_by_a_broadcast(client4, monkeypatch):
    sent, send = [], broadcast.send
    monkeypatch.setattr(
        broadcast, "send", lambda client, value, timeout: sent.append(value) or send(client, value, timeout)
    )
    queries = np.random.default_rng(8).normal(size=(34_000, 4)) + 7
    found = NearestNeighbors(1, engine="mpi").fit(X).kneighbors(queries, return_distance=False)

    assert len(sent) == 1
    np.testing.assert_array_equal(found[::500], NearestNeighbors(1).fit(X).kneighbors(queries[::500])[1])


@BOTH
def test_an_array_is_placed_if_an_engine_of_ranks_is_asked_for(client4, engine):
    model = NearestNeighbors(6, engine=engine).fit(X)

    assert model.engine_ == engine
    indices = model.kneighbors(QUERIES, return_distance=False)
    np.testing.assert_array_equal(indices, NearestNeighbors(6).fit(X).kneighbors(QUERIES, return_distance=False))


@BOTH
def test_blocks_are_checked_when_they_are_kept(client4, engine):
    bad = X.copy()
    bad[700, 1] = np.nan
    with refused.not_finite("NaN"):
        NearestNeighbors(engine=engine).fit(as_dask(bad))


def test_a_model_that_refers_to_rows_on_ranks_is_not_pickled(client4):
    model = NearestNeighbors().fit(place(as_dask(X)))
    with pytest.raises(TypeError, match="whose rows are on ranks cannot be pickled"):
        pickle.dumps(model)


@BOTH
def test_rows_are_decomposed_on_all_ranks_where_sums_of_products_lack_digits(client4, engine):
    rows = X @ np.diag([1.0, 1e9, 1e-9, 1.0])
    rows[:, 3] = rows[:, 0] + 1e-8 * X[:, 3]
    y, told = rows @ [1.0, 1e-9, 1e9, 2.0], []
    here = LinearRegression(tol=1e-12).fit(rows, y)
    there = LinearRegression(tol=1e-12, engine=engine, callback=told.append).fit(place(rows), place(y))

    assert [record["name"] for record in told] == ["sample", "products", "triangle"]
    assert there.rank_ == here.rank_ == 4
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-6)
    np.testing.assert_allclose(there.coef_, [1.0, 1e-9, 1e9, 2.0], rtol=1e-5)


def test_a_matrix_that_is_over_the_memory_limit_of_a_rank_is_refused_before_anything_is_placed(client4):
    wide = da.zeros((8, 100_000), chunks=(2, 100_000))
    with raises(InvalidRequest, given=100_000):
        Ridge().fit(wide, da.zeros(8, chunks=2))


@BOTH
@pytest.mark.parametrize("model", [PCA(2), Ridge()], ids=["PCA", "Ridge"])
def test_numbers_that_are_not_finite_on_one_rank_end_the_fit_in_the_words_of_scikit_learn(client4, engine, model):
    gap = X.copy()
    gap[700, 2] = np.nan
    with refused.not_finite("NaN"):
        clone(model).set_params(engine=engine).fit(place(gap), place(X[:, 0]))
