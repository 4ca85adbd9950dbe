"""Target encoders for labels, against scikit-learn's: text, and several classes."""

from __future__ import annotations

import pickle

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import TargetEncoder
from support.recipes import DELAY, FLIGHTS, MEANS, PARTS, ROWS, CountedParts, in_parts

from workbench.ml import Recipe
from workbench.ml.recipe.data import fold_of
from workbench.ml.recipe.part import RecipePart, statistics

COLUMNS = ["carrier", "origin", "hour"]
LATE = np.where(DELAY > 2, "late", "early").astype(object)
GRADE = np.array(["early", "late", "very late"], dtype=object)[np.digitize(DELAY, [1, 3])]
NUMBERS = np.digitize(DELAY, [1, 3]) * 10


@PARTS
@pytest.mark.parametrize(
    ("target_type", "y"),
    [
        ("auto", LATE),
        ("auto", GRADE),
        ("auto", GRADE.astype(str)),
        ("auto", NUMBERS),
        ("auto", NUMBERS.astype(float)),
        ("auto", np.where(DELAY > 2, 2, 1)),
        ("auto", (DELAY > 2).to_numpy()),
        ("auto", DELAY.to_numpy()),
        ("binary", LATE),
        ("multiclass", GRADE),
        ("multiclass", NUMBERS),
        ("continuous", NUMBERS),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.dtype}-{len(set(value))}",
)
def test_labels_are_encoded_as_scikit_learn_encodes_them(parts, target_type, y):
    step = TargetEncoder(target_type=target_type, smooth=5.0 if y is GRADE and target_type == "auto" else "auto")
    theirs = ColumnTransformer([("theirs", step, COLUMNS)], verbose_feature_names_out=False)
    new = FLIGHTS.assign(origin="ORD")
    wanted = [theirs.fit(FLIGHTS, y).transform(rows) for rows in (FLIGHTS, new)]
    ours = in_parts(Recipe([(step, COLUMNS)]), FLIGHTS, y, parts)
    fitted = Recipe([(step, COLUMNS)]).fit(FLIGHTS, y)

    for rows, expected in zip((FLIGHTS, new), wanted, strict=True):
        np.testing.assert_allclose(ours.transform(rows), expected, rtol=1e-12, atol=1e-13)
    assert list(fitted.get_feature_names_out()) == list(theirs.get_feature_names_out())


@PARTS
def test_rows_to_train_on_are_given_the_shares_of_classes_in_the_other_folds(parts):
    step = TargetEncoder(target_type="multiclass", cv=4)
    found = in_parts(Recipe([(step, COLUMNS)]), FLIGHTS, GRADE, parts).transform(FLIGHTS, np.arange(ROWS))
    fold = fold_of(np.arange(ROWS), 4)
    for number in range(4):
        encoder = TargetEncoder(target_type="multiclass").fit(FLIGHTS[COLUMNS][fold != number], GRADE[fold != number])
        expected = encoder.transform(FLIGHTS[COLUMNS][fold == number])
        np.testing.assert_allclose(found[fold == number], expected, rtol=1e-12, atol=1e-13)


def test_classes_that_a_block_lacks_are_those_of_all_blocks():
    order = np.argsort(GRADE, kind="stable")
    table, y = FLIGHTS.iloc[order].reset_index(drop=True), GRADE[order]
    found = in_parts(Recipe([(TargetEncoder(), COLUMNS)]), table, y, 5).transform(table)
    np.testing.assert_allclose(found, TargetEncoder().fit(table[COLUMNS], y).transform(table[COLUMNS]), rtol=1e-12)


def test_missing_categories_are_filled_before_the_shares_of_classes_are_counted():
    steps = [SimpleImputer(strategy="most_frequent"), TargetEncoder()]
    found = Recipe([(steps, ["carrier"])]).fit(FLIGHTS, GRADE).transform(FLIGHTS)
    theirs = make_pipeline(*steps).fit(FLIGHTS[["carrier"]], GRADE)
    np.testing.assert_allclose(found, theirs.transform(FLIGHTS[["carrier"]]), rtol=1e-12)


def test_a_weight_of_two_is_a_label_twice_and_a_weight_of_zero_is_no_class():
    step = TargetEncoder(smooth=3.0)
    weight = np.where(GRADE == "late", 0, np.random.default_rng(3).integers(0, 4, size=ROWS))
    often = np.repeat(np.arange(ROWS), weight)
    found = Recipe([(step, COLUMNS)]).fit(FLIGHTS, GRADE, weight.astype(float))
    wanted = Recipe([(step, COLUMNS)]).fit(FLIGHTS.iloc[often].reset_index(drop=True), GRADE[often])

    np.testing.assert_allclose(found.transform(FLIGHTS), wanted.transform(FLIGHTS), rtol=1e-12)
    assert found.get_feature_names_out().tolist() == COLUMNS


def test_the_classes_are_found_in_a_pass_over_the_target_before_the_pass_over_the_rows():
    step = TargetEncoder()
    chains = [column.chain for column in Recipe([(step, COLUMNS), (MEANS, "hour")]).fit(FLIGHTS, NUMBERS).columns_]
    parts = CountedParts([RecipePart(FLIGHTS, NUMBERS, None, 0)] * 3)
    statistics(parts, chains)
    assert parts.called == ["classes", "statistics"]


@pytest.mark.parametrize("kind", ["frame", "array"])
def test_the_transformer_of_labels_loads_without_workbench(kind):
    table, columns = (FLIGHTS, COLUMNS) if kind == "frame" else (FLIGHTS.to_numpy(dtype=object), [2, 3, 1])
    recipe = Recipe([(TargetEncoder(), columns)]).fit(table, GRADE)
    pickled = pickle.dumps(recipe.transformer_)
    transformer = pickle.loads(pickled)  # noqa: S301  (made here)

    assert b"workbench" not in pickled
    np.testing.assert_array_equal(transformer.transform(table), recipe.transform(table))
    assert list(transformer.get_feature_names_out()) == list(recipe.get_feature_names_out())
    assert transformer.transformers_[0][1].estimator.get_params() == TargetEncoder().get_params()


@pytest.mark.parametrize(
    "y",
    [
        da.from_array(GRADE, chunks=400),
        dd.from_pandas(pd.Series(GRADE), npartitions=3),
        dd.from_pandas(pd.Series(GRADE, dtype="category"), npartitions=3),
    ],
    ids=["array", "series", "categories"],
)
def test_labels_of_dask_are_those_of_an_array(client, y):
    found = Recipe([(TargetEncoder(), COLUMNS)]).fit_transform(dd.from_pandas(FLIGHTS, npartitions=3), y)
    expected = Recipe([(TargetEncoder(), COLUMNS)]).fit_transform(FLIGHTS, GRADE)
    np.testing.assert_allclose(found.compute(), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("step", "y", "sentence"),
    [
        (MEANS, LATE, r"needs a target of numbers.*Pass target_type='auto' for labels"),
        (MEANS, pd.date_range("2026", periods=ROWS), r"its dtype is datetime64"),
        (MEANS, np.full(ROWS, "nan"), "Input y contains NaN"),
        (
            TargetEncoder(target_type="binary"),
            GRADE,
            "is not valid for a target with 3 labels. Pass target_type='multiclass'",
        ),
        (
            TargetEncoder(target_type="multiclass"),
            LATE,
            "is not valid for a target with 2 labels. Pass target_type='binary'",
        ),
        (
            TargetEncoder(target_type="multiclass"),
            DELAY,
            "is not valid for a target with numbers that are not whole. Pass target_type='continuous'",
        ),
        (
            TargetEncoder(),
            np.arange(ROWS),
            f"has {ROWS} different whole numbers.*Pass target_type='continuous' or 'multiclass'",
        ),
        (TargetEncoder(), np.where(DELAY > 2, None, GRADE), "Input y contains NaN"),
        (TargetEncoder(), np.where(DELAY > 2, np.inf, 1.0), "Input y contains NaN or infinity"),
        (TargetEncoder(), np.where(DELAY > 2, 1, GRADE), "labels of several types"),
    ],
)
def test_labels_without_a_clear_meaning_are_refused_in_a_sentence(step, y, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        Recipe([(step, "origin")]).fit(FLIGHTS, y)
