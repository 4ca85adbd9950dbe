"""What is let through without scikit-learn is what scikit-learn lets through as it is."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from sklearn.base import clone
from support import refused
from support.patience import DEADLINE

from workbench.ml import (
    PCA,
    KMeans,
    LinearRegression,
    LogisticRegression,
    NearestNeighbors,
    Ridge,
    StandardScaler,
    TruncatedSVD,
    checks,
)
from workbench.ml.checks import Checks, FindsNonFinite, make
from workbench.ml.decomposition import fit as decomposition_fit
from workbench.ml.decomposition.part import DecompositionPart
from workbench.ml.engine.parts import LocalParts
from workbench.ml.linear import fit as linear_fit
from workbench.ml.linear.part import LinearPart
from workbench.ml.logistic import fit as logistic_fit
from workbench.ml.logistic.part import LogisticPart
from workbench.ml.neighbors.part import NeighborsPart

ROWS = np.arange(12.0).reshape(4, 3)
LABELS = np.array([0, 1, 1, 0])
PLAIN = {
    "labels of integers": ("labels", ROWS, LABELS, None),
    "labels that are whole": ("labels", ROWS, LABELS * 1.0, None),
    "labels of booleans": ("labels", ROWS, LABELS > 0, None),
    "single precision": ("labels", ROWS.astype(np.float32), LABELS, np.ones(4, np.float32)),
    "numbers": ("numbers", ROWS, LABELS + 0.5, None),
    "several targets": ("numbers", ROWS, ROWS + 1, np.ones(4)),
    "no target": ("", ROWS, None, np.full(4, 0.5)),
}
OTHERS = {
    "not a number": ("labels", np.where(ROWS == 5, np.nan, ROWS), LABELS, None),
    "infinite": ("", np.where(ROWS == 5, np.inf, ROWS), None, None),
    "both infinities": ("", np.where(ROWS > 9, np.inf, np.where(ROWS < 2, -np.inf, ROWS)), None, None),
    "a sum that overflows": ("", np.full((4, 3), 1e308), None, None),
    "integers": ("labels", np.arange(12).reshape(4, 3), LABELS, None),
    "columns first": ("labels", np.asfortranarray(ROWS), LABELS, None),
    "a vector": ("labels", np.arange(4.0), LABELS, None),
    "no rows": ("labels", ROWS[:0], LABELS[:0], None),
    "no features": ("labels", ROWS[:, :0], LABELS, None),
    "fewer labels": ("labels", ROWS, LABELS[:3], None),
    "labels in a column": ("labels", ROWS, LABELS[:, None], None),
    "labels in several columns": ("labels", ROWS, np.stack([LABELS, LABELS], 1), None),
    "words": ("labels", ROWS, np.array(["a", "b", "b", "a"]), None),
    "labels that are not whole": ("labels", ROWS, LABELS + 0.5, None),
    "labels beyond all integers": ("labels", ROWS, np.array([0, 1, 1e300, 0]), None),
    "an endless label": ("labels", ROWS, np.array([0, 1, np.inf, 0]), None),
    "a target that is missing": ("numbers", ROWS, np.array([0, 1, np.nan, 0]), None),
    "objects": ("numbers", ROWS, LABELS.astype(object), None),
    "complex numbers": ("numbers", ROWS * 1j, LABELS, None),
    "weights of no rows": ("labels", ROWS, LABELS, np.zeros(4)),
    "weights below zero": ("labels", ROWS, LABELS, np.array([1, -1, 1, 1.0])),
    "some weights of zero": ("labels", ROWS, LABELS, np.array([1, 0, 1, 1.0])),
    "weights of integers": ("labels", ROWS, LABELS, np.ones(4, int)),
    "one weight": ("labels", ROWS, LABELS, 2.0),
    "fewer weights": ("labels", ROWS, LABELS, np.ones(3)),
    "endless weights": ("labels", ROWS, LABELS, np.array([1, np.inf, 1, 1])),
    "lists of lists": ("numbers", ROWS, ROWS.tolist(), None),
    "lists of two lengths": ("numbers", ROWS, [[1, 2], [3], [4], [5]], None),
    "lists": ("labels", ROWS.tolist(), LABELS.tolist(), None),
}


def outcome(checks, columns):
    try:
        return [None if each is None else (each.dtype, each.shape, each.tolist()) for each in checks.apply(*columns)]
    except (ValueError, TypeError) as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore:A column-vector y was passed", "ignore:invalid value encountered")
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
def test_it_makes_no_difference_whether_scikit_learn_is_asked(name, several, monkeypatch):
    target, *columns = (PLAIN | OTHERS)[name]
    checks = Checks("Model", target, several=several)
    found = outcome(checks, columns)
    monkeypatch.setattr(Checks, "_is_plain", lambda *_: False)

    assert found == outcome(checks, columns)


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_as_it_has_to_be_is_not_copied(name):
    target, *columns = PLAIN[name]

    assert all(a is b for a, b in zip(Checks("Model", target, several=True).apply(*columns), columns, strict=True))


FITS = """
import sys
import numpy as np
from workbench.ml.decomposition import fit as decomposition_fit
from workbench.ml.engine import mpi_parts as rank_task
from workbench.ml.kmeans import fit as kmeans_fit
from workbench.ml.linear import fit as linear_fit
from workbench.ml.logistic import fit as logistic_fit
from workbench.ml.scaler import part as scaler_part
from workbench.ml.checks import Checks, make
from workbench.ml.decomposition.part import DecompositionPart
from workbench.ml.kmeans.part import KMeansPart
from workbench.ml.linear.part import LinearPart
from workbench.ml.logistic.part import LogisticPart
from workbench.ml.engine.parts import LocalParts
from workbench.ml.scaler.part import ScalerChecks, ScalerPart

X = np.random.default_rng(0).normal(size=(100, 3))
y = (X[:, 0] > 0) * 1.0
rows = make(KMeansPart, Checks("KMeans"), 0, X, None, None)
for init in (X[:2], "random", "k-means||"):
    kmeans_fit.fit(LocalParts([rows]), kmeans_fit.Settings(2, init, 1, 10, 1e-4, 0, 100))
labeled = make(LogisticPart, Checks("LogisticRegression", "labels"), 0, X, y, None)
logistic_fit.fit(LocalParts([labeled]), logistic_fit.Settings(1, 1e-4, 9, 3, True, None, "lbfgs", 1e-16, None))
make(LinearPart, Checks("Ridge", "numbers"), 0, X, y, None).products(None, np.zeros(1))
rows = LocalParts([make(DecompositionPart, Checks("PCA"), 0, X, None, None)])
decomposition_fit.fit(rows, decomposition_fit.Settings(2, True, "auto", 5, 10, 0, 100, 3))
scaler_part.moments(LocalParts([make(ScalerPart, ScalerChecks("StandardScaler"), 0, X, None, None)]), None)
print(sorted({"pandas", "sklearn", "scipy.stats"} & set(sys.modules)))
"""


def test_a_fit_of_plain_blocks_loads_neither_scikit_learn_nor_pandas():
    told = subprocess.run([sys.executable, "-c", FITS], capture_output=True, text=True, check=True, timeout=DEADLINE)

    assert told.stdout == "[]\n"


class Sums(FindsNonFinite):
    """A part that passes over its rows once."""

    def __init__(self, X, y, weight, start):
        self.X = X

    def total(self):
        total = self.X.sum(axis=0)
        if not np.isfinite(total).all():
            self.refuse_non_finite()
        return total


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_part_that_finds_what_is_not_finite_does_so_in_its_own_pass(value, monkeypatch):
    rows = np.where(ROWS == 5, value, ROWS)
    with refused.not_finite():
        make(NeighborsPart, Checks("Model"), 0, rows, None, None).rows()
    part = make(Sums, Checks("Model"), 0, rows, None, None)
    with refused.not_finite("NaN" if np.isnan(value) else "infinity"):
        part.total()

    monkeypatch.setattr("workbench.ml.checks._is_finite", lambda *_: pytest.fail("the rows were searched"))
    assert make(Sums, Checks("Model"), 0, ROWS, None, None).total().tolist() == ROWS.sum(axis=0).tolist()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("solver", ["gram", "tsqr", "randomized"])
@pytest.mark.parametrize("centered", [False, True])
def test_a_decomposition_finds_what_is_not_finite_in_its_first_sums(value, solver, centered, monkeypatch):
    settings = decomposition_fit.Settings(2, centered, solver, 1, 1, 0, 4, 3)

    def fit(rows):
        made = [make(DecompositionPart, Checks("PCA"), at, rows[at:][:2], None, None) for at in (0, 2)]
        return decomposition_fit.fit(LocalParts(made), settings)

    with refused.not_finite("NaN" if np.isnan(value) else "infinity"):
        fit(np.where(ROWS == 10, value, ROWS))
    monkeypatch.setattr(checks, "_is_finite", lambda *_: pytest.fail("the rows were searched"))
    assert np.isfinite(fit(ROWS).components).all()


def no_search_of_rows(monkeypatch):
    """Let a search of the rows fail the test; one of labels is allowed."""
    plain = checks._is_finite
    monkeypatch.setattr(checks, "_is_finite", lambda array, ndim: ndim == 1 and plain(array, ndim))
    monkeypatch.setattr(Checks, "apply", lambda *_: pytest.fail("the rows were searched"))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_a_linear_model_finds_what_is_not_finite_in_its_first_sums(value, fit_intercept, monkeypatch):
    settings = linear_fit.Settings(1.0, fit_intercept, 0.0, 4)

    def fit(rows):
        columns = [(rows[at:][:2], LABELS[at:][:2], None) for at in (0, 2)]
        made = [make(LinearPart, Checks("Ridge", "numbers"), at, *columns[at // 2]) for at in (0, 2)]
        return linear_fit.fit(LocalParts(made), settings)

    with refused.not_finite("NaN" if np.isnan(value) else "infinity"):
        fit(np.where(ROWS == 10, value, ROWS))
    no_search_of_rows(monkeypatch)
    assert np.isfinite(fit(ROWS).coef).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("solver", ["lbfgs", "newton-cholesky"])
@pytest.mark.parametrize("start", [None, np.array([3.0, -2.0, 1.0, 0.5])])
def test_a_logistic_regression_finds_what_is_not_finite_in_its_first_gradient(value, solver, start, monkeypatch):
    settings = logistic_fit.Settings(1.0, 1e-4, 9, 3, True, None, solver, 1e-16, start)

    def fit(rows):
        columns = [(rows[at:][:2], LABELS[at:][:2], None) for at in (0, 2)]
        made = [make(LogisticPart, Checks("Model", "labels"), at, *columns[at // 2]) for at in (0, 2)]
        return logistic_fit.fit(LocalParts(made), settings)

    for number in ROWS.ravel():
        with refused.not_finite("NaN" if np.isnan(value) else "infinity"):
            fit(np.where(number == ROWS, value, ROWS))
    no_search_of_rows(monkeypatch)
    assert np.isfinite(fit(ROWS).weights).all()


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_sum_of_finite_numbers_that_overflows_is_not_refused():
    assert np.isinf(make(Sums, Checks("Model"), 0, np.full((4, 3), 1e308), None, None).total()).all()


@pytest.mark.parametrize(
    "model",
    [
        PCA(),
        *(PCA(2, solver=solver) for solver in ("tsqr", "randomized")),
        TruncatedSVD(),
        *(TruncatedSVD(solver=solver) for solver in ("tsqr", "randomized")),
        LinearRegression(),
        LinearRegression(fit_intercept=False),
        Ridge(),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [1e155, 1e300])
def test_numbers_whose_products_overflow_are_refused(model, size):
    with refused.overflow():
        model.fit(np.random.default_rng(0).normal(size=(40, 3)) * size, np.arange(40.0))


def test_rows_that_have_to_be_converted_are_checked_before_the_first_pass():
    with refused.not_finite("NaN"):
        make(Sums, Checks("Model"), 0, np.asfortranarray(np.where(ROWS == 5, np.nan, ROWS)), None, None)


@pytest.mark.parametrize("dtype", [np.int8, bool])
def test_whole_numbers_are_converted_without_scikit_learn(dtype, monkeypatch):
    monkeypatch.setattr("sklearn.utils.check_array", lambda *_, **__: pytest.fail("scikit-learn was asked"))
    part = make(Sums, Checks("Model"), 0, np.asfortranarray(ROWS > 5, dtype=dtype), None, None)

    assert part.X.dtype == np.float64
    assert part.X.flags.c_contiguous
    assert part.total().tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, bool])
@pytest.mark.parametrize(
    "model",
    [
        KMeans(3, random_state=0),
        KMeans(3, init="random", n_init=1, random_state=0),
        LinearRegression(),
        LogisticRegression(),
        LogisticRegression(solver="newton-cholesky"),
        NearestNeighbors(),
        PCA(2),
        *(PCA(2, solver=solver, random_state=0) for solver in ("tsqr", "randomized")),
        Ridge(),
        StandardScaler(),
        TruncatedSVD(2),
    ],
    ids=str,
)
def test_integers_are_converted_some_rows_at_a_time(model, dtype):
    rows, random = 80_000, np.random.default_rng(0)
    X, y = random.integers(-100, 100, size=(rows, 16)).astype(dtype), random.integers(0, 2, size=rows)
    as_floats = clone(model).fit(X.astype(np.float64), y)
    tracemalloc.start()
    model.fit(X, y)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert used < 8 * X.size
    for name, value in vars(as_floats).items():
        if name.endswith("_") and isinstance(value, np.ndarray):
            np.testing.assert_allclose(getattr(model, name), value, rtol=1e-12, atol=1e-12, err_msg=name)
            assert getattr(model, name).dtype == value.dtype


@pytest.mark.parametrize("metric", ["euclidean", "manhattan", lambda left, right: abs(left - right).sum()])
def test_neighbors_of_small_integers_do_not_overflow(metric):
    X = np.random.default_rng(0).integers(-128, 128, size=(40, 3)).astype(np.int8)
    distances, rows = NearestNeighbors(3, metric=metric).fit(X).kneighbors(X[:9])
    expected, expected_rows = NearestNeighbors(3, metric=metric).fit(X * 1.0).kneighbors(X[:9] * 1.0)

    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_array_equal(distances, expected)
