"""Recipes of rows that have weights, against scikit-learn and against rows that are there more than once."""

from __future__ import annotations

from functools import reduce

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pytest
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, StandardScaler, TargetEncoder
from support import refused
from support.recipes import DELAY, FLIGHTS, MEANS, ONE_HOT, PARTS, ROWS, in_parts

from workbench.ml import LogisticRegression, Recipe
from workbench.ml.recipe.statistics import POINTS, Spread


@PARTS
def test_a_weight_of_two_is_a_row_twice(parts):
    steps = [
        ([SimpleImputer(), StandardScaler()], ["distance"]),
        ([SimpleImputer(strategy="median"), KBinsDiscretizer(6, encode="ordinal")], ["distance"]),
        ([SimpleImputer(strategy="most_frequent"), ONE_HOT], ["carrier"]),
        (MEANS, ["carrier", "origin"]),
    ]
    weight = np.random.default_rng(3).integers(0, 4, size=ROWS)
    often = np.repeat(np.arange(ROWS), weight)
    found = in_parts(Recipe(steps), FLIGHTS, DELAY, parts, weight.astype(float))
    wanted = Recipe(steps).fit(FLIGHTS.iloc[often].reset_index(drop=True), DELAY.to_numpy()[often])

    np.testing.assert_allclose(found.transform(FLIGHTS), wanted.transform(FLIGHTS), rtol=1e-11, atol=1e-12)


def test_weights_may_be_any_numbers():
    weight = np.random.default_rng(3).uniform(0.001, 0.01, size=ROWS)
    recipe = Recipe([(StandardScaler(), "hour"), (TargetEncoder(target_type="continuous", smooth=0.02), "origin")]).fit(
        FLIGHTS, DELAY, weight
    )
    found = recipe.transform(FLIGHTS)
    scaler = StandardScaler().fit(FLIGHTS[["hour"]], sample_weight=weight)
    here = (FLIGHTS["origin"] == "JFK").to_numpy()
    share = weight[here].sum() / (weight[here].sum() + 0.02)
    mean = share * np.average(DELAY[here], weights=weight[here]) + (1 - share) * np.average(DELAY, weights=weight)

    np.testing.assert_allclose(found[:, :1], scaler.transform(FLIGHTS[["hour"]]), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(found[here, 1], mean, rtol=1e-12)
    same = Recipe(recipe.steps).fit_transform(FLIGHTS, DELAY, sample_weight=2)
    np.testing.assert_allclose(same[:, :1], Recipe(recipe.steps).fit_transform(FLIGHTS, DELAY)[:, :1], rtol=1e-12)


def test_quantiles_of_many_weighed_numbers_are_as_near_as_it_is_said():
    random = np.random.default_rng(1)
    numbers, weight = random.lognormal(size=5 * POINTS), random.uniform(size=5 * POINTS)
    spread = Spread.of(numbers, weight)
    shares = np.linspace(0.01, 0.99, 50)
    order = np.argsort(numbers)
    reached = np.cumsum(weight[order]) / weight.sum()
    ranks = reached[np.searchsorted(numbers[order], spread.quantiles(shares))]

    assert len(spread.points) == POINTS
    assert np.abs(ranks - shares).max() <= 1 / (2 * POINTS) + weight.max() / weight.sum()


@pytest.mark.parametrize("rows", [10, 2 * POINTS])
@pytest.mark.parametrize("share", [0.1, 0.7, 1e-9])
def test_what_all_rows_weigh_makes_no_difference_to_quantiles(rows, share):
    numbers, shares = np.arange(1.0, rows + 1), np.linspace(0, 1, 11)
    weighed, plain = (Spread.of(numbers, np.full(rows, each)) for each in (share, 1.0))

    np.testing.assert_array_equal(weighed.quantiles(shares), plain.quantiles(shares))


@pytest.mark.parametrize("number", [1, 2, 3, 8])
def test_the_median_of_weights_that_have_no_exact_sums_is_that_of_any_number_of_parts(number):
    for seed in range(20):
        random = np.random.default_rng(seed)
        numbers, weight = random.integers(0, 10, size=200), random.choice([0.1, 0.2, 0.3, 0.7], size=200)
        # Of each number and its mirror image as much: the median is in the middle.
        numbers, weight = np.concatenate([numbers, 9 - numbers]).astype(float), np.tile(weight, 2)
        pieces = zip(np.array_split(numbers, number), np.array_split(weight, number), strict=True)
        spread = reduce(Spread.join, (Spread.of(*piece) for piece in pieces))

        assert spread.quantiles([0.5]) == 4.5


def test_all_rows_of_a_dask_collection_may_have_one_weight(client):
    steps = [([SimpleImputer(), StandardScaler()], ["distance"])]
    there = Recipe(steps).fit(dd.from_pandas(FLIGHTS, npartitions=3), sample_weight=2)
    here = Recipe(steps).fit(FLIGHTS, sample_weight=2)

    np.testing.assert_allclose(there.transform(FLIGHTS), here.transform(FLIGHTS), rtol=1e-12)


def test_weights_go_to_the_steps_of_a_pipeline():
    weight = np.random.default_rng(3).uniform(size=ROWS)
    pipeline = make_pipeline(Recipe([(StandardScaler(), "hour")]), LogisticRegression(tol=1e-8))
    pipeline.fit(FLIGHTS, DELAY > 2, recipe__sample_weight=weight, logisticregression__sample_weight=weight)
    rows = Recipe([(StandardScaler(), "hour")]).fit_transform(FLIGHTS, sample_weight=weight)

    np.testing.assert_array_equal(pipeline[0].transform(FLIGHTS), rows)
    expected = LogisticRegression(tol=1e-8).fit(rows, DELAY > 2, weight)
    np.testing.assert_allclose(pipeline[1].coef_, expected.coef_, atol=1e-12)


def test_weights_that_cannot_be_are_refused():
    recipe = Recipe([(StandardScaler(), "hour")])
    with refused.no_weight():
        recipe.fit(FLIGHTS, sample_weight=np.zeros(ROWS))
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        recipe.fit(FLIGHTS, sample_weight=-np.ones(ROWS))
    with refused.other_length():
        recipe.fit(FLIGHTS, sample_weight=np.ones(ROWS - 1))
    with pytest.raises(TypeError, match=r"sample_weight is a .* Pass only Dask collections, or no Dask collection"):
        recipe.fit(FLIGHTS, sample_weight=da.ones(ROWS))
