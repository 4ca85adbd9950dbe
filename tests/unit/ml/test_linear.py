"""Linear regression against scikit-learn's, on any number of parts in this process."""

from __future__ import annotations

import pickle
import re
import tracemalloc

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import linalg, sparse
from scipy.linalg import LinAlgWarning
from sklearn import linear_model
from support import refused
from support.sklearn_checks import accepted_by_scikit_learn

from workbench.ml.algebra import equations, row_slices
from workbench.ml.engine.parts import LocalParts
from workbench.ml.linear import fit as linear_fit
from workbench.ml.linear.estimators import LinearRegression, Ridge
from workbench.ml.linear.part import LinearPart

PAIRS = [
    (LinearRegression, linear_model.LinearRegression, {}),
    (LinearRegression, linear_model.LinearRegression, {"fit_intercept": False}),
    (Ridge, linear_model.Ridge, {}),
    (Ridge, linear_model.Ridge, {"alpha": 300.0}),
    (Ridge, linear_model.Ridge, {"alpha": 1e-3, "fit_intercept": False}),
]


def data(rows=600, features=7, seed=3):
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, features)) * random.uniform(0.1, 10, size=features) + 50
    y = X @ random.normal(size=features) + random.normal(size=rows) - 20
    return X, y, random.uniform(0.1, 2.0, size=rows)


def of_condition(condition, rows=600, features=6, seed=0):
    random = np.random.default_rng(seed)
    left, _ = np.linalg.qr(random.normal(size=(rows, features)))
    right, _ = np.linalg.qr(random.normal(size=(features, features)))
    X = left * np.geomspace(condition, 1, features) @ right.T
    return X, X @ random.normal(size=features) + 0.1 * random.normal(size=rows)


def parts_of(number, X, y, weight=None):
    cut = np.array_split(np.arange(len(y)), number)
    return LocalParts([LinearPart(X[at], y[at], None if weight is None else weight[at], at[0]) for at in cut])


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@accepted_by_scikit_learn(LinearRegression(), Ridge())
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS)
@pytest.mark.parametrize("weighted", [False, True])
def test_coefficients_are_those_of_scikit_learn(ours, theirs, options, weighted):
    X, y, weight = data()
    weight = weight if weighted else None
    ours, theirs = ours(**options).fit(X, y, weight), theirs(**options).fit(X, y, weight)

    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-9)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-10)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y))
    assert ours.engine_ == "local"


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_any_number_of_parts_finds_the_same(number, fit_intercept, weighted, form):
    X, y, weight = data()
    weight = weight if weighted else None
    theirs = linear_model.Ridge(alpha=0.5, fit_intercept=fit_intercept).fit(X, y, weight)
    settings = linear_fit.Settings(alpha=0.5, fit_intercept=fit_intercept, tol=0.0, rows=len(y))
    found = linear_fit.fit(parts_of(number, form(X), y, weight), settings)

    np.testing.assert_allclose(found.coef[0], theirs.coef_, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(found.intercept, theirs.intercept_, rtol=1e-9)


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("alpha", [0.5, [0.0, 3.0, 3.0]])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_any_number_of_parts_finds_the_same_for_several_targets(number, fit_intercept, alpha, form):
    X, y, weight = data()
    y = np.column_stack([y, X @ np.arange(7.0), X[:, 0] - y])
    theirs = linear_model.Ridge(alpha=alpha, fit_intercept=fit_intercept).fit(X, y, weight)
    settings = linear_fit.Settings(alpha=np.array(alpha), fit_intercept=fit_intercept, tol=0.0, rows=len(y), targets=3)
    found = linear_fit.fit(parts_of(number, form(X), y, weight), settings)

    np.testing.assert_allclose(found.coef, theirs.coef_, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.intercept, np.broadcast_to(theirs.intercept_, 3), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("ours", "theirs", "options"), [*PAIRS, (Ridge, linear_model.Ridge, {"alpha": [2.0, 0.1]})])
def test_several_targets_are_fitted_as_by_scikit_learn(ours, theirs, options):
    X, y, weight = data()
    y = np.column_stack([y, X @ np.arange(7.0)])
    ours, theirs = ours(**options).fit(X, y, weight), theirs(**options).fit(X, y, weight)

    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-9, atol=1e-9)
    assert np.shape(ours.intercept_) == np.shape(theirs.intercept_)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-9, atol=1e-9)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y))
    lazy = ours.predict(da.from_array(X, chunks=(100, 3)))
    assert lazy.shape == y.shape
    np.testing.assert_allclose(lazy.compute(scheduler="sync"), ours.predict(X), rtol=1e-12)


@pytest.mark.parametrize("model", [LinearRegression, Ridge])
def test_a_column_of_targets_is_taken_as_scikit_learn_takes_it(model):
    X, y, _ = data()
    theirs = getattr(linear_model, model.__name__)().fit(X, y[:, None])
    ours = model().fit(X, y[:, None])

    assert (ours.coef_.shape, ours.intercept_.shape) == (theirs.coef_.shape, theirs.intercept_.shape)
    assert ours.predict(X).shape == theirs.predict(X).shape
    assert ours.predict(da.from_array(X, chunks=(100, 3))).shape == theirs.predict(X).shape


@pytest.mark.parametrize("rows", [np.ones, da.ones])
@pytest.mark.parametrize("model", [LinearRegression(), Ridge()], ids=str)
def test_targets_of_three_dimensions_are_refused_as_by_scikit_learn(model, rows):
    sentence = f"Found array with dim 3, while dim <= 2 is required by {type(model).__name__}."
    with pytest.raises(ValueError, match=re.escape(sentence)):
        model.fit(rows((40, 3)), rows((40, 2, 1)))


def test_sparse_targets_are_refused():
    X, y, _ = data()
    with pytest.raises(TypeError, match=r"dense targets are required\. Pass y\.toarray"):
        LinearRegression().fit(X, sparse.csr_array(y[:, None]))


@pytest.mark.parametrize(
    ("alpha", "sentence"),
    [
        (
            [1.0, 2.0, 3.0],
            r"Number of targets and number of penalties do not correspond: alpha has shape \(3,\), and y has 2",
        ),
        ([1.0, -2.0], "'alpha' parameter of Ridge must be numbers of at least 0"),
    ],
)
def test_penalties_that_cannot_be_are_refused(alpha, sentence):
    X, y, _ = data()
    with pytest.raises(ValueError, match=sentence):
        Ridge(alpha).fit(X, np.column_stack([y, y]))


@pytest.mark.parametrize(("condition", "error"), [(1e3, 1e-12), (1e5, 1e-10), (9e5, 1e-8)])
def test_the_error_grows_with_the_condition_as_the_docstring_says(condition, error):
    X, y = of_condition(condition)
    theirs = linear_model.LinearRegression(fit_intercept=False).fit(X, y)
    ours = LinearRegression(fit_intercept=False).fit(X, y)

    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=error * np.abs(theirs.coef_).max(), rtol=0)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_of_many_solutions_it_takes_the_shortest(fit_intercept):
    X, y, _ = data()
    X = np.column_stack([X, X[:, :3] - X[:, 1:4], np.ones(len(X))])
    theirs = linear_model.LinearRegression(fit_intercept=fit_intercept).fit(X, y)
    with pytest.warns(LinAlgWarning):
        ours = LinearRegression(fit_intercept=fit_intercept).fit(X, y)

    assert ours.rank_ == theirs.rank_
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-8 * np.abs(theirs.coef_).max(), rtol=0)


def test_more_features_than_rows_are_fitted_exactly():
    X, y, _ = data(rows=10, features=30)
    theirs = linear_model.LinearRegression().fit(X, y)
    with pytest.warns(LinAlgWarning, match="30 features have rank 9.* 8, 9 and 20 more"):
        ours = LinearRegression().fit(X, y)

    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)
    np.testing.assert_allclose(ours.predict(X), y)
    assert ours.singular_.shape == theirs.singular_.shape


def test_singular_values_are_those_of_the_rows():
    X, y, weight = data()
    theirs, ours = linear_model.LinearRegression().fit(X, y, weight), LinearRegression().fit(X, y, weight)

    np.testing.assert_allclose(ours.singular_, theirs.singular_, rtol=1e-10)
    assert ours.rank_ == theirs.rank_ == X.shape[1]


@pytest.mark.parametrize("model", [LinearRegression, Ridge])
def test_float32_stays_float32_and_is_summed_in_float64(model):
    X, y, weight = (column.astype(np.float32) for column in data())
    single, double = model().fit(X, y, weight), model().fit(*(np.float64(column) for column in (X, y, weight)))

    assert single.coef_.dtype == single.intercept_.dtype == single.predict(X).dtype == np.float32
    np.testing.assert_allclose(single.coef_, double.coef_, rtol=1e-6)


def test_means_far_from_zero_cost_no_digits():
    X, y, _ = data()
    near, far = LinearRegression().fit(X, y), LinearRegression().fit(X + 2.0**20, y)

    np.testing.assert_allclose(far.coef_, near.coef_, rtol=1e-8)


def test_it_predicts_the_rows_of_dask_collections():
    X, y, _ = data()
    model = LinearRegression().fit(X, y)
    lazy = model.predict(da.from_array(X, chunks=(100, 3)))

    assert lazy.dtype == np.float64
    np.testing.assert_allclose(lazy.compute(scheduler="sync"), model.predict(X), rtol=1e-12)


def test_a_fitted_model_can_be_pickled():
    X, y, _ = data()
    model = Ridge().fit(X, y)

    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))  # noqa: S301


def test_weights_of_nothing_are_refused():
    X, y, _ = data()
    settings = linear_fit.Settings(alpha=0.0, fit_intercept=True, tol=1e-6, rows=len(y))
    with refused.no_weight():
        linear_fit.fit(parts_of(2, X, y, np.zeros(len(y))), settings)


@pytest.mark.parametrize("model", [Ridge(alpha=-1.0), LinearRegression(tol=-1.0), LinearRegression(fit_intercept=3)])
def test_parameters_that_cannot_be_are_refused(model):
    X, y, _ = data()
    with pytest.raises(ValueError, match="parameter of"):
        model.fit(X, y)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_work_space_is_what_the_docstring_says(dtype):
    X, y, weight = (column.astype(dtype) for column in data(rows=40_000, features=100))
    part = LinearPart(X, y, weight, 0)
    tracemalloc.start()
    part.sample(40_000)
    part.products(np.ones(100), np.zeros(1))
    part.pull(np.ones(100), np.zeros(1), np.ones((100, 1)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 12 * 100**2 + (4 << 20) < X.nbytes / 3


def test_a_penalty_sees_features_of_all_sizes():
    random = np.random.default_rng(1)
    X = random.normal(size=(300, 3))
    y, X = X @ [1.0, 2.0, 3.0], X * [1e7, 1, 1]
    theirs = linear_model.Ridge().fit(X, y)

    np.testing.assert_allclose(Ridge().fit(X, y).coef_, theirs.coef_, rtol=1e-6)


def seconds_and_flag(rows=500, seed=2):
    """Rows of a time in seconds since 1970 and a flag, and targets that are 3 times the flag."""
    random = np.random.default_rng(seed)
    seconds = 1.7e9 + random.uniform(0, 3e7, size=rows)
    flag = random.integers(2, size=rows).astype(float)
    return np.column_stack([seconds, flag]), 3 * flag - 1


@pytest.mark.parametrize("factor", [1e-9, 1e-7, 1e7, 1e9])
def test_the_unit_of_a_feature_changes_nothing_but_its_coefficient(factor):
    X, y, weight = data()
    units = np.array([factor, *np.ones(6)])
    near, far = LinearRegression().fit(X, y, weight), LinearRegression().fit(X * units, y, weight)

    np.testing.assert_allclose(far.coef_ * units, near.coef_, rtol=1e-10, atol=1e-11)
    assert far.rank_ == 7


def test_a_time_beside_a_flag_is_fitted_exactly():
    X, y = seconds_and_flag()
    model = LinearRegression().fit(X, y)

    assert (model.score(X, y), model.rank_) == (pytest.approx(1.0, abs=1e-12), 2)
    np.testing.assert_allclose(model.coef_, [0, 3], atol=1e-9)


def test_columns_that_depend_on_others_are_named_and_the_others_keep_their_digits():
    X, y = seconds_and_flag()
    X = pd.DataFrame({"seconds": X[:, 0], "yes": X[:, 1], "no": 1 - X[:, 1], "year": 2026.0})
    with pytest.warns(LinAlgWarning, match="4 features have rank 2.*'yes', 'no', 'year'"):
        model = LinearRegression().fit(X, y)

    assert model.score(X, y) == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(model.coef_, [0, 1.5, -1.5, 0], atol=1e-9)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("weighted", [False, True])
def test_where_sums_of_products_lack_digits_the_rows_are_decomposed(number, form, weighted):
    X, y = of_condition(1e8, seed=3)
    weight = data()[2] if weighted else None
    root = np.ones(len(y)) if weight is None else np.sqrt(weight)
    y = np.column_stack([y, X @ np.ones(6)])
    exact = linalg.lstsq(X * root[:, None], y * root[:, None], cond=1e-15)[0].T
    settings = linear_fit.Settings(alpha=0.0, fit_intercept=False, tol=1e-12, rows=len(y), targets=2)
    found = linear_fit.fit(parts_of(number, form(X), y, weight), settings)

    assert found.rank == 6
    np.testing.assert_allclose(found.coef, exact, rtol=1e-7)
    np.testing.assert_allclose(found.coef[1], 1.0, rtol=1e-7)
    np.testing.assert_allclose(found.singular, linalg.svdvals(X * root[:, None]), rtol=1e-7)


@pytest.mark.parametrize(("sample", "passes"), [(4000, ["products"]), (40, ["products", "products"])])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_an_origin_far_from_the_mean_costs_a_pass_and_no_digits(sample, passes, fit_intercept, monkeypatch):
    X, y, _ = data(rows=8000)
    told = []
    # All rows of the sample are far from the others.
    X[:: 8000 // sample, 0] -= 1e6
    monkeypatch.setattr(row_slices, "_SAMPLE", sample)
    model = LinearRegression(fit_intercept=fit_intercept, callback=told.append).fit(X, y)
    theirs = linear_model.LinearRegression(fit_intercept=fit_intercept).fit(X, y)

    np.testing.assert_allclose(model.coef_, theirs.coef_, rtol=1e-10, atol=1e-12)
    first = ["sample", *passes] if fit_intercept else ["products"]
    assert [record["name"] for record in told] == [*first, "pull"]


@pytest.mark.parametrize("alpha", [1e-12, 1e-4, 1.0, 1e6])
@pytest.mark.parametrize("units", [1.0, 1e8])
def test_ridge_is_that_of_scikit_learn_for_any_penalty(alpha, units):
    X, y, weight = data()
    X = X * [units, 1, 1, 1, 1, 1, 1]
    theirs, ours = linear_model.Ridge(alpha, solver="svd").fit(X, y, weight), Ridge(alpha).fit(X, y, weight)

    np.testing.assert_allclose(ours.coef_ * np.std(X, axis=0), theirs.coef_ * np.std(X, axis=0), rtol=1e-8)


@pytest.mark.parametrize(("alpha", "error"), [(0.0, 1e-9), (1e-12, 1e-9), (1e-4, 1e-6)])
def test_ridge_takes_columns_that_depend_on_each_other(alpha, error):
    X, y, _ = data()
    X = np.column_stack([X, X[:, :3], np.ones(len(X))])
    # scikit-learn's Ridge returns coefficients of 1e14 for the first of these.
    theirs, ours = linear_model.LinearRegression().fit(X, y), Ridge(alpha).fit(X, y)

    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=error)


def test_the_equations_of_ridge_are_solved_without_eigenvectors(monkeypatch):
    X, y, _ = data()
    monkeypatch.setattr(equations, "eigh", lambda *_, **__: pytest.fail("eigenvectors"))
    y = np.column_stack([y, -y, 2 * y])
    theirs, ours = linear_model.Ridge([1.0, 2.0, 2.0]).fit(X, y), Ridge([1.0, 2.0, 2.0]).fit(X, y)

    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-10, atol=1e-11)
