"""What models of sums of products take of the memory of a rank, and what is refused since it would take too much."""

from __future__ import annotations

import tracemalloc

import dask.array as da
import numpy as np
import pytest
from distributed import system
from scipy import sparse
from scipy.linalg import LinAlgWarning
from support.raised import raises

from workbench.errors import InvalidRequest
from workbench.ml import PCA, LinearRegression, LogisticRegression, Ridge, TruncatedSVD, memory_guard
from workbench.ml.algebra.row_slices import Products, upper
from workbench.ml.decomposition import fit as decomposition_fit
from workbench.ml.decomposition.part import DecompositionPart
from workbench.ml.engine.mpi_parts import RankParts
from workbench.ml.linear import fit as linear_fit
from workbench.ml.linear.part import LinearPart
from workbench.ml.logistic import fit as logistic_fit
from workbench.ml.logistic.part import LogisticPart

FEATURES, ROWS = 1050, 1300
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, FEATURES))
SLICES = 5 << 20
SQUARE = FEATURES**2


class Alone:
    """The communicator of rank 0, whose messages are added to nothing."""

    rank = 0

    def Bcast(self, message):  # noqa: N802  (mpi4py's name)
        pass

    def reduce(self, value, op):
        return value

    def Reduce(self, sent, received):  # noqa: N802  (mpi4py's name)
        received[...] = sent


def one_hot(features):
    rows = np.arange(1000)
    return sparse.csr_array((np.ones(1000), (rows, rows * 97 % features)), shape=(1000, features))


def nearly_dependent(rows, features):
    some = RANDOM.normal(size=(rows, features))
    some[:, 0] = some[:, 1] + 1e-7 * some[:, 0]
    return some


def newton_settings(features, C):
    return logistic_fit.Settings(
        C=C,
        tol=1e-4,
        max_iter=1,
        features=features,
        fit_intercept=True,
        class_weight=None,
        solver="newton-cholesky",
        eps=2e-16,
        start=None,
    )


def peak(call):
    tracemalloc.start()
    call()
    _, found = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return found


@pytest.mark.parametrize(
    ("model", "nbytes"),
    [
        (LinearRegression(), "223.52 GiB"),
        (Ridge(), "223.52 GiB"),
        (PCA(3, solver="gram"), "149.01 GiB"),
        (PCA(), "3.19 GiB"),
        (PCA(900, solver="randomized"), "4.09 GiB"),
        (LogisticRegression(solver="newton-cholesky"), "372.54 GiB"),
        (TruncatedSVD(90_000, solver="gram"), "149.01 GiB"),
    ],
    ids=str,
)
def test_a_matrix_that_has_no_room_is_refused_before_there_is_one(model, nbytes, monkeypatch):
    monkeypatch.setattr(system, "MEMORY_LIMIT", 1 << 30)
    rows = one_hot(100_000)
    if isinstance(model, TruncatedSVD):
        rows = sparse.vstack([rows] * 100, format="csr")
    sentence = rf"of 100000 features needs {nbytes} .* limit of this process is 1.00 GiB. At most \d+ features"

    def refused():
        with pytest.raises(InvalidRequest, match=sentence):
            model.fit(rows, np.arange(rows.shape[0]) % 2)

    assert peak(refused) < 32 << 20


def test_a_matrix_that_lapack_cannot_count_is_refused_wherever_it_has_room(monkeypatch):
    monkeypatch.setattr(system, "MEMORY_LIMIT", 8 << 40)
    with raises(InvalidRequest, given=70_000):
        Ridge().fit(one_hot(70_000), np.ones(1000))


def test_random_vectors_take_as_many_features_as_before(monkeypatch):
    monkeypatch.setattr(system, "MEMORY_LIMIT", 1 << 30)

    assert TruncatedSVD(2, random_state=0, n_iter=1).fit(one_hot(100_000)).components_.shape == (2, 100_000)


def test_nobody_is_asked_about_a_small_matrix(monkeypatch):
    monkeypatch.setattr(memory_guard, "_limits", lambda *_: pytest.fail("asked"))

    assert Ridge().fit(X, X[:, 0]).coef_.shape == (FEATURES,)


@pytest.mark.parametrize("part", [DecompositionPart(X, None, None, 0), LinearPart(X, X[:, :1], None, 0)])
def test_a_sum_takes_half_a_matrix_and_as_much_for_each_copy_of_the_message(part):
    args = ("gram", np.ones(FEATURES)) if isinstance(part, DecompositionPart) else ("products", None, np.zeros(1))

    assert peak(lambda: RankParts(Alone(), part, None).sum(*args)) < 12 * SQUARE + SLICES


@pytest.mark.parametrize("width", [7, 1001])
def test_products_are_those_of_the_rows_however_they_are_kept(width):
    products = Products(width)
    products.add(X[:100, :width])
    products.add(X[100:150, :width])

    np.testing.assert_allclose(upper(products.packed, width), np.triu(X[:150, :width].T @ X[:150, :width]), atol=1e-12)


@pytest.mark.parametrize("part", [DecompositionPart(X, None, None, 0), LinearPart(X, X[:, :1], None, 0)])
def test_a_part_takes_half_a_matrix(part):
    args = ("gram", np.ones(FEATURES)) if isinstance(part, DecompositionPart) else ("products", None, np.zeros(1))

    assert peak(lambda: getattr(part, args[0])(*args[1:])) < 4 * SQUARE + SLICES


@pytest.mark.parametrize("alpha", [0.0, 1.0, np.array([1.0, 2.0])])
@pytest.mark.parametrize("dependent", [False, True])
def test_equations_are_solved_in_the_memory_that_is_stated(alpha, dependent):
    rows = X.copy()
    if dependent:
        rows[:, 0] = rows[:, 1]
    targets = np.size(alpha)
    settings = linear_fit.Settings(alpha=alpha, fit_intercept=True, tol=1e-6, rows=ROWS, targets=targets)
    parts = RankParts(Alone(), LinearPart(rows, rows[:, :targets], None, 0), lambda _: None)

    stated = linear_fit.needs(FEATURES) if dependent else 16 * SQUARE
    assert peak(lambda: linear_fit.fit(parts, settings)) < stated + SLICES


@pytest.mark.parametrize("rows", [300, 700, 2000])
@pytest.mark.parametrize("weighted", [False, True])
def test_columns_that_nearly_depend_are_decomposed_in_the_memory_that_is_stated(rows, weighted):
    few = nearly_dependent(rows, 250)
    settings = linear_fit.Settings(alpha=0.0, fit_intercept=True, tol=1e-12, rows=rows)
    part = LinearPart(few, few[:, :1], RANDOM.random(rows) if weighted else None, 0)
    parts = RankParts(Alone(), part, lambda _: None)

    assert peak(lambda: linear_fit.fit(parts, settings)) < settings.for_triangles(250) + SLICES


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("dependent", [False, True])
def test_a_step_of_newton_is_made_in_the_memory_that_is_stated(classes, dependent):
    features = 600 if classes == 2 else 150
    rows = X[:, :features].copy()
    if dependent:
        rows[:, 0] = rows[:, 1]
    parts = RankParts(Alone(), LogisticPart(rows, np.arange(ROWS) % classes, None, 0), lambda _: None)
    settings = newton_settings(features, C=np.inf)

    assert peak(lambda: logistic_fit.fit(parts, settings)) < logistic_fit.needs(features, classes) + SLICES


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize(
    ("solver", "number", "rows", "features"),
    [
        ("gram", None, ROWS, FEATURES),
        ("gram", 5, ROWS, FEATURES),
        ("tsqr", None, ROWS, 250),
        ("tsqr", None, 400, 300),
        ("tsqr", None, 200, 800),
        ("randomized", 40, 300, FEATURES),
        ("randomized", 380, 500, 600),
    ],
)
def test_singular_vectors_are_found_in_the_memory_that_is_stated(solver, number, rows, features, centered):
    settings = decomposition_fit.Settings(
        n_components=number,
        centered=centered,
        solver=solver,
        n_iter=0,
        n_oversamples=0,
        seed=0,
        rows=rows,
        features=features,
    )
    some = np.ascontiguousarray(X[:rows, :features])
    parts = RankParts(Alone(), DecompositionPart(some, None, None, 0), lambda _: None)

    assert peak(lambda: decomposition_fit.fit(parts, settings)) < settings.needs(features) + SLICES


def test_fewer_digits_are_told_where_there_is_no_room_for_more(monkeypatch):
    rows = nearly_dependent(400, 30)
    exact = PCA().fit(rows)
    monkeypatch.setattr(memory_guard, "_SMALL", 0)
    monkeypatch.setattr(system, "MEMORY_LIMIT", 32 * 30**2)

    with pytest.warns(LinAlgWarning):
        found = PCA().fit(rows)
    assert (exact.solver_, found.solver_) == ("tsqr", "gram")
    assert (np.abs(found.singular_values_ - exact.singular_values_) <= found.error_bound_).all()


def test_columns_that_nearly_depend_are_refused_where_there_is_no_room_to_decompose(monkeypatch):
    rows = nearly_dependent(400, 30)
    monkeypatch.setattr(memory_guard, "_SMALL", 0)
    monkeypatch.setattr(system, "MEMORY_LIMIT", 32 * 30**2)

    assert LinearRegression().fit(X[:400, :30], X[:400, 31]).rank_ == 30
    with pytest.raises(InvalidRequest, match=r"columns 0, 1 of .* nearly.* needs 70.31 kiB .* is 28.12 kiB. Remove"):
        LinearRegression(tol=1e-12).fit(rows, rows[:, 5])


def test_newton_refuses_more_classes_than_have_room(monkeypatch):
    monkeypatch.setattr(system, "MEMORY_LIMIT", 1 << 30)
    rows, labels = X[:200, :100], np.arange(200) % 60

    with raises(InvalidRequest, option="solver"):
        LogisticRegression(solver="newton-cholesky").fit(rows, labels)
    assert LogisticRegression(solver="newton-cholesky").fit(rows, labels % 3).coef_.shape == (3, 100)


def test_where_this_process_solves_it_has_room_for_the_matrices_of_all_ranks(client, monkeypatch):
    ranks = len(client.scheduler_info(n_workers=-1)["workers"])
    rows, target = (da.from_array(each, chunks=200) for each in (X[:400, :30], X[:400, 31]))
    monkeypatch.setattr(memory_guard, "_SMALL", 0)
    monkeypatch.setattr(system, "MEMORY_LIMIT", (24 + 4 * ranks) * 30**2)
    assert Ridge().fit(rows, target).engine_ == "dask"

    monkeypatch.setattr(system, "MEMORY_LIMIT", (24 + 4 * ranks) * 30**2 - 1)
    with raises(InvalidRequest, given=30):
        Ridge().fit(rows, target)
