"""Principal components and singular vectors against scikit-learn's, on any number of parts in this process."""

from __future__ import annotations

import pickle
import threading
import tracemalloc

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import decomposition
from sklearn.base import clone
from support.sklearn_checks import accepted_by_scikit_learn

from workbench.ml.algebra import row_slices
from workbench.ml.algebra.sums import join_triangles
from workbench.ml.decomposition import fit as decomposition_fit
from workbench.ml.decomposition.estimators import PCA, TruncatedSVD
from workbench.ml.decomposition.part import DecompositionPart
from workbench.ml.engine.parts import LocalParts

SOLVERS = ["gram", "tsqr", "randomized"]


def data(rows=500, features=12, seed=3):
    random = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(random.normal(size=(features, features)))
    return random.normal(size=(rows, features)) * np.geomspace(30, 1, features) @ turn + 5


def of_singular_values(values, rows=400, seed=0):
    random = np.random.default_rng(seed)
    left, _ = np.linalg.qr(random.normal(size=(rows, len(values))))
    right, _ = np.linalg.qr(random.normal(size=(len(values), len(values))))
    return left * values @ right.T


def sparse_data(rows=400, features=30, seed=5):
    return sparse.random(rows, features, density=0.1, format="csr", random_state=np.random.default_rng(seed))


def settings(X, number, solver, *, centered=True):
    return decomposition_fit.Settings(
        n_components=number,
        centered=centered,
        solver=solver,
        n_iter=7,
        n_oversamples=8,
        seed=0,
        rows=X.shape[0],
        features=X.shape[1],
    )


@pytest.mark.parametrize(
    "model",
    [
        PCA(2, solver="gram", engine="local"),
        PCA(2, solver="randomized", random_state=0, engine="local"),
        TruncatedSVD(2, random_state=0, engine="local"),
    ],
    ids=lambda model: f"{type(model).__name__}-{model.solver}",
)
def test_repeated_entries_of_sparse_rows_add_up(model):
    X = sparse_data()
    X.data += 1
    twice = sparse.csr_array((np.repeat(X.data / 2, 2), np.repeat(X.indices, 2), X.indptr * 2), X.shape)
    found, wanted = clone(model).fit(twice), clone(model).fit(X)

    np.testing.assert_allclose(found.explained_variance_ratio_, wanted.explained_variance_ratio_, rtol=1e-9)
    assert twice.nnz == 2 * X.nnz


def parts_of(number, X):
    cut = np.array_split(np.arange(X.shape[0]), number)
    return LocalParts([DecompositionPart(X[at], None, None, at[0]) for at in cut])


@accepted_by_scikit_learn(PCA(), TruncatedSVD(1))
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("whiten", [False, True])
def test_principal_components_are_those_of_scikit_learn(solver, whiten):
    X = data()
    theirs = decomposition.PCA(4, whiten=whiten, svd_solver="full").fit(X)
    ours = PCA(4, whiten=whiten, solver=solver, random_state=0).fit(X)

    names = ["components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"]
    for name in [*names, "noise_variance_"]:
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-9, atol=1e-10, err_msg=name)
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), atol=1e-8)
    np.testing.assert_allclose(
        ours.inverse_transform(ours.transform(X)), theirs.inverse_transform(theirs.transform(X)), atol=1e-8
    )
    np.testing.assert_array_equal(ours.get_feature_names_out(), ["pca0", "pca1", "pca2", "pca3"])
    assert (ours.n_components_, ours.n_samples_, ours.solver_, ours.engine_) == (4, len(X), solver, "local")


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("number", [4, None])
def test_likelihoods_and_covariances_are_those_of_scikit_learn(number, form, whiten):
    X = data()
    theirs = decomposition.PCA(number, whiten=whiten, svd_solver="full").fit(X)
    ours = PCA(number, whiten=whiten).fit(form(X))

    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-9)
    np.testing.assert_allclose(ours.get_precision(), theirs.get_precision(), atol=1e-9)
    np.testing.assert_allclose(ours.score_samples(form(X)), theirs.score_samples(X), rtol=1e-9)
    assert ours.score(form(X)) == pytest.approx(theirs.score(X), rel=1e-9)


def test_likelihoods_of_dask_collections_are_lazy():
    X, model = data(), PCA(4).fit(data())
    likelihoods = model.score_samples(da.from_array(X, chunks=(90, 5)))

    assert likelihoods.chunks == da.from_array(X, chunks=(90, 5)).chunks[:1]
    np.testing.assert_allclose(likelihoods.compute(), model.score_samples(X), rtol=1e-12)
    assert model.score(da.from_array(X, chunks=90)) == pytest.approx(model.score(X), rel=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_singular_vectors_are_those_of_scikit_learn(solver, form):
    X = form(data())
    theirs = decomposition.TruncatedSVD(4, algorithm="arpack").fit(X)
    ours = TruncatedSVD(4, solver=solver, random_state=0).fit(X)

    for name in ["components_", "explained_variance_", "explained_variance_ratio_", "singular_values_"]:
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-9, atol=1e-10, err_msg=name)
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), atol=1e-8)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("make", [data, sparse_data])
def test_any_number_of_parts_finds_the_same(solver, number, centered, make):
    X = make()
    dense = X.toarray() if sparse.issparse(X) else X
    # Of so many vectors none is left out: it is exact with all solvers.
    found = decomposition_fit.fit(parts_of(number, X), settings(X, X.shape[1] - 6, solver, centered=centered))
    _, values, vectors = np.linalg.svd(dense - dense.mean(axis=0) if centered else dense, full_matrices=False)

    kept = X.shape[1] - 6
    np.testing.assert_allclose(found.singular_values, values[:kept], rtol=1e-12)
    np.testing.assert_allclose(np.abs((found.components * vectors[:kept]).sum(axis=1)), 1, rtol=1e-11)
    np.testing.assert_allclose(found.rest, np.square(values[kept:]).sum(), rtol=1e-10)
    np.testing.assert_allclose(found.mean, dense.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("condition", [10.0, 1e8, 1e13])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_no_singular_value_is_farther_off_than_the_bound(solver, condition, dtype):
    X = of_singular_values(np.geomspace(condition, 1, 40)).astype(dtype)
    ours = TruncatedSVD(15, solver=solver, n_iter=1, random_state=0).fit(X)
    true = np.linalg.svd(X.astype(np.float64), compute_uv=False)[:15]

    assert (np.abs(ours.singular_values_ - true) <= ours.error_bound_).all()
    assert ours.error_bound_[0] < 0.5 * true[0]


def test_few_digits_of_the_squares_are_no_reason_to_lose_small_values():
    X = of_singular_values(np.geomspace(1e6, 1e-4, 8))
    by = {solver: TruncatedSVD(8, solver=solver).fit(X) for solver in ["gram", "tsqr", "auto"]}

    np.testing.assert_allclose(by["tsqr"].singular_values_, np.geomspace(1e6, 1e-4, 8), rtol=1e-5)
    assert by["gram"].error_bound_[-1] > 1e-2
    assert by["auto"].solver_ == "tsqr"
    np.testing.assert_array_equal(by["auto"].singular_values_, by["tsqr"].singular_values_)


@pytest.mark.parametrize(
    ("shape", "number", "solver"),
    [
        ((500, 12), 3, "gram"),
        ((500, 12), 0.9, "gram"),
        ((10, 12), 3, "tsqr"),
        ((60, 1500), 3, "randomized"),
        ((60, 1500), None, "tsqr"),
    ],
)
def test_the_solver_is_chosen_by_shape(shape, number, solver):
    X = np.random.default_rng(0).normal(size=shape)

    assert PCA(number, random_state=0).fit(X).solver_ == solver


@pytest.mark.parametrize(("solver", "draws"), [("tsqr", False), ("gram", False), ("auto", False), ("randomized", True)])
def test_a_solver_that_draws_nothing_leaves_the_generator_of_numpy_alone(solver, draws):
    before = np.random.get_state(legacy=False)["state"]  # noqa: NPY002  (that of the user)
    PCA(2, solver=solver).fit(np.eye(8))
    after = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    assert (before["pos"] != after["pos"]) is draws


def test_wide_rows_are_found_as_well_as_by_scikit_learn():
    X = of_singular_values(0.8 ** np.arange(120), rows=1200).T
    theirs = decomposition.TruncatedSVD(10, random_state=0).fit(X)
    ours = TruncatedSVD(10, random_state=0).fit(X)
    best = np.sqrt(np.square(0.8 ** np.arange(10, 120)).sum())
    left = [np.linalg.norm(X - model.inverse_transform(model.transform(X))) for model in (ours, theirs)]

    assert ours.solver_ == "randomized"
    assert left[0] <= left[1] * (1 + 1e-9)
    assert left[0] == pytest.approx(best, rel=1e-6)
    assert (np.abs(ours.singular_values_ - 0.8 ** np.arange(10)) <= ours.error_bound_).all()
    assert (ours.error_bound_ < 1e-6).all()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("slope", [2.0, -2.0])
def test_rounding_does_not_choose_the_signs_of_equal_loadings(solver, slope):
    for seed in range(10):
        random = np.random.default_rng(seed)
        X = random.normal(size=(50, 2))
        X[:, 1] += slope * X[:, 0]
        # Both components of two standardized columns have loadings of the same size.
        X = (X - X.mean(axis=0)) / X.std(axis=0)
        found = [
            decomposition_fit.fit(parts_of(number, X), settings(X, 2, solver)).components for number in (1, 2, 3, 4)
        ]
        for components in found:
            np.testing.assert_allclose(components, found[0], atol=1e-9)
            assert (components[:, 0] > 0).all()


def test_random_vectors_do_not_depend_on_the_number_of_parts():
    X = data(rows=200, features=60)
    one, five = (decomposition_fit.fit(parts_of(number, X), settings(X, 3, "randomized")) for number in (1, 5))

    np.testing.assert_allclose(one.components, five.components, atol=1e-12)


@pytest.mark.parametrize("solver", ["gram", "tsqr"])
def test_a_share_of_the_variance_gives_the_number_of_components(solver):
    X = data()
    theirs = decomposition.PCA(0.9, svd_solver="full").fit(X)
    ours = PCA(0.9, solver=solver).fit(X)

    assert ours.n_components_ == theirs.n_components_
    np.testing.assert_allclose(ours.noise_variance_, theirs.noise_variance_)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("model", [PCA, TruncatedSVD])
def test_float32_stays_float32(solver, model):
    X = data().astype(np.float32)
    single = model(3, solver=solver, random_state=0).fit(X)
    double = model(3, solver=solver, random_state=0).fit(X.astype(np.float64))

    for name in ["components_", "explained_variance_", "singular_values_", "error_bound_"]:
        assert getattr(single, name).dtype == np.float32
    assert single.transform(X).dtype == np.float32
    np.testing.assert_allclose(single.singular_values_, double.singular_values_, rtol=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
def test_means_far_from_zero_cost_no_more_than_the_bound(solver):
    X = data()
    near, far = PCA(12, solver=solver).fit(X), PCA(12, solver=solver).fit(X + 2.0**24)

    rounded = np.linalg.norm(2.0**-29 * np.sqrt(X.size))
    assert (np.abs(far.singular_values_ - near.singular_values_) <= far.error_bound_ + rounded).all()


@pytest.mark.parametrize(("sample", "passes"), [(4000, 1), (40, 2)])
def test_principal_components_take_one_pass_and_another_where_a_sample_misleads(sample, passes, monkeypatch):
    X = data(rows=8000)
    told = []
    # All rows of the sample are far from the others.
    X[:: 8000 // sample, 0] -= 1e6
    monkeypatch.setattr(row_slices, "_SAMPLE", sample)
    model = PCA(12, solver="gram", callback=told.append).fit(X)
    true = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)

    assert [record["name"] for record in told] == ["sample", *["gram"] * passes]
    assert (np.abs(model.singular_values_ - true) <= model.error_bound_).all()
    np.testing.assert_allclose(model.mean_, X.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("model", [PCA(3), PCA(3, whiten=True), TruncatedSVD(3)])
def test_it_transforms_the_rows_of_dask_collections_there_and_back(model):
    X = data()
    model.fit(X)
    there = model.transform(da.from_array(X, chunks=(100, 5)))
    back = model.inverse_transform(there.rechunk((100, 2)))

    assert (there.shape, back.shape) == ((500, 3), X.shape)
    np.testing.assert_allclose(there.compute(scheduler="sync"), model.transform(X), atol=1e-10)
    np.testing.assert_allclose(back.compute(scheduler="sync"), model.inverse_transform(model.transform(X)), atol=1e-10)


@pytest.mark.parametrize("model", [PCA(3, whiten=True), TruncatedSVD(3)], ids=str)
def test_any_result_of_transform_is_transformed_back(model):
    lock = threading.Lock()
    X = pd.DataFrame(data()[:, :5].astype(np.float32), columns=list("abcde"))
    # A callback that cannot be pickled stays in this process.
    model = clone(model).set_params(callback=lambda _: lock.locked()).fit(X)
    rows = model.transform(X)
    lazy = da.from_array(rows.astype(np.float64), chunks=(100, 3))
    some = da.from_array(np.arange(500) >= 100, chunks=100)
    for there in (lazy, dd.from_pandas(pd.DataFrame(rows), npartitions=3)):
        back = model.inverse_transform(there)
        found = back.compute(scheduler="sync")
        np.testing.assert_allclose(found, model.inverse_transform(rows), rtol=1e-4, atol=1e-5)
        assert found.dtype == back.dtype
    # The first chunk has no rows.
    assert model.inverse_transform(lazy[some]).compute(scheduler="sync").shape == (400, 5)
    with pytest.raises(ValueError, match="X has 5 columns, and inverse_transform needs the 3 of transform"):
        model.inverse_transform(da.zeros((10, 5)))


def test_a_fitted_model_can_be_pickled():
    X = data()
    model = PCA(3).fit(X)

    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).transform(X), model.transform(X))  # noqa: S301


@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_that_are_all_alike_have_no_variance(solver):
    X = np.ones((20, 3))
    ours = PCA(2, solver=solver, random_state=0).fit(X)

    np.testing.assert_array_equal(ours.singular_values_, 0)
    np.testing.assert_array_equal(ours.explained_variance_ratio_, 0)
    assert np.isfinite(ours.components_).all()


def test_triangles_are_joined_in_any_order():
    X = data()
    one, two, three = (np.linalg.qr(block, mode="r") for block in np.split(X[:480], [100, 107]))
    left, right = join_triangles(join_triangles(one, two), three), join_triangles(one, join_triangles(two, three))

    np.testing.assert_allclose(left.T @ left, right.T @ right, rtol=1e-12)
    np.testing.assert_allclose(left.T @ left, X[:480].T @ X[:480], rtol=1e-12)


@pytest.mark.parametrize(
    ("method", "vectors", "squares"),
    [("gram", 0, 12), ("triangle", 0, 100), ("triangle", 20, 0), ("normal", 20, 0), ("squares", 0, 0)],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_work_space_is_what_the_docstring_says(method, vectors, squares, dtype):
    X = np.ones((60_000, 100), dtype=dtype)
    basis = [np.ones((100, vectors))] if vectors else [None] if method == "triangle" else []
    part = DecompositionPart(X, None, None, 0)
    tracemalloc.start()
    getattr(part, method)(np.ones(100), *basis)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < squares * 100**2 + 3 * 8 * 100 * vectors + (3 << 20) < X.nbytes / 4


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (PCA(13), "n_components=13 must be between 1 and"),
        (TruncatedSVD(13), "n_components=13 must be between 1 and"),
        (PCA(0), "The 'n_components' parameter of PCA"),
        (PCA(3, solver="grim"), "The 'solver' parameter of PCA"),
        (PCA(0.9, solver="randomized"), "a fraction of the total variance"),
    ],
)
def test_what_cannot_be_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(data())


@pytest.mark.parametrize(
    ("name", "solver"), [("full", "tsqr"), ("covariance_eigh", "gram"), ("randomized", "randomized")]
)
def test_each_solver_finds_the_singular_values_of_scikit_learn(name, solver):
    X = data()
    theirs = decomposition.PCA(4, svd_solver=name, iterated_power=9, random_state=0).fit(X)
    ours = clone(PCA(4, solver=solver, n_iter=9, random_state=0)).fit(X)

    assert ours.solver_ == solver
    np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_, rtol=1e-9)


def test_the_true_singular_values_are_found():
    X = data()
    theirs = decomposition.TruncatedSVD(4, algorithm="arpack").fit(X)

    np.testing.assert_allclose(TruncatedSVD(4).fit(X).singular_values_, theirs.singular_values_, rtol=1e-9)
