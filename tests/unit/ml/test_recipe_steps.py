"""Recipes whose steps are transformers of scikit-learn, and recipes that have become one."""

from __future__ import annotations

import pickle

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
    TargetEncoder,
)
from support.recipes import DELAY, FLIGHTS, MEANS, ONE_HOT, PARTS, in_parts

from workbench.ml import Recipe

MEDIANS = {"quantile_method": "averaged_inverted_cdf"}
SCALED = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())


def dense(rows):
    return rows.toarray() if sparse.issparse(rows) else rows


@PARTS
@pytest.mark.parametrize(
    ("step", "columns"),
    [
        ("passthrough", ["distance", "hour"]),
        (StandardScaler(), ["distance", "hour"]),
        (StandardScaler(with_mean=False), ["distance", "hour"]),
        (StandardScaler(with_std=False), ["distance"]),
        (SCALED, ["distance", "hour"]),
        (SimpleImputer(), ["distance"]),
        (SimpleImputer(strategy="median"), ["distance"]),
        (SimpleImputer(strategy="most_frequent"), ["distance", "hour"]),
        (SimpleImputer(strategy="constant"), ["distance"]),
        (SimpleImputer(strategy="constant", fill_value=-1), ["distance"]),
        (ONE_HOT, ["carrier", "origin", "hour"]),
        (make_pipeline(SimpleImputer(strategy="most_frequent"), ONE_HOT), ["carrier", "origin"]),
        (
            make_pipeline(SimpleImputer(strategy="constant"), OneHotEncoder()),
            ["carrier"],
        ),
        (OneHotEncoder(drop="first"), ["carrier", "hour"]),
        (OneHotEncoder(drop="if_binary", sparse_output=False), ["origin"]),
        (KBinsDiscretizer(4, **MEDIANS), ["hour"]),
        (KBinsDiscretizer(5, encode="onehot-dense", **MEDIANS), ["hour"]),
        (
            make_pipeline(SimpleImputer(strategy="median"), KBinsDiscretizer(7, encode="ordinal", **MEDIANS)),
            ["distance", "hour"],
        ),
        (MEANS, ["carrier", "origin", "hour"]),
        (TargetEncoder(cv=3, smooth=2.0), ["carrier", "origin"]),
        (
            make_pipeline(SimpleImputer(strategy="constant", fill_value="none"), TargetEncoder(smooth=0.0)),
            ["carrier"],
        ),
        (FunctionTransformer(np.sqrt, feature_names_out="one-to-one"), ["distance", "hour"]),
        (PolynomialFeatures(2, include_bias=False), ["hour"]),
        (Normalizer(), ["hour"]),
        (FrozenEstimator(KBinsDiscretizer(3, strategy="uniform").fit(FLIGHTS[["hour"]])), ["hour"]),
        (FrozenEstimator(MinMaxScaler().fit(FLIGHTS[["hour", "distance"]])), ["hour", "distance"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_transformer_of_scikit_learn_gives_what_it_gives_there(parts, step, columns):
    theirs = ColumnTransformer(
        [("theirs", clone(step) if step != "passthrough" else step, columns)], verbose_feature_names_out=False
    )
    wanted = dense(theirs.fit(FLIGHTS, DELAY).transform(FLIGHTS))
    ours = in_parts(Recipe([(step, columns)]), FLIGHTS, DELAY, parts)

    np.testing.assert_allclose(dense(ours.transform(FLIGHTS)), wanted, rtol=1e-12, atol=1e-13)
    fitted = Recipe([(step, columns)]).fit(FLIGHTS, DELAY)
    assert list(fitted.get_feature_names_out()) == list(theirs.get_feature_names_out())


MANY = [
    (SCALED, "distance"),
    (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["carrier", "hour"]),
    (KBinsDiscretizer(3, encode="onehot-dense"), "hour"),
    (FrozenEstimator(KBinsDiscretizer(2, encode="ordinal", strategy="uniform").fit([[0], [10]])), "hour"),
    (MEANS, ["origin", "carrier"]),
    (PolynomialFeatures(2, interaction_only=True), ["hour", "distance"]),
]


@pytest.mark.parametrize("kind", ["frame", "array"])
@pytest.mark.parametrize("wanted", [False, True], ids=["dense", "sparse"])
def test_a_fitted_recipe_is_a_transformer_that_loads_without_workbench(kind, wanted):
    table = FLIGHTS.fillna({"distance": 0.0})
    table = table if kind == "frame" else table.to_numpy(dtype=object)
    numbers = {"distance": 0, "hour": 1, "carrier": 2, "origin": 3}
    steps = [*MANY, (OneHotEncoder(handle_unknown="ignore", sparse_output=wanted), ["origin"])]
    if kind == "array":
        steps = [(step, [numbers[name] for name in np.atleast_1d(columns)]) for step, columns in steps]
    recipe = Recipe(steps).fit(table, DELAY)
    pickled = pickle.dumps(recipe.transformer_)
    found = pickle.loads(pickled).transform(table)  # noqa: S301  (made here)

    assert b"workbench" not in pickled
    assert sparse.issparse(found) == wanted
    np.testing.assert_array_equal(dense(found), dense(recipe.transform(table)))


@pytest.mark.parametrize(
    "step",
    [ONE_HOT, TargetEncoder(target_type="continuous", smooth=0.0), [SimpleImputer(strategy="most_frequent"), ONE_HOT]],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["Int64", "UInt64", "int64[pyarrow]", "int64", "category"])
@pytest.mark.parametrize("missing", [0, 1])
def test_the_transformer_keeps_integers_that_a_float_may_not_represent(step, dtype, missing):
    ids = pd.array([2**53, 2**53 + 1, 2**53, 7, *[None] * (missing and dtype != "int64")], "Int64")
    table = pd.DataFrame({"id": pd.Series(ids).astype(dtype)})
    recipe = Recipe([(step, "id")]).fit(table, [0.0, 10, 0, 5, 2][: len(table)])
    found = pickle.loads(pickle.dumps(recipe.transformer_))  # noqa: S301  (made here)
    np.testing.assert_array_equal(dense(found.transform(table)), dense(recipe.transform(table)))
    assert list(found.get_feature_names_out()) == list(recipe.transformer_.get_feature_names_out())


def test_names_of_the_transformer_are_those_of_the_recipe():
    recipe = Recipe([([SimpleImputer(), StandardScaler()], "distance"), (ONE_HOT, "carrier")]).fit(FLIGHTS)
    assert list(recipe.transformer_.get_feature_names_out()) == list(recipe.get_feature_names_out())


@pytest.mark.parametrize("kind", ["frame", "array"])
def test_stateless_transformers_are_applied_to_each_block(kind):
    numbers = FLIGHTS[["hour", "distance"]].fillna(0.0)
    lazy = dd.from_pandas(numbers, npartitions=3) if kind == "frame" else da.from_array(numbers.to_numpy(), (400, 2))
    steps = [(FunctionTransformer(np.log1p), [0, 1]), (PolynomialFeatures(2), [0, 1])]
    recipe = Recipe(steps).fit(numbers if kind == "frame" else numbers.to_numpy())
    with dask.config.set(scheduler="synchronous"):
        found = recipe.transform(lazy)
        assert found.chunks[1] == (8,)
        np.testing.assert_array_equal(
            found.compute(), recipe.transform(numbers if kind == "frame" else numbers.to_numpy())
        )
    np.testing.assert_array_equal(found.compute()[:, :2], np.log1p(numbers))


TEXTS = FLIGHTS[["hour", "origin"]].assign(words=FLIGHTS["origin"] + " " + FLIGHTS["carrier"].fillna("none"))
TEXTS["tags"] = TEXTS["words"].str.split()
HASHED = HashingVectorizer(n_features=16, norm=None)


def lengths(words):
    return words.str.len().to_numpy()[:, None]


@PARTS
@pytest.mark.parametrize(
    ("step", "column"),
    [
        (HASHED, "words"),
        (FeatureHasher(8, input_type="string"), "tags"),
        (FrozenEstimator(TfidfVectorizer().fit(TEXTS["words"])), "words"),
        (FunctionTransformer(lengths), "words"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_column_that_is_named_alone_is_a_series_as_in_a_column_transformer(parts, step, column):
    wanted = dense(ColumnTransformer([("step", clone(step), column)]).fit_transform(TEXTS))
    recipe = Recipe([(step, column)])

    np.testing.assert_allclose(dense(in_parts(recipe, TEXTS, None, parts).transform(TEXTS)), wanted)
    np.testing.assert_allclose(dense(recipe.fit(TEXTS).transformer_.transform(TEXTS)), wanted)
    assert len(recipe.get_feature_names_out()) == wanted.shape[1]


def test_a_number_alone_is_an_array_with_one_axis():
    table = TEXTS.to_numpy(dtype=object)
    recipe = Recipe([(HASHED, 2), (StandardScaler(), [0])]).fit(table)

    found = [dense(recipe.transform(table)), dense(recipe.transformer_.transform(table))]
    wanted = dense(Recipe([(HASHED, "words"), (StandardScaler(), ["hour"])]).fit_transform(TEXTS))
    for rows in found:
        np.testing.assert_allclose(rows, wanted)


@pytest.mark.parametrize(
    ("step", "columns", "sentence"),
    [
        (HASHED, ["words"], r"of shape \(1, 16\).*Pass 'words' alone for a series"),
        (HASHED, ["origin", "words"], r"of shape \(2, 16\)"),
        (
            FunctionTransformer(lambda table: table.mean().to_numpy()[None]),
            ["hour"],
            r"of shape \(1, 1\)",
        ),
        (PolynomialFeatures(2), "hour", r"needs a table.*Pass \['hour'\] for a table"),
        (
            FrozenEstimator(StandardScaler().fit(TEXTS[["hour"]].to_numpy())),
            "hour",
            r"needs a table.*Pass \['hour'\] for a table",
        ),
        (FunctionTransformer(np.sqrt), "hour", r"of shape \(1,\) .*Pass \['hour'\] for a table"),
    ],
)
def test_a_step_that_does_not_return_a_row_for_each_row_is_refused(client, step, columns, sentence):
    recipe = Recipe([(step, columns), ("passthrough", ["hour"])])
    for table in (TEXTS, dd.from_pandas(TEXTS, npartitions=3)):
        with pytest.raises(ValueError, match=sentence):
            recipe.fit_transform(table).compute()


def test_a_step_that_returns_other_columns_for_other_rows_is_refused():
    step = FunctionTransformer(lambda table: np.zeros((len(table), 1 + table["hour"].nunique())))
    with pytest.raises(ValueError, match=r"for 1501 rows of .*one row for each row and 2 columns"):
        Recipe([(step, ["hour"])]).fit_transform(TEXTS)


DAYS = pd.Series(pd.to_datetime(["2013-02-01", "2013-01-01", "2013-02-01", "2013-03-01"]))
NUMBERS = pd.Series([4, 6, 4, 8])


@PARTS
@pytest.mark.parametrize(
    "values",
    [
        DAYS,
        DAYS.astype("datetime64[ns]"),
        DAYS.astype("category"),
        DAYS.dt.tz_localize("UTC"),
        DAYS - DAYS[1],
        DAYS.dt.to_period("M"),
        NUMBERS,
        NUMBERS / 10,
        (NUMBERS / 10).astype("float32"),
        (NUMBERS / 10).astype("float32").mask(NUMBERS == 8),
        NUMBERS.astype("Int64").mask(NUMBERS == 8),
        (NUMBERS == 6).astype("boolean"),
        (NUMBERS == 6).astype("bool[pyarrow]").mask(NUMBERS == 8),
        NUMBERS.astype("category"),
    ],
    ids=lambda values: str(values.dtype),
)
def test_the_categories_of_any_type_have_the_names_of_scikit_learn(parts, values):
    table = values.to_frame("x")
    recipe, theirs = Recipe([(ONE_HOT, "x")]).fit(table), OneHotEncoder(sparse_output=False).fit(table)

    names = list(theirs.get_feature_names_out())
    assert list(recipe.get_feature_names_out()) == names
    columns = in_parts(recipe, table, None, min(parts, len(table)))
    assert columns.columns[0].names(["x"]) == names
    for rows in (columns.transform(table), recipe.transformer_.transform(table)):
        np.testing.assert_array_equal(rows, theirs.transform(table))


def hours(table):
    """Return numbers of text such as ``"7h"``, which no made-up text is."""
    return pd.DataFrame(table).map(lambda text: float(text.removesuffix("h"))).to_numpy()


@pytest.mark.parametrize("kind", ["frame", "array"])
def test_a_function_that_parses_text_is_fitted_on_rows_of_dask(client, kind):
    table = pd.DataFrame({"hour": FLIGHTS["hour"].astype(str) + "h"})
    lazy = dd.from_pandas(table, npartitions=3)
    if kind == "array":
        table = table.to_numpy(dtype=object)
        lazy = da.from_array(table, chunks=(400, 1))
    recipe = Recipe([(FunctionTransformer(hours), [0])])

    np.testing.assert_array_equal(recipe.fit_transform(lazy).compute(), FLIGHTS[["hour"]])
    np.testing.assert_array_equal(recipe.fit(table).transform(lazy).compute(), FLIGHTS[["hour"]])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["frame", "array"])
def test_the_transformer_returns_dataframes_where_that_is_set(kind):
    steps = [
        *MANY,
        ([SimpleImputer(strategy="most_frequent"), ONE_HOT], "origin"),
        ([SimpleImputer(), KBinsDiscretizer(4, encode="ordinal")], ["distance"]),
    ]
    table = FLIGHTS.fillna({"distance": 0.0})
    if kind == "array":
        steps = [(step, list(table.columns.get_indexer(np.atleast_1d(names)))) for step, names in steps]
        table = table.to_numpy(dtype=object)
    recipe = Recipe(steps).fit(table, DELAY)
    found = recipe.transformer_.set_output(transform="pandas").transform(table)

    assert list(found.columns) == list(recipe.transformer_.get_feature_names_out())
    np.testing.assert_array_equal(found, recipe.transform(table))


def test_an_unknown_category_is_refused_where_the_step_says_so():
    recipe = Recipe([(OneHotEncoder(), "origin")]).fit(FLIGHTS)
    with pytest.raises(ValueError, match="Found unknown categories"):
        recipe.transform(FLIGHTS.assign(origin="ORD"))


def test_steps_may_come_from_another_process():
    step = pickle.loads(pickle.dumps(SimpleImputer()))  # noqa: S301  (made here)
    assert step.missing_values is not SimpleImputer().missing_values
    wanted = Recipe([(SimpleImputer(), "distance")]).fit_transform(FLIGHTS)
    np.testing.assert_array_equal(Recipe([(step, "distance")]).fit_transform(FLIGHTS), wanted)


def test_a_step_is_left_as_it_was():
    step = StandardScaler()
    Recipe([(step, "hour")]).fit(FLIGHTS)
    assert not hasattr(step, "mean_")


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (
            KBinsDiscretizer(strategy="uniform"),
            "strategy='uniform' has no meaning in a recipe. Valid values: 'quantile'",
        ),
        (KBinsDiscretizer([3]), "n_bins and cv must be integers of at least 2"),
        (
            OneHotEncoder(min_frequency=3),
            "min_frequency=3 has no meaning in a recipe. Valid values: None",
        ),
        (TargetEncoder(categories=[["a"]]), r"categories=\[\['a'\]\] has no meaning"),
        (TargetEncoder(smooth=-1), "The 'smooth' parameter of TargetEncoder must be"),
        (TargetEncoder(cv=1), "n_bins and cv must be integers of at least 2"),
        (SimpleImputer(missing_values=0), "missing_values=0 has no meaning"),
        (SimpleImputer(add_indicator=True), "add_indicator=True has no meaning"),
        (SimpleImputer(strategy=np.mean), "strategy must be one of mean, median"),
        (MinMaxScaler(), "is not a step of a recipe"),
        (None, "is not a step of a recipe"),
        (StandardScaler, "is not a step of a recipe"),
        ([SimpleImputer(), FunctionTransformer()], "cannot follow each other"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(step, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        Recipe([(step, "hour")]).fit(FLIGHTS, DELAY)


def test_categories_that_are_tuples_are_refused_in_a_transform():
    frame = pd.DataFrame({"a": pd.Series([(1, 2), (3, 4)], dtype=object)})
    recipe = Recipe([(ONE_HOT, "a")], engine="local").fit(frame)
    with pytest.raises(ValueError, match=r"has tuples.*map\(str\)"):
        recipe.transform(frame)
