"""Recipes of tables on the ranks of a cluster: the same as in one process, in pipelines and in searches."""

from __future__ import annotations

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import futures_of, get_worker, wait
from joblib import parallel_config
from sklearn.base import clone
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, StandardScaler, TargetEncoder
from support import refused
from support.processes import DEADLINE
from support.recipes import MEANS, ONE_HOT

from workbench import place, run_on_ranks
from workbench.ml import LogisticRegression
from workbench.ml.recipe.estimator import Recipe

ROWS = 1003
RANDOM = np.random.default_rng(9)
FLIGHTS = pd.DataFrame(
    {
        "distance": np.where(RANDOM.random(ROWS) < 0.1, np.nan, RANDOM.gamma(2.0, 500.0, size=ROWS)),
        "hour": RANDOM.integers(0, 24, size=ROWS),
        "carrier": RANDOM.choice(np.array(["AA", "B6", "DL", "UA", None], dtype=object), size=ROWS),
    }
)
LATE = pd.Series(RANDOM.normal(size=ROWS) + FLIGHTS["hour"] / 12 > 1.5, name="late")
# By number, so that the same steps are for arrays.
STEPS = [
    ([SimpleImputer(strategy="median"), StandardScaler()], [0, 1]),
    (ONE_HOT, [2]),
    (KBinsDiscretizer(4, encode="ordinal"), [1]),
    ([SimpleImputer(strategy="most_frequent"), MEANS], [2]),
    # The labels of the target are found in a pass before that over the rows.
    (TargetEncoder(), [1]),
]
BOTH = pytest.mark.parametrize("engine", ["mpi", "dask"])


def frames():
    return dd.from_pandas(FLIGHTS, npartitions=3), dd.from_pandas(LATE, npartitions=3)


def arrays():
    return da.from_array(FLIGHTS.to_numpy(dtype=object), chunks=(300, 2)), da.from_array(LATE.to_numpy(), chunks=300)


@pytest.mark.parametrize("engine", ["mpi", "dask"])
@pytest.mark.parametrize(
    "given",
    [
        frames,
        lambda: place(*frames()),
        lambda: (frames()[0], arrays()[1]),
        arrays,
        lambda: (FLIGHTS, LATE),
    ],
    ids=["frames", "placed", "frame and array", "arrays", "pandas"],
)
def test_a_recipe_is_the_same_on_all_ranks(client4, engine, given):
    here, there = Recipe(STEPS), Recipe(STEPS, engine=engine)
    X, y = given()
    trained, expected = there.fit_transform(X, y), here.fit_transform(FLIGHTS, LATE)

    assert there.engine_ == engine
    assert trained.shape == expected.shape
    np.testing.assert_allclose(np.asarray(trained), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(np.asarray(there.transform(X)), here.transform(FLIGHTS), rtol=1e-12, atol=1e-13)


@BOTH
@pytest.mark.parametrize("given", [frames, lambda: place(*arrays())], ids=["frames", "placed arrays"])
def test_weights_count_the_same_on_all_ranks(client4, engine, given):
    # The last rank has no row that counts.
    weight = np.where(np.arange(ROWS) < 700, np.random.default_rng(2).uniform(size=ROWS), 0.0)
    X, y = given()
    here = Recipe(STEPS).fit_transform(FLIGHTS, LATE, weight)
    there = Recipe(STEPS, engine=engine).fit_transform(X, y, da.from_array(weight, chunks=400))

    np.testing.assert_allclose(np.asarray(there), here, rtol=1e-12, atol=1e-13)


def test_the_blocks_stay_where_they_are(client4):
    X, y = place(*frames())
    recipe = Recipe(STEPS)
    for found in (recipe.fit_transform(X, y), recipe.transform(X)):
        assert found.chunks[0] == (251, 251, 251, 250)
        persisted = wait(futures_of(client4.persist(found)), timeout=DEADLINE).done
        assert sorted(client4.who_has(persisted).values()) == sorted(client4.who_has(futures_of(X)).values())


@BOTH
@pytest.mark.parametrize(
    "steps", [STEPS, [STEPS[0], (OneHotEncoder(handle_unknown="ignore"), [2])]], ids=["dense", "sparse"]
)
def test_a_pipeline_is_fitted_on_the_ranks(client4, engine, steps):
    def pipeline(**options):
        return make_pipeline(Recipe(steps, **options), LogisticRegression(tol=1e-8, **options))

    X, y = frames()
    there, here = pipeline(engine=engine).fit(X, y), pipeline().fit(FLIGHTS, LATE)

    assert {step.engine_ for _, step in there.steps} == {engine}
    np.testing.assert_allclose(there[-1].coef_, here[-1].coef_, atol=1e-7)
    np.testing.assert_allclose(there.predict_proba(X).compute(), here.predict_proba(FLIGHTS), atol=1e-7)
    np.testing.assert_array_equal(there.predict(FLIGHTS), here.predict(FLIGHTS))


def rank_of(model, X, y):
    """Return the rank that this runs on, in place of a score."""
    return float(str(get_worker().name).rpartition("-")[2])


@pytest.mark.parametrize(("search", "options"), [(GridSearchCV, {}), (RandomizedSearchCV, {"n_iter": 8})])
def test_a_search_uses_all_ranks(client4, search, options):
    pipeline = make_pipeline(Recipe(STEPS), LogisticRegression())
    grid = {"logisticregression__C": [0.01, 0.1, 1.0, 10.0], "recipe__steps": [STEPS, STEPS[:1]]}
    scoring = {"rank": rank_of, "accuracy": "accuracy"}
    with parallel_config(backend="dask"):
        found = search(pipeline, grid, cv=2, scoring=scoring, refit="accuracy", **options).fit(FLIGHTS, LATE)

    ranks = [*found.cv_results_["split0_test_rank"], *found.cv_results_["split1_test_rank"]]
    assert len(set(ranks)) == 4
    here = cross_val_score(clone(pipeline).set_params(**found.best_params_), FLIGHTS, LATE, cv=2)
    assert found.best_score_ == pytest.approx(here.mean())


@BOTH
def test_one_bad_block_is_told_and_the_world_is_usable(client4, engine):
    bad = FLIGHTS.astype({"distance": object})
    bad.loc[900, "distance"] = "far"
    with pytest.raises(ValueError, match="column 0 has values that are not numbers"):
        Recipe(STEPS, engine=engine).fit(da.from_array(bad.to_numpy(), chunks=(300, 3)), arrays()[1])
    with pytest.raises(ValueError, match="needs a target of numbers"):
        Recipe(STEPS, engine=engine).fit(frames()[0], dd.from_pandas(LATE.astype(str), npartitions=3))
    assert run_on_ranks(lambda comm: comm.allreduce(1), client=client4, timeout=DEADLINE) == [4] * 4


def test_a_frame_of_other_columns_is_refused(client4):
    recipe = Recipe(STEPS).fit(*frames())
    with refused.other_features():
        recipe.transform(frames()[0].rename(columns={"hour": "minute"}))
