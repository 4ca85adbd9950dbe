"""What a fit on ranks computes: each partition once, nothing that lies on the ranks, and nothing before the fit."""

from __future__ import annotations

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.utils
from dask import bag
from dask.blockwise import Blockwise
from sklearn import preprocessing
from support import refused
from support.raised import raises

from workbench import place
from workbench.errors import InvalidRequest, PlacementError
from workbench.ml import (
    PCA,
    KMeans,
    LinearRegression,
    LogisticRegression,
    NearestNeighbors,
    Recipe,
    StandardScaler,
    frames,
)
from workbench.ml.placed import _client_of
from workbench.placement import sources

ROWS = 403
RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(ROWS, 3))
Y = (X @ [1.0, -2.0, 0.5] + RANDOM.logistic(size=ROWS) > 0).astype(int)
TABLE = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y, label=np.array(["early", "late"])[Y], weight=1.0 + Y)
FEATURES = ["a", "b", "c"]
read: list[int] = []


def partition(number):
    """Return a partition of the table, as one that is read from a file."""
    read.append(number)
    return TABLE.iloc[number * 101 : (number + 1) * 101]


def lazy_table():
    read.clear()
    return dd.from_map(partition, range(4), meta=TABLE.iloc[:0], enforce_metadata=False)


def test_each_partition_is_computed_once_for_rows_targets_and_weights(client):
    table = lazy_table()
    model = LogisticRegression(tol=1e-8).fit(table[FEATURES], table["label"], table["weight"])

    assert sorted(read) == [0, 1, 2, 3]
    here = LogisticRegression(tol=1e-8).fit(X, TABLE["label"].to_numpy(), TABLE["weight"].to_numpy())
    np.testing.assert_allclose(model.coef_, here.coef_, atol=1e-9)
    assert list(model.classes_) == ["early", "late"]
    assert list(model.feature_names_in_) == FEATURES


@pytest.mark.parametrize("method", ["predict", "predict_proba"])
def test_nothing_of_a_table_is_computed_before_it_is_asked_for(client, method):
    model = LogisticRegression().fit(TABLE[FEATURES], Y)
    found = getattr(model, method)(lazy_table()[FEATURES])

    assert read == []
    np.testing.assert_allclose(found.compute(), getattr(model, method)(TABLE[FEATURES]))
    assert sorted(read) == [0, 1, 2, 3]


def test_a_recipe_computes_nothing_of_a_table_before_it_is_asked_for(client):
    recipe = Recipe([(preprocessing.StandardScaler(), FEATURES)]).fit(TABLE)
    found = recipe.transform(lazy_table())

    assert read == []
    np.testing.assert_allclose(found.compute(), recipe.transform(TABLE))
    placed = recipe.transform(place(lazy_table()))
    assert placed.chunks == ((101, 101, 101, 100), (3,))


def test_a_placed_table_is_fitted_where_it_lies(client, monkeypatch):
    table, label = place(dd.from_pandas(TABLE[FEATURES], npartitions=3), dd.from_pandas(TABLE["label"], npartitions=3))
    monkeypatch.setattr("workbench.placement.place.place", lambda *_, **__: pytest.fail("it was placed again"))
    monkeypatch.setattr("workbench.placement.sources.build_blocks", lambda *_: pytest.fail("it was copied"))
    model = LogisticRegression(tol=1e-8).fit(table, label)

    assert model.engine_ == "dask"
    np.testing.assert_allclose(model.coef_, LogisticRegression(tol=1e-8).fit(X, Y).coef_, atol=1e-9)
    assert model.predict(table).chunks == ((101, 101, 101, 100),)


@pytest.mark.parametrize("is_placed", [False, True])
def test_a_table_that_is_placed_as_an_array_is_converted_once_for_all_fits(client, monkeypatch, is_placed):
    converted = []
    for module, name in ((frames, "array_of"), (sklearn.utils, "check_array")):
        convert = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda rows, *, call=convert, **options: converted.append(len(rows)) or call(rows, **options)
        )
    table = dd.from_pandas(TABLE[FEATURES], npartitions=3)
    table = place(table) if is_placed else table
    array = place(table.to_dask_array(lengths=True))
    models = [KMeans(3, init=X[:3]).fit(array) for _ in range(2)]
    assert converted == []
    assert models[0].engine_ == "dask"

    if is_placed:
        models += [KMeans(3, init=X[:3]).fit(table) for _ in range(2)]
        # In each fit both functions convert each row.
        assert sum(converted) == 2 * 2 * ROWS
    for model in models:
        np.testing.assert_allclose(model.cluster_centers_, models[0].cluster_centers_, rtol=1e-12)


def test_what_is_not_placed_is_placed_beside_what_is(client, monkeypatch):
    placed, weight = place(da.from_array(X, chunks=(50, 3))), da.from_array(TABLE["weight"].to_numpy(), chunks=60)
    assembled, assemble = [], sources.build_blocks
    monkeypatch.setattr(sources, "build_blocks", lambda *given: assembled.append(given[1].name) or assemble(*given))
    model = StandardScaler().fit(placed, sample_weight=weight)

    np.testing.assert_allclose(model.mean_, StandardScaler().fit(X, sample_weight=TABLE["weight"]).mean_)
    assert assembled == ["sample_weight"]
    with refused.other_length():
        StandardScaler().fit(placed, sample_weight=weight[1:])
    with pytest.raises(PlacementError):
        LogisticRegression().fit(placed, dd.from_pandas(TABLE["y"].iloc[1:], npartitions=2))


def test_a_cluster_without_mpi_fits_by_dask_and_logs_nothing(client, caplog):
    placed = place(da.from_array(X, chunks=(50, 3)))
    assert StandardScaler().fit(placed).engine_ == "dask"
    assert caplog.records == []


def test_a_search_copies_no_placed_rows(client, monkeypatch):
    placed = place(da.from_array(X, chunks=(50, 3)))
    monkeypatch.setattr("workbench.placement.place.place", lambda *_, **__: pytest.fail("it was placed again"))
    found = NearestNeighbors(3).fit(placed).kneighbors(X[:5], return_distance=False)

    np.testing.assert_array_equal(found, NearestNeighbors(3).fit(X).kneighbors(X[:5], return_distance=False))


def test_arrays_of_unknown_lengths_are_counted_for_a_fit(client):
    few = da.from_array(X, chunks=(50, 3))
    few = few[few[:, 0] > 0]
    model = KMeans(3, init=X[:3]).fit(few)

    np.testing.assert_allclose(
        model.cluster_centers_, KMeans(3, init=X[:3]).fit(X[X[:, 0] > 0]).cluster_centers_, rtol=1e-9
    )


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
def test_types_that_only_pandas_has_become_numbers(client):
    frame = pd.DataFrame({"a": pd.array(Y, "Int64"), "b": pd.array(X[:, 1], "Float64"), "c": Y > 0})
    target = pd.Series(pd.array(Y * 2, "Int64"))
    model = LinearRegression().fit(dd.from_pandas(frame, npartitions=3), dd.from_pandas(target, npartitions=3))

    here = LinearRegression().fit(frame.to_numpy(float), Y * 2)
    np.testing.assert_allclose(model.predict(frame), here.predict(frame.to_numpy(float)), atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("model", [LogisticRegression(), LinearRegression()], ids=lambda model: type(model).__name__)
def test_a_score_of_a_table_needs_no_lengths(client, model, weighted):
    table = lazy_table()
    model.fit(TABLE[FEATURES], Y)
    weight = (table["weight"], TABLE["weight"]) if weighted else (None, None)
    score = model.score(table[FEATURES], table["y"], weight[0])

    assert score == pytest.approx(model.score(TABLE[FEATURES], Y, weight[1]), rel=1e-12)


@pytest.mark.parametrize("labels", ["label", "y"])
def test_labels_for_a_score_may_be_a_table_with_one_column(labels):
    model, y = LogisticRegression(engine="local").fit(X, TABLE[labels]), TABLE[[labels]]
    wanted = model.score(X, TABLE[labels])

    for column in (dd.from_pandas(y, npartitions=2), y.to_numpy().astype(object)):
        assert model.score(X, column) == wanted


def test_clients_of_lazy_data_are_found_without_their_graphs(client, monkeypatch):
    frame = client.submit(TABLE.copy)
    on_cluster = [
        place(X) + 1,
        place(TABLE)["a"] + 1,
        place(TABLE)[["a"]].to_dask_array(),
        dd.from_delayed([frame], meta=TABLE)["a"] + 1,
        dd.from_delayed([dask.delayed(frame)], meta=TABLE),
        da.from_delayed(frame, TABLE.shape, dtype=object)[:2],
    ]
    for module in (Blockwise, type(lazy_table().expr)):
        monkeypatch.setattr(
            module, "_dict" if module is Blockwise else "_layer", property(lambda _: pytest.fail("the graph was made"))
        )
    assert _client_of([da.ones((4, 2), chunks=2) + 1, lazy_table()]) is None
    for collection in on_cluster:
        assert _client_of([collection]) is client


@pytest.mark.parametrize("X", [dask.delayed(X), bag.from_sequence(X)], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "model",
    [KMeans(), NearestNeighbors(), Recipe([(preprocessing.StandardScaler(), [0])])],
    ids=lambda value: type(value).__name__,
)
def test_collections_that_are_neither_arrays_nor_tables_are_refused(X, model):
    for use in (model.fit, StandardScaler().fit(np.ones((3, 3))).transform):
        with pytest.raises(TypeError, match=r"X is a dask\.\w+, whose rows are not known\. Pass a Dask array"):
            use(X)


def test_a_column_is_no_table():
    with pytest.raises(ValueError, match=r"Expected 2D array, got 1D array instead\. Reshape your data\."):
        KMeans().fit(dd.from_pandas(TABLE["a"], npartitions=2))


@pytest.mark.parametrize(
    "model", [LogisticRegression(), LinearRegression(), PCA(2)], ids=lambda value: type(value).__name__
)
def test_results_for_dask_arrays_have_the_stated_dtype(model):
    model.fit(X.astype(np.float32), Y)
    for method in ("predict", "predict_proba", "decision_function", "transform"):
        if hasattr(model, method):
            lazy = getattr(model, method)(da.from_array(X, chunks=(101, 3)))
            assert lazy.dtype == lazy.compute(scheduler="sync").dtype == getattr(model, method)(X).dtype


@pytest.mark.parametrize("labels", [[3, 7], [0.0, 1.0], [False, True], ["early", "late"]])
def test_labels_may_be_categories_of_any_type(client, labels):
    target = pd.Series(pd.Categorical.from_codes(Y, labels))
    placed = place(da.from_array(X, chunks=(101, 3)), dd.from_pandas(target, npartitions=3))
    model, here = LogisticRegression().fit(*placed), LogisticRegression().fit(X, target)

    np.testing.assert_array_equal(model.classes_, labels)
    assert model.classes_.dtype == here.classes_.dtype
    assert model.score(*placed) == here.score(X, target) > 0.7


@pytest.mark.parametrize("kind", ["boolean", "bool[pyarrow]", "Int64", "string", "object", "category"])
def test_labels_are_those_of_arrays_and_may_not_be_missing(client, kind):
    target = (
        pd.Series(Y > 0).astype({"string": "str", "object": "str", "category": "str"}.get(kind, "int8")).astype(kind)
    )
    rows = place(X)
    model, here = LogisticRegression().fit(rows, place(target)), LogisticRegression().fit(X, target)

    np.testing.assert_array_equal(model.classes_, here.classes_)
    assert model.classes_.dtype == here.classes_.dtype
    assert model.score(rows, place(target)) == here.score(X, target)
    target[3] = None
    for data in ((X, target), (rows, place(target))):
        with pytest.raises(ValueError, match=r"^Input( y)? contains NaN"):
            LogisticRegression().fit(*data)


def test_a_score_of_placed_rows_is_computed_where_they_lie(client):
    rows, labels = place(X, Y)
    model = LogisticRegression().fit(X, Y)
    of_table, table = LogisticRegression().fit(TABLE[FEATURES], Y), place(TABLE[FEATURES])

    with dask.config.set(scheduler="threads"):
        assert model.score(rows, labels) == model.score(rows[:], Y) == model.score(X, Y)
        assert of_table.score(table, labels) == of_table.score(TABLE[FEATURES], Y)
        found = NearestNeighbors(n_neighbors=3).fit(rows).kneighbors(rows[:2])[1]
        assert KMeans(2, init=X[:2]).fit(X).score(rows) == pytest.approx(KMeans(2, init=X[:2]).fit(X).score(X))
        assert PCA(2).fit(X).score(rows) == pytest.approx(PCA(2).fit(X).score(X))
        counted = StandardScaler().fit(rows[rows[:, 0] > 0])
    np.testing.assert_array_equal(found, NearestNeighbors(n_neighbors=3).fit(X).kneighbors(X[:2])[1])
    np.testing.assert_allclose(counted.mean_, X[X[:, 0] > 0].mean(axis=0))


def test_true_and_false_may_be_missing_where_numbers_may(client):
    frame = pd.DataFrame({"a": X[:, 0], "b": pd.array([None, *(Y[1:] > 0)], "boolean")})
    table = dd.from_pandas(frame, npartitions=3)

    np.testing.assert_allclose(StandardScaler().fit(table).mean_, StandardScaler().fit(frame).mean_)
    with refused.not_finite("NaN"):
        KMeans(2).fit(table)


def test_one_weight_for_all_rows_computes_nothing(client):
    model = LogisticRegression(tol=1e-8).fit(lazy_table()[FEATURES], da.from_array(Y, chunks=101), 2.0)

    assert sorted(read) == [0, 1, 2, 3]
    np.testing.assert_allclose(model.coef_, LogisticRegression(tol=1e-8).fit(X, Y, 2.0).coef_, atol=1e-9)


def test_the_engine_of_a_setting_holds_where_no_other_is_named(client):
    with dask.config.set({"workbench.ml.engine": "dask"}):
        assert StandardScaler().fit(X).engine_ == "dask"
        assert StandardScaler(engine="local").fit(X).engine_ == "local"
    with (
        dask.config.set({"workbench.ml.engine": "fast"}),
        raises(InvalidRequest, option="workbench.ml.engine", given="fast", allowed=("auto", "mpi", "dask", "local")),
    ):
        StandardScaler().fit(X)


@pytest.mark.parametrize("model", [StandardScaler(engine="local"), NearestNeighbors(engine="local")])
def test_collections_are_not_fitted_in_this_process(client, model):
    with raises(InvalidRequest, option="engine"):
        model.fit(da.from_array(X, chunks=(50, 3)))


@pytest.mark.parametrize("weight", [None, da.zeros(ROWS, chunks=50)])
def test_the_pass_of_the_scaler_refuses_what_is_infinite_and_takes_what_is_missing(client, weight):
    bad = X.copy()
    bad[300, 1] = np.inf
    with refused.not_finite("infinity"):
        StandardScaler().fit(place(bad), sample_weight=weight)
    bad[300, 1] = np.nan
    np.testing.assert_allclose(StandardScaler().fit(place(bad)).mean_, np.nanmean(bad, axis=0))
