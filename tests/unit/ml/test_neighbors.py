"""Searches for neighbors against scikit-learn's, on any number of parts in this process."""

from __future__ import annotations

import itertools
import pickle

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.sizeof import sizeof
from scipy import sparse
from sklearn import neighbors
from support import refused
from support.processes import until
from support.sklearn_checks import accepted_by_scikit_learn

from workbench import place
from workbench.ml.checks import Checks
from workbench.ml.engine.dask_parts import PartActor
from workbench.ml.engine.mpi_parts import Task
from workbench.ml.engine.parts import LocalParts
from workbench.ml.neighbors.estimator import NearestNeighbors
from workbench.ml.neighbors.part import NeighborsPart
from workbench.ml.neighbors.search import Nearest, Within, find, find_each
from workbench.placement import sources


def rows(number, features=6, away=0.0, dtype=np.float64, seed=1):
    return (np.random.default_rng(seed).normal(size=(number, features)) + away).astype(dtype)


def parts_of(X, number):
    cuts = np.linspace(0, X.shape[0], number + 1).astype(int)
    return LocalParts([NeighborsPart(X[start:stop], None, None, start) for start, stop in itertools.pairwise(cuts)])


def nearest(queries, number, metric="euclidean", keywords=None, step=0):
    return Nearest(queries=queries, n_neighbors=number, metric=metric, keywords=keywords or {}, step=step)


def exactly(queries, X, number):
    """Return the expected result, from the differences of all pairs in one array."""
    distances = np.sqrt(np.square(queries[:, None].astype(float) - X[None].astype(float)).sum(axis=2))
    order = np.argsort(distances, axis=1, kind="stable")[:, :number]
    return np.take_along_axis(distances, order, axis=1), order


def assert_found(found, expected, rtol=1e-13):
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], rtol=rtol, atol=1e-300)


@accepted_by_scikit_learn(NearestNeighbors())
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


@pytest.mark.parametrize("number", [1, 5, 40])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_it_finds_what_scikit_learn_finds(number, dtype, form):
    X, queries = rows(2000, dtype=dtype), rows(300, dtype=dtype, seed=2)
    theirs = neighbors.NearestNeighbors(n_neighbors=number, algorithm="brute").fit(form(X))
    ours = NearestNeighbors(number).fit(form(X))

    distances, indices = ours.kneighbors(form(queries))
    expected = theirs.kneighbors(form(queries))
    # In single precision theirs confuses rows that are nearly as far.
    assert (indices == expected[1]).mean() >= (0.999 if dtype == np.float32 else 1)
    np.testing.assert_allclose(distances, expected[0], rtol=1e-5 if dtype == np.float32 else 1e-9)
    assert (distances.dtype, indices.dtype) == (np.float64, np.int64)
    np.testing.assert_array_equal(ours.kneighbors(form(queries), return_distance=False), indices)


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        ("manhattan", {}),
        ("cosine", {}),
        ("chebyshev", {}),
        ("sqeuclidean", {}),
        ("l2", {}),
        ("minkowski", {"p": 1}),
        ("minkowski", {"p": 3}),
        ("minkowski", {"metric_params": {"w": np.arange(1.0, 7.0)}}),
        ("seuclidean", {"metric_params": {"V": np.arange(1.0, 7.0)}}),
        (lambda a, b: abs(a - b).max(), {}),
    ],
)
@pytest.mark.parametrize("number", [1, 3])
def test_metrics_are_those_of_scikit_learn(metric, options, number):
    X, queries = rows(400), rows(30, seed=2)
    expected = neighbors.NearestNeighbors(metric=metric, algorithm="brute", **options).fit(X).kneighbors(queries)
    by, keywords = NearestNeighbors(metric=metric, **options)._metric()
    found = find(parts_of(X, number), nearest(queries, 5, by, keywords))

    assert_found(found, expected, rtol=1e-9)
    assert_found(NearestNeighbors(metric=metric, **options).fit(X).kneighbors(queries), expected, rtol=1e-9)


def test_rows_whose_sum_overflows_are_valid():
    X = np.full((9, 2), 1e38, dtype=np.float32)
    np.testing.assert_array_equal(NearestNeighbors(1).fit(X).kneighbors(X)[0], 0)


@pytest.mark.parametrize("number", [2, 5, 100])
@pytest.mark.parametrize("wanted", [1, 7, 60])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_number_of_parts_changes_nothing(number, wanted, dtype):
    X, queries = rows(600, away=50, dtype=dtype), rows(300, away=50, dtype=dtype, seed=2)
    whole = find(parts_of(X, 1), nearest(queries, wanted))
    found = find(parts_of(X, number), nearest(queries, wanted))

    np.testing.assert_array_equal(found[0], whole[0])
    np.testing.assert_array_equal(found[1], whole[1])
    assert_found(found, exactly(queries, X, wanted))


@pytest.mark.parametrize("away", [0.0, 1e6])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_distances_far_from_zero_keep_their_digits(away, form):
    X, queries = rows(2000, away=away), rows(50, away=away, seed=2)
    found = NearestNeighbors(6).fit(form(X)).kneighbors(form(queries))

    assert_found(found, exactly(queries, X, 6))


@pytest.mark.parametrize("order", [1, -1])
def test_rows_may_come_in_any_order(order):
    queries = np.zeros((3, 2))
    X = np.column_stack([np.arange(20_000.0), np.zeros(20_000)])[::order]
    found = NearestNeighbors(4).fit(X).kneighbors(queries)

    assert_found(found, exactly(queries, X, 4))


@pytest.mark.parametrize("number", [1, 3])
def test_of_rows_that_agree_the_lower_numbers_come_first(number):
    X = np.repeat(rows(4, 3), 5000, axis=0)
    distances, indices = find(parts_of(X, number), nearest(X[::5000], 3))

    np.testing.assert_array_equal(distances, 0)
    np.testing.assert_array_equal(
        indices, [[0, 1, 2], [5000, 5001, 5002], [10000, 10001, 10002], [15000, 15001, 15002]]
    )


def test_parts_may_have_fewer_rows_than_are_wanted():
    X, queries = rows(20), rows(4, seed=2)
    assert_found(find(parts_of(X, 10), nearest(queries, 15)), exactly(queries, X, 15))


@pytest.mark.parametrize("features", [1, 12_000])
def test_few_and_many_features_are_no_matter(features):
    X, queries = rows(40, features), rows(24, features, seed=2)
    assert_found(NearestNeighbors(3).fit(X).kneighbors(queries), exactly(queries, X, 3))


def test_rows_of_the_fit_are_no_neighbors_of_their_own():
    X = rows(700)
    assert_found(
        NearestNeighbors(4).fit(X).kneighbors(),
        neighbors.NearestNeighbors(n_neighbors=4, algorithm="brute").fit(X).kneighbors(),
        rtol=1e-9,
    )
    same = np.zeros((9, 2))
    indices = NearestNeighbors(3).fit(same).kneighbors(return_distance=False)
    assert all(row not in found for row, found in enumerate(indices))


def test_many_queries_are_sent_in_several_calls(monkeypatch):
    X, queries = rows(300), rows(100, seed=2)
    model = NearestNeighbors(4).fit(X)
    expected = model.kneighbors(queries), model.kneighbors()
    monkeypatch.setattr("workbench.ml.neighbors.estimator.RESULT", 2000)

    assert_found(model.kneighbors(queries), expected[0], rtol=0)
    assert_found(model.kneighbors(), expected[1], rtol=0)


def test_dask_queries_are_answered_lazily_by_an_array():
    X, queries = rows(300), rows(100, seed=2)
    model = NearestNeighbors(4).fit(X)
    distances, indices = model.kneighbors(da.from_array(queries, chunks=(40, 3)), n_neighbors=7)

    assert distances.chunks == indices.chunks == ((40, 40, 20), (7,))
    assert (distances.dtype, indices.dtype) == (np.float64, np.int64)
    found = da.compute(distances, indices, scheduler="sync")
    assert_found(found, model.kneighbors(queries, 7), rtol=0)
    assert model.n_neighbors == 4


@pytest.mark.parametrize("mode", ["connectivity", "distance"])
@pytest.mark.parametrize("own", [False, True])
def test_graphs_are_those_of_scikit_learn(mode, own):
    X, queries = rows(300), None if own else rows(100, seed=2)
    ours, theirs = NearestNeighbors(4).fit(X), neighbors.NearestNeighbors(n_neighbors=4, algorithm="brute").fit(X)
    for number in (None, 7):
        found, expected = (model.kneighbors_graph(queries, number, mode) for model in (ours, theirs))

        assert isinstance(found, sparse.csr_array)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(found.indptr, expected.indptr)
        np.testing.assert_array_equal(found.indices, expected.indices)
        np.testing.assert_allclose(found.data, expected.data, rtol=1e-9)


@pytest.mark.parametrize("mode", ["connectivity", "distance"])
def test_graphs_of_dask_queries_are_blocks_in_csr_format(mode):
    X, queries = rows(300), rows(100, seed=2)
    model = NearestNeighbors(4).fit(X)
    lazy = model.kneighbors_graph(da.from_array(queries, chunks=(40, 3)), mode=mode)

    assert lazy.chunks == ((40, 40, 20), (300,))
    assert lazy.dtype == np.float64
    found = lazy.compute(scheduler="sync")
    assert found.format == lazy._meta.format == "csr"
    np.testing.assert_array_equal(found.toarray(), model.kneighbors_graph(queries, mode=mode).toarray())


def test_a_graph_of_another_mode_is_refused():
    with pytest.raises(ValueError, match='"connectivity", or "distance" but got "weights" instead'):
        NearestNeighbors(4).fit(rows(20)).kneighbors_graph(mode="weights")


def test_a_model_of_an_array_can_be_pickled():
    X = rows(50)
    model = NearestNeighbors(3).fit(X)
    assert_found(pickle.loads(pickle.dumps(model)).kneighbors(X), model.kneighbors(X), rtol=0)  # noqa: S301


def test_names_of_features_have_to_agree():
    frame = pd.DataFrame(rows(20, 3), columns=["a", "b", "c"])
    with refused.other_features():
        NearestNeighbors(3).fit(frame).kneighbors(frame[["c", "a", "b"]])


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (0, ValueError, "Expected n_neighbors > 0. Got 0"),
        (2.5, TypeError, "n_neighbors does not take .*float.* value, enter integer value"),
        (21, ValueError, "Expected n_neighbors <= n_samples_fit, but n_neighbors = 21, n_samples_fit = 20"),
    ],
)
def test_a_number_of_neighbors_that_cannot_be_is_refused(number, error, message):
    X = rows(20)
    with pytest.raises(error, match=message):
        NearestNeighbors().fit(X).kneighbors(X, number)


def test_a_row_has_one_neighbor_less_than_there_are_rows():
    X = rows(20)
    assert NearestNeighbors(19).fit(X).kneighbors()[0].shape == (20, 19)
    with pytest.raises(ValueError, match="Expected n_neighbors < n_samples_fit, because no row is its own neighbor"):
        NearestNeighbors(20).fit(X).kneighbors()


@pytest.mark.parametrize(
    ("options", "X", "message"),
    [
        ({"metric": "precomputed"}, np.eye(6), "The 'metric' parameter"),
        ({"metric": "mahalanobis"}, np.eye(6), 'metric="mahalanobis" needs VI'),
        ({"p": 0}, np.eye(6), "The 'p' parameter"),
        ({}, np.full((6, 2), np.nan), "Input X contains NaN"),
        ({}, np.ones(6), "Expected 2D array, got 1D array"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_fitted(options, X, message):
    with pytest.raises(ValueError, match=message):
        NearestNeighbors(**options).fit(X)


def test_numbers_whose_squares_overflow_are_refused():
    X = np.array([[1e200], [-1e200], [3e200]])
    with refused.overflow():
        NearestNeighbors(2).fit(X).kneighbors(X)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_parts_keep_the_neighbors_of_their_own_rows(number, form):
    X = rows(300)
    parts = parts_of(form(X), number)
    find_each(parts, nearest(None, 5, step=40))
    found = [np.concatenate(each) for each in zip(*parts.each("kept"), strict=True)]

    assert_found(found, NearestNeighbors(4).fit(X).kneighbors(), rtol=1e-13)


@pytest.mark.parametrize("n_neighbors", [1, 4])
def test_neighbors_of_own_rows_stay_on_the_ranks(client, n_neighbors, monkeypatch):
    X, passes = rows(203), []
    model = NearestNeighbors(n_neighbors, callback=passes.append).fit(da.from_array(X, chunks=(60, 6)))
    passes.clear()
    monkeypatch.setattr("workbench.ml.neighbors.estimator.RESULT", 8000)
    distances, indices = model.kneighbors()

    assert distances.chunks == indices.chunks == ((51, 51, 51, 50), (n_neighbors,))
    assert sources.placed_by(distances) == sources.placed_by(indices) == "rank"
    assert passes == [{"pass": 1, "name": "nearest"}]
    expected = NearestNeighbors(n_neighbors).fit(X)
    assert_found((distances.compute(), indices.compute()), expected.kneighbors(), rtol=0)
    graph = model.kneighbors_graph(mode="distance").compute()
    np.testing.assert_array_equal(graph.toarray(), expected.kneighbors_graph(mode="distance").toarray())


@pytest.mark.parametrize("form", ["array", "single precision", "whole numbers", "sparse", "table", "placed"])
def test_neighbors_of_dask_queries_stay_with_these_on_the_ranks(client, form, monkeypatch):
    X, queries = rows(203), rows(90, seed=2)
    if form in {"single precision", "whole numbers"}:
        queries = (5 * queries).astype(np.float32 if form == "single precision" else np.int64)
    given = da.from_array(queries, chunks=((0, 70, 0, 20), 3))
    if form == "sparse":
        given = given.rechunk({1: -1}).map_blocks(sparse.csr_array)
    elif form == "table":
        given = dd.from_pandas(pd.DataFrame(queries), npartitions=3)
    elif form == "placed":
        given = place(given)
    model = NearestNeighbors(3).fit(da.from_array(X, chunks=(60, 6)))
    monkeypatch.setattr("workbench.ml.neighbors.estimator.RESULT", 1000)
    distances, indices = model.kneighbors(given)

    assert distances.chunks == indices.chunks == ((23, 23, 22, 22), (3,))
    assert sources.placed_by(distances) == sources.placed_by(indices) == "rank"
    expected = NearestNeighbors(3).fit(X)
    assert_found((distances.compute(), indices.compute()), expected.kneighbors(queries), rtol=0)
    graph = model.kneighbors_graph(given, mode="distance").compute()
    np.testing.assert_array_equal(graph.toarray(), expected.kneighbors_graph(queries, mode="distance").toarray())


@pytest.mark.parametrize("engine", ["auto", "dask"])
@pytest.mark.parametrize("form", ["table", "whole numbers", "half precision", "sparse", "sparse whole numbers"])
def test_rows_on_ranks_are_checked_and_converted_once(client, form, engine, monkeypatch):
    X, queries = np.round(5 * rows(203)), rows(9, seed=2)
    given = da.from_array(X, chunks=(60, 6))
    if form == "table":
        given = dd.from_pandas(pd.DataFrame(X).astype({0: "Int64", 1: np.float32}), npartitions=3)
    elif form.startswith("sparse"):
        given = given.astype(np.int32 if form == "sparse whole numbers" else np.float64).map_blocks(sparse.csr_array)
    else:
        given = given.astype(np.int8 if form == "whole numbers" else np.float16)
    model = NearestNeighbors(3, engine=engine).fit(place(given))
    for name in ("sklearn.utils.check_array", "workbench.ml.frames.array_of"):
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("the rows were checked again"))
    distances, indices = model.kneighbors()
    results = model.kneighbors(queries)
    monkeypatch.undo()

    expected = NearestNeighbors(3).fit(X)
    assert_found((distances.compute(), indices.compute()), expected.kneighbors(), rtol=0)
    assert_found(results, expected.kneighbors(queries), rtol=0)


def test_queries_on_ranks_are_checked(client):
    model = NearestNeighbors(3).fit(da.from_array(rows(203), chunks=(60, 6)))
    with refused.not_finite("NaN"):
        model.kneighbors(da.full((20, 6), np.nan, chunks=(5, 6)))


@pytest.mark.parametrize("number", [0, 1, 3])
def test_fewer_queries_than_ranks_are_answered_as_well(client, number):
    X = rows(203)
    queries = da.from_array(X[:20], chunks=((0, 12, 0, 8), 6))
    some = queries[queries[:, 0] >= np.sort(X[:20, 0])[20 - number]] if number else queries[queries[:, 0] > 1e9]

    distances, indices = NearestNeighbors(3).fit(da.from_array(X, chunks=(60, 6))).kneighbors(some)
    assert distances.shape == indices.shape == (number, 3)
    if number:
        expected = NearestNeighbors(3).fit(X).kneighbors(some.compute())
        assert_found((distances.compute(), indices.compute()), expected, rtol=0)


def test_a_task_is_as_large_as_its_queries():
    queries = rows(4000)
    task = Task(find, nearest(queries, 5), NeighborsPart, Checks("NearestNeighbors"))

    assert sizeof(task) > queries.nbytes


def assert_same(found, expected, rtol=1e-9):
    """Compare arrays of arrays: distances and numbers of rows."""
    for each, array in zip(found, expected, strict=True):
        assert (each.shape, each.dtype) == (array.shape, object)
        assert [len(ours) for ours in each] == [len(theirs) for theirs in array]
    np.testing.assert_array_equal(np.concatenate(found[1]), np.concatenate(expected[1]))
    np.testing.assert_allclose(
        np.concatenate(found[0]), np.concatenate(expected[0]), rtol=rtol, atol=1e-7 if rtol else 0
    )


@pytest.mark.parametrize(
    ("metric", "radius"), [("euclidean", 1.5), ("manhattan", 3.0), ("cosine", 0.1), ("chebyshev", 0.0), (np.dot, 0.2)]
)
@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_rows_within_a_radius_are_those_of_scikit_learn(metric, radius, order, form):
    metric = "minkowski" if metric is np.dot else metric
    if form is sparse.csr_array and metric == "chebyshev":
        metric = "l1"
    X, queries = form(rows(700)), form(np.concatenate([rows(90, seed=2), rows(700)[:5], rows(3, away=100)]))
    ours = NearestNeighbors(radius=radius, metric=metric).fit(X)
    theirs = neighbors.NearestNeighbors(radius=radius, metric=metric, algorithm="brute").fit(X)

    for given in (queries, None):
        found, expected = (model.radius_neighbors(given, sort_results=order) for model in (ours, theirs))
        assert_same(found, expected)
        assert {(each.dtype, row.dtype) for each, row in zip(*found, strict=True)} == {(np.dtype(float), np.dtype(int))}
        for mode in ("connectivity", "distance"):
            graphs = [model.radius_neighbors_graph(given, radius=2 * radius, mode=mode) for model in (ours, theirs)]
            assert (graphs[0].format, graphs[0].shape) == ("csr", graphs[1].shape)
            np.testing.assert_allclose(graphs[0].toarray(), graphs[1].toarray(), rtol=1e-9, atol=1e-7)
    np.testing.assert_array_equal(
        np.concatenate(ours.radius_neighbors(queries, return_distance=False)),
        np.concatenate(ours.radius_neighbors(queries)[1]),
    )


def test_rows_at_the_radius_are_within_it():
    X = np.array(list(itertools.product(range(7), repeat=3))) * 0.1
    for squared in (1, 2, 3, 6):
        radius = np.sqrt(np.square(X[0] - X).sum(axis=1))[np.isclose(np.square(X * 10).sum(axis=1), squared)].max()
        [found] = NearestNeighbors().fit(X).radius_neighbors(X[:1], radius, return_distance=False)
        assert list(found) == list(np.flatnonzero(np.square(np.round(10 * X)).sum(axis=1) <= squared))


@pytest.mark.parametrize("number", [1, 3, 40])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("order", [False, True])
def test_parts_find_and_keep_what_is_within_a_radius(number, form, order):
    X = rows(300)
    search = Within(metric="euclidean", keywords={}, radius=1.2, sort=order, step=40)
    parts = parts_of(form(X), number)
    find_each(parts, search)
    found = [np.concatenate(each) for each in zip(*parts.each("kept"), strict=True)]

    model = NearestNeighbors(radius=1.2).fit(X)
    assert_same(found, model.radius_neighbors(sort_results=order), rtol=1e-13)


@pytest.mark.parametrize("empty", [False, True])
def test_rows_within_a_radius_of_dask_queries_are_found_lazily_by_an_array(empty):
    X, queries = rows(300), rows(100, seed=2)
    model = NearestNeighbors(radius=1e-9 if empty else 2.0).fit(X)
    lazy = da.from_array(queries, chunks=(40, 3))
    distances, indices = model.radius_neighbors(lazy)

    assert distances.chunks == indices.chunks == ((40, 40, 20),)
    assert_same(da.compute(distances, indices, scheduler="sync"), model.radius_neighbors(queries), rtol=0)
    graph = model.radius_neighbors_graph(lazy, mode="distance")
    assert graph.chunks == ((40, 40, 20), (300,))
    expected = model.radius_neighbors_graph(queries, mode="distance")
    np.testing.assert_array_equal(graph.compute(scheduler="sync").toarray(), expected.toarray())


@pytest.mark.parametrize("given", ["own rows", "queries", "two queries"])
def test_rows_within_a_radius_stay_on_the_ranks(client, given, monkeypatch):
    X, queries = rows(103), None if given == "own rows" else rows(2 if given == "two queries" else 50, seed=2)
    model = NearestNeighbors(radius=1.5).fit(da.from_array(X, chunks=(30, 6)))
    monkeypatch.setattr("workbench.ml.neighbors.estimator.RESULT", 1000)
    lazy = None if queries is None else da.from_array(queries, chunks=(20, 6))
    distances, indices = model.radius_neighbors(lazy, sort_results=True)

    if given != "two queries":
        assert sources.placed_by(distances) == sources.placed_by(indices) == "rank"
    expected = NearestNeighbors(radius=1.5).fit(X)
    assert_same((distances.compute(), indices.compute()), expected.radius_neighbors(queries, sort_results=True), rtol=0)
    graph = model.radius_neighbors_graph(lazy).compute()
    np.testing.assert_array_equal(graph.toarray(), expected.radius_neighbors_graph(queries).toarray())


@pytest.mark.parametrize("radius", [-1, float("nan"), "wide"])
def test_a_radius_that_is_none_is_refused(radius):
    with pytest.raises(ValueError, match="Expected radius >= 0"):
        NearestNeighbors().fit(rows(20)).radius_neighbors(radius=radius)
    with pytest.raises(ValueError, match="return_distance must be True"):
        NearestNeighbors().fit(rows(20)).radius_neighbors(return_distance=False, sort_results=True)


def test_a_radius_may_be_larger_than_all_distances():
    found = NearestNeighbors().fit(rows(20)).radius_neighbors(radius=1e200, return_distance=False)
    assert [len(each) for each in found] == [19] * 20


@pytest.mark.parametrize(
    "search", [nearest(None, 3, step=7), Within(metric="euclidean", keywords={}, radius=2, step=7)]
)
def test_a_part_without_rows_has_no_neighbors(search, monkeypatch):
    X = rows(50)
    parts = LocalParts(
        [NeighborsPart(X[start:stop], None, None, start) for start, stop in ((0, 25), (25, 25), (25, 50))]
    )
    monkeypatch.setattr("workbench.ml.neighbors.search.RESULT", 500)
    find_each(parts, search)
    assert [[len(each) for each in kept] for kept in parts.each("kept")] == [[25, 25], [0, 0], [25, 25]]


def actors_here(dask_worker):
    return len(dask_worker.state.actors)


def test_searches_on_dask_workers_share_their_parts_until_the_model_is_gone(client, monkeypatch):
    X, queries, made = rows(60), rows(5, seed=2), []
    start = PartActor.__init__
    monkeypatch.setattr(PartActor, "__init__", lambda *args: made.append(args[2]) or start(*args))
    told = []
    model = NearestNeighbors(3, callback=told.append).fit(place(X))
    for _ in range(2):
        assert_found(model.kneighbors(queries), exactly(queries, X, 3))
        assert_found(model.kneighbors(queries[:1]), exactly(queries[:1], X, 3))
        model.radius_neighbors(queries)
    assert model.engine_ == "dask"
    assert made.count(NeighborsPart) == 4
    assert [record["name"] for record in told] == ["rows", *["nearest", "nearest", "within"] * 2]

    # Another fit has other rows.
    model.fit(place(X[::-1].copy()))
    assert_found(model.kneighbors(queries), exactly(queries, X[::-1], 3))
    assert made.count(NeighborsPart) == 8
    until("the parts of the first fit are gone", lambda: set(client.run(actors_here).values()) == {1})

    del model
    until("the parts are gone", lambda: not any(client.run(actors_here).values()))
