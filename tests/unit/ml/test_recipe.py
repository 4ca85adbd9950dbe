"""Recipes against scikit-learn's transformers, on any number of parts in this process."""

from __future__ import annotations

import pickle
import tracemalloc
from functools import reduce

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression as LocalLogisticRegression
from sklearn.model_selection import RandomizedSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, StandardScaler, TargetEncoder
from support import refused
from support.recipes import DELAY, FLIGHTS, MEANS, ONE_HOT, PARTS, ROWS, CountedParts, in_parts
from support.sklearn_checks import accepted_by_scikit_learn

from workbench.ml import LogisticRegression
from workbench.ml.recipe.data import fold_of
from workbench.ml.recipe.estimator import Recipe, _index, _positions
from workbench.ml.recipe.part import RecipePart, statistics
from workbench.ml.recipe.statistics import POINTS, Groups, Spread


@accepted_by_scikit_learn(
    Recipe([(StandardScaler(), slice(None))]),
    Recipe([([SimpleImputer(strategy="median"), KBinsDiscretizer(3, encode="onehot-dense")], slice(None))]),
)
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


@PARTS
def test_all_columns_are_sparse_if_a_step_wants_it(parts):
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    theirs = ColumnTransformer(
        [("n", numbers, ["distance", "hour"]), ("c", OneHotEncoder(), ["carrier", "origin"])],
        sparse_threshold=1.0,
    )
    steps = [
        ([SimpleImputer(), StandardScaler()], ["distance", "hour"]),
        (OneHotEncoder(handle_unknown="ignore"), ["carrier", "origin"]),
    ]
    wanted = theirs.fit_transform(FLIGHTS)
    found = in_parts(Recipe(steps), FLIGHTS, None, parts).transform(FLIGHTS)

    assert isinstance(found, sparse.csr_array)
    assert found.has_canonical_format
    assert found.dtype == np.float64
    assert found.data.all()
    np.testing.assert_allclose(found.toarray(), wanted.toarray(), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(Recipe(steps).fit_transform(FLIGHTS).toarray(), found.toarray(), rtol=1e-12)


def test_sparse_rows_of_all_steps_are_the_dense_ones():
    def steps(**options):
        numbers = [
            ("passthrough", "hour"),
            (KBinsDiscretizer(encode="ordinal"), "hour"),
            (KBinsDiscretizer(encode="onehot-dense"), "distance"),
        ]
        return [
            *numbers,
            (MEANS, "origin"),
            (OneHotEncoder(handle_unknown="ignore", **options), "carrier"),
            (ONE_HOT, "origin"),
        ]

    new = FLIGHTS[:200].assign(origin="ORD")
    dense, scarce = (Recipe(steps(**options)).fit(FLIGHTS, DELAY) for options in ({"sparse_output": False}, {}))
    for rows in (FLIGHTS, new, new[:0]):
        np.testing.assert_array_equal(scarce.transform(rows).toarray(), dense.transform(rows))


@pytest.mark.parametrize("kind", ["frame", "array"])
def test_sparse_rows_of_dask_are_blocks_that_a_model_takes(kind):
    late = DELAY > 2
    table = FLIGHTS if kind == "frame" else FLIGHTS.to_numpy(dtype=object)
    lazy = dd.from_pandas(FLIGHTS, npartitions=4) if kind == "frame" else da.from_array(table, chunks=(400, 2))
    steps = [([SimpleImputer(), StandardScaler()], [0]), (OneHotEncoder(handle_unknown="ignore"), [2, 3])]
    ours = make_pipeline(Recipe(steps), LogisticRegression(tol=1e-8)).fit(table, late)
    rows = ours[0].transform(table)
    theirs = LocalLogisticRegression(tol=1e-8).fit(rows, late)

    np.testing.assert_allclose(ours[1].coef_, theirs.coef_, atol=1e-8)
    with dask.config.set(scheduler="synchronous"):
        found = ours[0].transform(lazy)
        assert isinstance(found._meta, sparse.csr_array)
        np.testing.assert_array_equal(found.compute().toarray(), rows.toarray())
        np.testing.assert_allclose(ours.predict_proba(lazy).compute(), ours.predict_proba(table), rtol=1e-12)


@PARTS
@pytest.mark.parametrize("smooth", ["auto", 10.0])
def test_rows_to_train_on_are_told_the_means_of_the_other_folds(parts, smooth):
    columns = ["carrier", "hour"]
    ours = in_parts(
        Recipe([(TargetEncoder(target_type="continuous", cv=4, smooth=smooth), columns)]), FLIGHTS, DELAY, parts
    )
    found = ours.transform(FLIGHTS, np.arange(ROWS))
    fold = fold_of(np.arange(ROWS), 4)
    for number in range(4):
        encoder = TargetEncoder(target_type="continuous", smooth=smooth)
        encoder.fit(FLIGHTS[columns][fold != number], DELAY[fold != number])
        expected = encoder.transform(FLIGHTS[columns][fold == number])
        np.testing.assert_allclose(found[fold == number], expected, rtol=1e-12)


def test_labels_that_are_true_or_false_are_encoded_as_those_of_scikit_learn():
    late = DELAY > 2
    ours = Recipe([(MEANS, "carrier")]).fit(FLIGHTS, late)
    theirs = TargetEncoder(target_type="binary").fit(FLIGHTS[["carrier"]], late)
    np.testing.assert_allclose(ours.transform(FLIGHTS), theirs.transform(FLIGHTS[["carrier"]]), rtol=1e-12)


def test_a_fit_is_one_pass():
    steps = [
        ([SimpleImputer(strategy="median"), StandardScaler()], [0]),
        ([SimpleImputer(strategy="mean"), KBinsDiscretizer(encode="ordinal")], [0]),
        (MEANS, [2, 3]),
    ]
    chains = [column.chain for column in Recipe(steps).fit(FLIGHTS, DELAY).columns_]
    parts = CountedParts([RecipePart(FLIGHTS, DELAY.to_numpy(), None, 0)] * 3)
    statistics(parts, chains)
    assert parts.called == ["statistics"]


@PARTS
def test_quantiles_of_many_numbers_are_as_near_as_it_is_said(parts):
    numbers = np.random.default_rng(1).lognormal(size=10 * POINTS)
    spread = Spread.of(numbers[: len(numbers) // parts])
    for number in range(1, parts):
        stop = len(numbers) if number == parts - 1 else (number + 1) * (len(numbers) // parts)
        spread = spread.join(Spread.of(numbers[number * (len(numbers) // parts) : stop]))
    shares = np.linspace(0.01, 0.99, 50)
    ranks = np.searchsorted(np.sort(numbers), spread.quantiles(shares)) / len(numbers)

    assert len(spread.points) <= parts * POINTS
    assert np.abs(ranks - shares).max() <= 1 / (2 * POINTS) + 1 / len(numbers)


def test_categories_that_were_not_there_are_no_error():
    recipe = Recipe([(ONE_HOT, "origin"), (MEANS, "origin"), (ONE_HOT, "carrier")])
    known = FLIGHTS.assign(carrier="AA")
    recipe.fit(known, DELAY)
    new = pd.DataFrame({"distance": 1.0, "hour": 1, "carrier": ["AA", None], "origin": ["EWR", "ORD"]})
    found = recipe.transform(new)

    np.testing.assert_array_equal(found[1, :3], 0)
    assert found[1, 3] == pytest.approx(DELAY.mean())
    np.testing.assert_array_equal(found[:, 4], [1, 0])


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_equal_values_of_several_types_are_one_category_in_any_blocks(parts):
    column = np.array([2, "a", True, np.int64(2), None, 1, (1, 2), 2.0, "a", np.str_("a"), 1.0, (1, 2)], dtype=object)
    pieces = np.array_split(np.arange(12), parts)
    groups = [Groups.of(pd.Series(column[piece]), None, None, 1, piece) for piece in pieces]
    joined = reduce(Groups.join, groups).sorted()

    assert joined.categories.tolist() == [True, 2, "a", (1, 2)]
    np.testing.assert_array_equal(joined.rows, [3, 3, 3, 2, 1])


@PARTS
@pytest.mark.parametrize("dtype", ["Int64", "UInt64", "int64[pyarrow]", "int64", "category"])
@pytest.mark.parametrize("missing", [0, 1])
def test_integers_that_a_float_may_not_represent_are_categories_of_their_own(parts, dtype, missing):
    ids = pd.array([2**53, 2**53 + 1, 2**53, 7, *[None] * missing], "Int64")
    column = pd.Series(ids) if dtype == "category" else pd.Series(ids[:4] if dtype == "int64" else ids, dtype=dtype)
    column = column.astype(dtype)
    target, parts = [0.0, 10, 0, 5, 2][: len(column)], min(parts, len(column))

    means = in_parts(
        Recipe([(TargetEncoder(target_type="continuous", smooth=0.0), "id")]), column.to_frame("id"), target, parts
    )
    np.testing.assert_array_equal(means.transform(column.to_frame("id"))[:, 0], target)
    shares = in_parts(Recipe([(ONE_HOT, "id")]), column.to_frame("id"), None, parts)
    names = [name.removesuffix(".0") for name in shares.columns[0].names(["id"])]
    if not missing:
        of_sklearn = Recipe([(ONE_HOT, "id")]).fit(column.to_frame("id")).transformer_
        assert [name.removesuffix(".0") for name in of_sklearn.get_feature_names_out()] == names
    assert names == ["id_7", f"id_{2**53}", f"id_{2**53 + 1}", "id_nan"][: column.nunique(dropna=False)]


def test_what_is_missing_is_a_category_whatever_it_is():
    column = pd.Series(["a", None, np.nan, pd.NA, "b"], dtype=object)
    recipe = Recipe([(ONE_HOT, "x")])
    found = recipe.fit_transform(column.to_frame("x"))
    np.testing.assert_array_equal(found[:, 2], [0, 1, 1, 1, 0])
    assert list(recipe.get_feature_names_out()) == ["x_a", "x_b", "x_nan"]


def test_numbers_that_are_missing_stay_so_without_imputation():
    X = np.array([[1.0], [np.nan], [3.0], [10.0]])
    found = Recipe(
        [
            ("passthrough", 0),
            (FrozenEstimator(KBinsDiscretizer(2, encode="ordinal", strategy="uniform").fit([[0], [4]])), 0),
            (KBinsDiscretizer(2, encode="onehot-dense"), 0),
        ]
    ).fit_transform(X)
    np.testing.assert_array_equal(found[:, 0], X[:, 0])
    np.testing.assert_array_equal(found[:, 1], [0, np.nan, 1, 1])
    np.testing.assert_array_equal(found[1, 2:], [0, 0])


def test_a_column_without_numbers_is_filled_with_zeros():
    X = np.full((5, 1), np.nan)
    for strategy in ("mean", "median", "most_frequent"):
        np.testing.assert_array_equal(
            Recipe([([SimpleImputer(strategy=strategy), StandardScaler()], 0)]).fit_transform(X), np.zeros((5, 1))
        )


def test_columns_may_be_chosen_by_a_function_and_names_stay_apart():
    recipe = Recipe(
        [
            ([SimpleImputer(), StandardScaler()], make_column_selector(dtype_include="number")),
            (KBinsDiscretizer(3, encode="ordinal"), "hour"),
            (ONE_HOT, [3]),
        ]
    ).fit(FLIGHTS)
    names = ["distance", "standardscaler__hour", "kbinsdiscretizer__hour", "origin_EWR", "origin_JFK", "origin_LGA"]
    assert list(recipe.get_feature_names_out()) == names
    frame = recipe.set_output(transform="pandas").transform(FLIGHTS)
    assert list(frame.columns) == names


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (slice("hour", "origin"), ["hour", "origin"]),
        (slice(None, "hour"), ["distance", "hour"]),
        (slice("hour", None), ["hour", "origin"]),
        (slice(1), ["distance"]),
        (np.int64(1), ["hour"]),
        (pd.Index(["hour"]), ["hour"]),
    ],
)
def test_columns_may_be_slices_of_names(columns, names):
    table = pd.DataFrame({"distance": [1.0, 2.0], "hour": [3, 4], "origin": [5, 6]})
    recipe = Recipe([(StandardScaler(), columns)]).fit(table)
    assert list(recipe.get_feature_names_out()) == names
    theirs = ColumnTransformer([("scale", StandardScaler(), [columns] if np.isscalar(columns) else columns)])
    np.testing.assert_allclose(recipe.transform(table), theirs.fit_transform(table))


NUMBERED = pd.DataFrame({2: [1.0, 2, 3, 4], 0: [10.0, 20, 30, 50], 5: [0.0, 0, 0, 1]})
PLAIN = NUMBERED.set_axis(range(3), axis=1)


@pytest.mark.parametrize(
    ("table", "columns", "positions"),
    [
        (NUMBERED, [2], [0]),
        (NUMBERED, 0, [1]),
        (NUMBERED, [5, 0], [2, 1]),
        (NUMBERED, slice(None), [0, 1, 2]),
        (NUMBERED, make_column_selector(dtype_include="number"), [0, 1, 2]),
        (PLAIN, [1, -1], [1, 2]),
        (PLAIN, slice(1, 3), [1, 2]),
        (PLAIN.to_numpy(), [1, -1], [1, 2]),
        (PLAIN.set_axis([False, True, "x"], axis=1), [True], [1]),
        (PLAIN.set_axis([0.5, float("nan"), 1.5], axis=1), [np.nan], [1]),
        (PLAIN.set_axis(pd.to_datetime(["2024", "2025", None]), axis=1), [pd.NaT], [2]),
    ],
)
def test_a_number_is_a_label_where_labels_are_other_numbers(table, columns, positions):
    labels = list(getattr(table, "columns", range(3)))
    assert _positions(columns(table) if callable(columns) else columns, labels) == positions


@pytest.mark.parametrize(
    ("labels", "columns", "sentence"),
    [
        ([2, 0, 5], [1], r"X has no column 1\. Labels of X are numbers.*The columns of X: 2, 0, 5\."),
        ([2, 0, 5], [-1], r"X has no column -1\. Labels of X are numbers"),
        ([2.0, "x", 5], [1], "Labels of X are numbers"),
        ([2, 0, 5], slice(0, 2), r"slice\(0, 2, None\) may be positions or labels"),
        ([2, 0, 5], slice(None, 2), "may be positions or labels"),
        ([0, 1, 2], [True, False, True], "X has no column True"),
        (["a", "b", "a"], ["a"], "X has 2 columns 'a'"),
        (["a", "b", "c"], [np.nan], "X has no column nan"),
        (["a", "b", "a"], ["b", "c"], "X has no column 'c'"),
    ],
)
def test_columns_that_may_be_others_are_refused(labels, columns, sentence):
    with pytest.raises(ValueError, match=sentence):
        _positions(columns, labels)


def test_many_columns_are_found_in_one_search(monkeypatch):
    labels, indexed = [f"c{number}" for number in range(100)], []
    monkeypatch.setattr(
        "workbench.ml.recipe.estimator._index", lambda found, *, make=_index: indexed.append(found) or make(found)
    )
    assert _positions(labels[::-1], labels) == list(range(100))[::-1]
    assert indexed == [labels, labels[::-1]]


def test_missing_numbers_of_categories_are_filled_with_zero():
    table = pd.DataFrame({"x": [0.0, np.nan, 2.0, 5.0], "s": ["a", "b", None, "a"]})
    for column in ("x", "s"):
        steps = [SimpleImputer(strategy="constant"), ONE_HOT]
        recipe = Recipe([(steps, [column])]).fit(table)
        theirs = make_pipeline(*map(clone, steps)).fit(table[[column]])
        np.testing.assert_array_equal(recipe.transform(table), theirs.transform(table[[column]]))
        assert list(recipe.get_feature_names_out()) == list(theirs.get_feature_names_out())


def test_an_array_of_objects_is_a_table():
    steps = [([SimpleImputer(), StandardScaler()], [0, 1]), (ONE_HOT, [2, 3])]
    of_frame = Recipe(steps).fit_transform(FLIGHTS)
    recipe = Recipe(steps)
    np.testing.assert_allclose(recipe.fit_transform(FLIGHTS.to_numpy(dtype=object)), of_frame, rtol=1e-12)
    assert recipe.get_feature_names_out()[:3].tolist() == ["x0", "x1", "x2_AA"]


@pytest.mark.parametrize("dtype", ["string", "category", "object"])
def test_text_of_any_type_is_the_same(dtype):
    found = Recipe([(ONE_HOT, "origin"), (MEANS, "origin")]).fit_transform(FLIGHTS.astype({"origin": dtype}), DELAY)
    np.testing.assert_array_equal(found, Recipe([(ONE_HOT, "origin"), (MEANS, "origin")]).fit_transform(FLIGHTS, DELAY))


def test_numbers_that_only_pandas_has_may_be_missing():
    frame = pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": [True, False, True]})
    found = Recipe([(SimpleImputer(), ["a", "b"])]).fit_transform(frame)
    np.testing.assert_array_equal(found, [[1, 1], [2, 0], [3, 1]])


def test_a_fitted_recipe_pickles():
    recipe = Recipe(
        [([SimpleImputer(strategy="median"), StandardScaler()], "distance"), (ONE_HOT, "carrier"), (MEANS, "origin")]
    )
    recipe.fit(FLIGHTS, DELAY)
    again = pickle.loads(pickle.dumps(recipe))  # noqa: S301  (made here)
    np.testing.assert_array_equal(again.transform(FLIGHTS), recipe.transform(FLIGHTS))


def test_tables_of_dask_are_transformed_lazily():
    recipe = Recipe([([SimpleImputer(), StandardScaler()], [0]), (ONE_HOT, [2]), (MEANS, [3])]).fit(FLIGHTS, DELAY)
    expected = recipe.transform(FLIGHTS)
    with dask.config.set(scheduler="synchronous"):
        found = recipe.transform(dd.from_pandas(FLIGHTS, npartitions=4))
        assert found.chunks[1] == (expected.shape[1],)
        assert np.isnan(found.chunks[0]).all()
        np.testing.assert_array_equal(found.compute(), expected)
        recipe = Recipe(recipe.steps).fit(FLIGHTS.to_numpy(dtype=object), DELAY)
        found = recipe.transform(da.from_array(FLIGHTS.to_numpy(dtype=object), chunks=(400, 2)))
        assert found.chunks == ((400, 400, 400, 301), (expected.shape[1],))
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-12)


@pytest.mark.parametrize("step", [ONE_HOT, KBinsDiscretizer(50, encode="onehot-dense")], ids=["categories", "buckets"])
def test_dense_rows_need_little_memory_beside_the_result(step):
    table = pd.DataFrame({"x": np.random.default_rng(4).integers(0, 50, size=100_000)})
    recipe = Recipe([(step, "x")]).fit(table)
    tracemalloc.start()
    try:
        found = recipe.transform(table)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert found.nbytes > 30_000_000
    assert peak < 1.2 * found.nbytes


def test_a_pipeline_comes_to_the_model_of_scikit_learn():
    late = DELAY > 2
    ours = make_pipeline(
        Recipe(
            [
                ([SimpleImputer(strategy="median"), StandardScaler()], ["distance", "hour"]),
                (ONE_HOT, ["carrier", "origin"]),
            ]
        ),
        LogisticRegression(tol=1e-8),
    ).fit(FLIGHTS, late)
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    theirs = make_pipeline(
        ColumnTransformer([("n", numbers, ["distance", "hour"]), ("c", OneHotEncoder(), ["carrier", "origin"])]),
        LocalLogisticRegression(tol=1e-8),
    ).fit(FLIGHTS, late)
    np.testing.assert_allclose(ours.predict_proba(FLIGHTS), theirs.predict_proba(FLIGHTS), atol=1e-7)


def test_steps_are_parameters_that_can_be_searched():
    pipeline = make_pipeline(Recipe([("passthrough", ["hour"])]), LogisticRegression())
    search = RandomizedSearchCV(
        pipeline,
        {"recipe__steps": [[("passthrough", ["hour"])], [(ONE_HOT, ["carrier"])]], "logisticregression__C": [0.1, 1.0]},
        n_iter=3,
        random_state=0,
        cv=2,
    ).fit(FLIGHTS, DELAY > 2)
    assert search.best_params_["recipe__steps"] == [("passthrough", ["hour"])]


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (
            [(StandardScaler(), "height")],
            r"X has no column 'height'\. The columns of X: 'distance', 'hour', 'carrier', 'origin'",
        ),
        ([(StandardScaler(), [9])], r"X has no column 9\."),
        ([(StandardScaler(), slice("height", None))], r"X has no column 'height'\."),
        ([(StandardScaler(), None)], r"X has no column None\."),
        ([(StandardScaler(), [True])], r"X has no column True\."),
        ([(StandardScaler(), "origin")], "column 'origin' has values that are not numbers"),
        ([([StandardScaler(), ONE_HOT], "hour")], "cannot follow each other"),
        (
            [([SimpleImputer(strategy="constant", fill_value="none"), StandardScaler()], "hour")],
            "Pass a number for fill_value",
        ),
        ([("scale", "hour")], "is not a step of a recipe"),
        ([StandardScaler()], "is not a pair of steps and columns"),
        ([], "a Recipe needs at least one column"),
        ([(MEANS, "origin")], "requires y to be passed, but the target y is None"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(steps, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        Recipe(steps).fit(FLIGHTS)


def test_a_target_has_to_be_of_numbers_all_of_them_known():
    recipe = Recipe([(MEANS, "origin")])
    with refused.not_finite("NaN", name="y"):
        recipe.fit(FLIGHTS, np.where(DELAY > 2, np.nan, 1.0))
    with refused.other_length():
        recipe.fit(FLIGHTS, DELAY[:-1])
    with pytest.raises(TypeError):
        recipe.fit(FLIGHTS, da.from_array(DELAY.to_numpy()))


def test_infinite_numbers_are_refused():
    with pytest.raises(ValueError, match=r"Input X contains infinity.* in column 'distance'"):
        Recipe([(StandardScaler(), "distance")]).fit(FLIGHTS.assign(distance=np.inf))


@pytest.mark.parametrize("folds", [1, 2, 5, 7])
def test_rows_that_repeat_are_in_all_folds_and_folds_are_as_large(folds):
    fold = fold_of(np.arange(folds * 400), folds)

    assert np.bincount(fold, minlength=folds).tolist() == [400] * folds
    # Each of the stations whose rows take turns: 400 draws, whose deviation is at most 10.
    stations = np.stack([np.bincount(fold[station::folds], minlength=folds) for station in range(folds)])
    assert abs(stations - 400 / folds).max() < 50


def test_means_of_interleaved_stations_are_those_of_the_station():
    station = np.tile(np.arange(5), 60)
    table = pd.DataFrame({"station": station.astype(str)})
    found = Recipe([(TargetEncoder(target_type="continuous", cv=5, smooth=0.0), "station")]).fit_transform(
        table, station * 10.0
    )

    np.testing.assert_allclose(found[:, 0], station * 10.0)
