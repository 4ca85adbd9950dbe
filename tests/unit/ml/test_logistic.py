"""Logistic regression against scikit-learn's, on any number of parts in this process."""

from __future__ import annotations

import pickle
import tracemalloc
import warnings

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn import linear_model
from sklearn.exceptions import ConvergenceWarning
from support.raised import raises
from support.sklearn_checks import accepted_by_scikit_learn

from workbench.ml import LogisticRegression
from workbench.ml.engine.parts import LocalParts
from workbench.ml.logistic import fit as logistic_fit
from workbench.ml.logistic.part import LogisticPart

OPTIONS = [{}, {"fit_intercept": False}, {"class_weight": "balanced"}, {"class_weight": {0: 3.0}}, {"C": 0.01}]


def data(classes, rows=600, features=7, seed=3):
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, features)) + 0.5
    scores = X @ random.normal(size=(features, classes)) + random.gumbel(size=(rows, classes))
    return X, scores.argmax(axis=1), random.uniform(0.1, 2.0, size=rows)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@accepted_by_scikit_learn(LogisticRegression())
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


@pytest.mark.parametrize("rows", [np.ones, da.ones])
def test_labels_of_more_than_one_dimension_are_refused_as_by_scikit_learn(rows):
    with pytest.raises(ValueError, match=r"y should be a 1d array, got an array of shape \(40, 2\) instead\."):
        LogisticRegression().fit(rows((40, 3)), rows((40, 2)))
    with pytest.raises(ValueError, match=r"Found array with dim 3, while dim <= 2 is required\."):
        LogisticRegression().fit(rows((40, 3)), rows((40, 2, 1)))


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_it_takes_the_steps_of_scikit_learn(classes, options, weighted):
    X, y, weight = data(classes)
    weight = weight if weighted else None
    theirs = linear_model.LogisticRegression(tol=1e-8, **options).fit(X, y, weight)
    ours = LogisticRegression(tol=1e-8, **options).fit(X, y, weight)

    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-9)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-9)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-9)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    assert abs(int(ours.n_iter_[0]) - int(theirs.n_iter_[0])) <= 1
    assert ours.engine_ == "local"


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", [*OPTIONS, {"C": np.inf}, {"C": np.inf, "fit_intercept": False}], ids=str)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_newton_finds_the_same_minimum_in_few_passes(classes, weighted, options, form):
    X, y, weight = data(classes)
    weight = weight if weighted else None
    theirs = linear_model.LogisticRegression(tol=1e-8, solver="newton-cholesky", **options).fit(X, y, weight)
    ours = LogisticRegression(tol=1e-10, solver="newton-cholesky", **options).fit(form(X), y, weight)

    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-7)
    assert ours.n_iter_[0] <= 9
    again = LogisticRegression(tol=1e-10, solver="newton-cg", **options).fit(form(X), y, weight)
    np.testing.assert_array_equal(again.coef_, ours.coef_)


@pytest.mark.parametrize(("classes", "pairs"), [(2, 1), (3, 6)])
def test_the_work_space_of_the_curvature_is_what_the_docstring_says(classes, pairs):
    X, y, _ = data(classes, rows=20_000, features=200)
    part = LogisticPart(X, y, None, 0)
    part.encode(np.arange(classes), None)
    tracemalloc.start()
    part.curvature(np.zeros(201 if classes == 2 else (3, 201)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8 * pairs * 201**2 + (5 << 20) < X.nbytes / 4


def test_a_newton_step_is_one_pass():
    X, y, _ = data(2)
    asked = []

    class Watched(LocalParts):
        def sum(self, method, *args):
            asked.append(method)
            return super().sum(method, *args)

    settings = logistic_fit.Settings(1.0, 1e-8, 100, 7, True, None, "newton-cholesky", 2e-16, None)
    found = logistic_fit.fit(Watched([LogisticPart(X, y, None, 0)]), settings)
    assert asked == ["encode", *["curvature"] * (found.iterations + 1)]


@pytest.mark.parametrize("classes", [2, 3])
def test_newton_takes_columns_that_depend_on_each_other(classes):
    X, y, _ = data(classes)
    X = np.column_stack([X, X[:, :2], np.ones(len(X)), np.zeros(len(X))])
    options = {"C": np.inf, "tol": 1e-8}
    theirs = linear_model.LogisticRegression(**options, max_iter=1000).fit(X, y)
    ours = LogisticRegression(solver="newton-cholesky", **options).fit(X, y)

    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("C", [0.01, 1.0, np.inf])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.filterwarnings("ignore:Line search of Newton solver")
def test_newton_converges_for_features_in_very_different_units(classes, C, form):
    X, y, _ = data(classes)
    units = 10.0 ** np.array([-3, 6, 0, -2, 4, 2, -1])
    # Without a penalty units make no difference to probabilities, and scikit-learn needs rows in one unit to converge.
    known = np.ones(7) if np.inf == C else units
    theirs = linear_model.LogisticRegression(C=C, tol=1e-12, solver="newton-cholesky").fit(X * known, y)
    ours = LogisticRegression(C=C, tol=1e-10, solver="newton-cholesky").fit(form(X * units), y)
    # scikit-learn leaves rounding errors that are the same for all classes.
    expected = theirs.coef_ - (theirs.coef_.mean(axis=0) if classes > 2 else 0)

    np.testing.assert_allclose(ours.coef_ * units, expected * known, atol=1e-8 * np.abs(expected * known).max())
    np.testing.assert_allclose(ours.predict_proba(X * units), theirs.predict_proba(X * known), atol=1e-8)
    assert ours.n_iter_[0] <= 9


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_features_far_from_zero_are_no_trouble_to_newton(classes, form):
    X, y, weight = data(classes)
    near = LogisticRegression(tol=1e-8, solver="newton-cg").fit(X, y, weight)
    far = LogisticRegression(tol=1e-8, solver="newton-cg", warm_start=True).fit(form(X + 1000), y, weight)

    np.testing.assert_allclose(far.coef_, near.coef_, atol=1e-7)
    np.testing.assert_allclose(far.predict_proba(X + 1000), near.predict_proba(X), atol=1e-7)
    assert abs(far.n_iter_[0] - near.n_iter_[0]) <= 1
    assert far.fit(form(X + 1000), y, weight).n_iter_[0] <= 1


def test_newton_says_when_digits_are_used_up():
    X, y, _ = data(2)
    with pytest.warns(ConvergenceWarning, match="no step makes the loss smaller by more than its rounding error"):
        model = LogisticRegression(tol=0.0, solver="newton-cg").fit(X, y)
    np.testing.assert_allclose(model.coef_, LogisticRegression(tol=1e-10).fit(X, y).coef_, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("tol", [1e-6, 0.0])
def test_newton_follows_no_noise_of_single_precision(classes, tol):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(20):
            random = np.random.default_rng(seed)
            X, y = random.normal(size=(50, 3)) + 100, random.integers(classes, size=50)
            wanted = LogisticRegression(tol=1e-8, solver="newton-cg").fit(X, y)
            model = LogisticRegression(tol=tol, max_iter=1000, solver="newton-cg").fit(X.astype(np.float32), y)

            assert model.n_iter_[0] <= 20
            np.testing.assert_allclose(model.coef_, wanted.coef_, atol=1e-3)
    assert all("its rounding error" in str(each.message) for each in caught)
    assert len(caught) == 20 or tol > 0


@pytest.mark.parametrize("C", [1.0, np.inf])
def test_newton_adds_nothing_to_the_weights_of_all_classes(C):
    X, y, _ = data(4)
    wanted = LogisticRegression(C=C, tol=1e-8, solver="newton-cg").fit(X, y)
    model = LogisticRegression(C=C, tol=1e-5, solver="newton-cg").fit(X.astype(np.float32), y)

    np.testing.assert_allclose(model.intercept_, wanted.intercept_, atol=1e-3)
    np.testing.assert_allclose(model.coef_, wanted.coef_, atol=1e-3)


@pytest.mark.parametrize("number", [2, 5])
@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg"])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_number_of_parts_changes_nothing_but_rounding(number, solver, classes):
    X, y, weight = data(classes)
    settings = logistic_fit.Settings(
        C=1.0,
        tol=1e-8,
        max_iter=100,
        features=7,
        fit_intercept=True,
        class_weight="balanced",
        solver=solver,
        eps=float(np.finfo(X.dtype).eps),
        start=None,
    )
    pieces = zip(*(np.array_split(column, number) for column in (X, y, weight)), strict=True)
    found = logistic_fit.fit(LocalParts([LogisticPart(*piece, 0) for piece in pieces]), settings)
    whole = LogisticRegression(tol=1e-8, class_weight="balanced", solver=solver).fit(X, y, weight)

    np.testing.assert_allclose(np.atleast_2d(found.weights)[:, :-1], whole.coef_, atol=1e-10)
    assert found.message == ""


def test_sparse_rows_give_what_dense_ones_give():
    X, y, _ = data(3)
    X[np.random.default_rng(0).random(X.shape) < 0.7] = 0
    dense = LogisticRegression(tol=1e-8).fit(X, y)
    scarce = LogisticRegression(tol=1e-8).fit(sparse.csr_array(X), y)

    np.testing.assert_allclose(scarce.coef_, dense.coef_, atol=1e-9)
    np.testing.assert_array_equal(scarce.predict(sparse.csr_array(X)), dense.predict(X))


def test_single_precision_stays_single():
    X, y, _ = data(2)
    theirs = linear_model.LogisticRegression().fit(X.astype(np.float32), y)
    ours = LogisticRegression().fit(X.astype(np.float32), y)

    assert ours.coef_.dtype == ours.predict_proba(X.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=2e-3)


def test_a_warm_start_goes_on_where_the_last_fit_ended():
    X, y, _ = data(3)
    model = LogisticRegression(tol=1e-6, warm_start=True).fit(X, y)
    first = model.n_iter_[0]
    model.fit(X, y)

    assert model.n_iter_[0] < first / 4


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg"])
def test_a_fit_that_does_not_converge_warns(solver):
    X, y, _ = data(2)
    with pytest.warns(ConvergenceWarning):
        model = LogisticRegression(max_iter=2, tol=1e-12, solver=solver).fit(X, y)
    assert model.n_iter_[0] == 2


def test_a_callback_and_lines_tell_of_each_iteration(capsys):
    X, y, _ = data(2)
    told = []
    model = LogisticRegression(callback=told.append, verbose=2).fit(X, y)

    assert [record["iteration"] for record in told] == list(range(1, model.n_iter_[0] + 1))
    losses = [record["loss"] for record in told]
    assert losses == sorted(losses, reverse=True)
    assert capsys.readouterr().out.count("LogisticRegression: iteration ") == len(told)


def test_what_a_callback_raises_ends_the_fit():
    X, y, _ = data(2)

    def refuse(record):
        raise LookupError("enough")

    with raises(LookupError, args=("enough",)):
        LogisticRegression(callback=refuse).fit(X, y)


def test_a_callback_cannot_end_a_fit_as_if_it_had_converged():
    X, y, _ = data(2)

    def refuse(record):
        raise StopIteration

    with pytest.raises(RuntimeError, match="the callback raised StopIteration"):
        LogisticRegression(callback=refuse).fit(X, y)


def test_a_warm_start_from_other_labels_is_refused():
    X, y, _ = data(2)
    model = LogisticRegression(warm_start=True).fit(X, y)
    with pytest.raises(
        ValueError, match=r"has weights of shape \(8,\), and these rows and labels need weights of shape \(3, 8\)"
    ):
        model.fit(X, data(3)[1])


def test_weights_of_classes_that_are_not_there_are_refused():
    X, y, _ = data(3)
    with pytest.raises(ValueError, match="not in class_weight"):
        LogisticRegression(class_weight={"early": 2.0, "late": 1.0, "never": 1.0}).fit(X, y)


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_that_weigh_nothing_cannot_be_balanced(classes):
    X, y, weight = data(classes)
    weight[y == 1] = 0
    with pytest.raises(
        ValueError, match=r"class_weight='balanced' is not possible, .* all rows of class 1 have the weight 0"
    ):
        LogisticRegression(class_weight="balanced").fit(X, y, weight)
    assert np.isfinite(LogisticRegression().fit(X, y, weight).coef_).all()


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("dtype", [object, str])
@pytest.mark.parametrize("options", [{}, {"class_weight": "balanced"}, {"class_weight": {"late": 3.0}}], ids=str)
def test_labels_of_text_are_those_of_scikit_learn(classes, dtype, options):
    X, y, weight = data(classes)
    y = np.array(["late", "early", "never", "in time"], dtype=dtype)[y]
    theirs = linear_model.LogisticRegression(tol=1e-8, **options).fit(X, y, weight)
    ours = LogisticRegression(tol=1e-8, **options).fit(X, y, weight)

    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-9)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_text_is_not_sorted_row_by_row(monkeypatch):
    y = np.array(["late", "early", "never"], dtype=object)[np.arange(3000) % 3]
    sort, sorted_ = np.unique, []
    monkeypatch.setattr(np, "unique", lambda values: sorted_.append(len(values)) or sort(values))
    part = LogisticPart(np.ones((3000, 2)), y, None, 0)

    assert part.classes().tolist() == ["early", "late", "never"]
    assert sorted_ == [3]


@pytest.mark.parametrize(("classes", "nbytes"), [(2, 8), (3, 4)])
def test_codes_of_labels_take_what_the_docstring_says(classes, nbytes):
    X, y, weight = data(classes, rows=100_000, features=1)
    part = LogisticPart(X, y, weight, 0)
    tracemalloc.start()
    part.count(part.classes())
    part.encode(part.classes(), None)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept < nbytes * len(y) + 10_000
    assert peak < 18 * len(y) + 10_000


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": "mp"}, "'engine' parameter of LogisticRegression must be a str among .* Got 'mp' instead"),
        ({"solver": "lbgfs"}, "'solver' parameter .* Got 'lbgfs' instead"),
        ({"C": -1.0}, "'C' parameter .* Got -1.0 instead"),
        ({"tol": -1}, "'tol' parameter .* Got -1 instead"),
        ({"max_iter": -1}, "'max_iter' parameter .* Got -1 instead"),
        (
            {"class_weight": {0: -1.0}},
            "'class_weight' parameter .* must be weights of at least 0. Got {0: -1.0} instead",
        ),
        ({"class_weight": "heavy"}, "'class_weight' parameter .* Got 'heavy' instead"),
        ({"penalty": "l1"}, "The 'penalty' parameter of LogisticRegression"),
        ({"solver": "liblinear"}, "The 'solver' parameter of LogisticRegression"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_computed(options, sentence):
    X, y, _ = data(2)
    with pytest.raises(ValueError, match=sentence):
        LogisticRegression(**options).fit(X, y)


def test_a_model_travels():
    X, y, _ = data(3)
    model = LogisticRegression().fit(X, y)

    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))  # noqa: S301


def test_no_penalty_is_an_infinite_c():
    X, y, _ = data(2)
    unpenalized = LogisticRegression(penalty=None, tol=1e-8).fit(X, y)

    np.testing.assert_array_equal(unpenalized.coef_, LogisticRegression(C=np.inf, tol=1e-8).fit(X, y).coef_)
