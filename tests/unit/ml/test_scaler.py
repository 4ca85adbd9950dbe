"""Scaling against scikit-learn's, on any number of parts in this process."""

from __future__ import annotations

import itertools
import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import preprocessing
from support import refused
from support.sklearn_checks import accepted_by_scikit_learn

from workbench.ml.algebra.sums import join
from workbench.ml.engine.parts import LocalParts
from workbench.ml.scaler.estimator import StandardScaler
from workbench.ml.scaler.part import ScalerChecks, ScalerPart, moments

OF_SPARSE_ROWS = (
    "check_estimator_sparse_array",
    "check_estimator_sparse_matrix",
    "check_estimator_sparse_tag",
    "check_sample_weight_equivalence_on_sparse_data",
)


def rows(number=5000, features=7, away=3.0, dtype=np.float64):
    X = np.random.default_rng(2).normal(size=(number, features)) * np.arange(1, features + 1) + away
    return X.astype(dtype)


def with_gaps(X):
    X = X.copy()
    X[np.random.default_rng(3).random(X.shape) < 0.1] = np.nan
    X[: len(X) // 2, 1] = np.nan
    return X


def weights(number):
    weight = np.random.default_rng(4).uniform(0.0, 2.0, size=number)
    weight[::10] = 0
    return weight


def parts_of(X, number, weight=None):
    cuts = np.linspace(0, X.shape[0], number + 1).astype(int)
    return LocalParts(
        [
            ScalerPart(X[start:stop], None, None if weight is None else weight[start:stop], start)
            for start, stop in itertools.pairwise(cuts)
        ]
    )


def assert_same(ours, theirs, rtol=1e-12):
    for name in ("n_samples_seen_", "mean_", "var_", "scale_"):
        found, expected = getattr(ours, name), getattr(theirs, name)
        if expected is None:
            assert found is None, name
        else:
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-13, err_msg=name)


@accepted_by_scikit_learn(StandardScaler())
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


# With the mean, sparse rows are refused before they are read.
@accepted_by_scikit_learn(StandardScaler(with_mean=False), only=OF_SPARSE_ROWS)
def test_scikit_learn_accepts_it_without_the_mean(estimator, check):
    check(estimator)


@pytest.mark.parametrize("with_mean", [True, False])
@pytest.mark.parametrize("with_std", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("prepare", [np.asarray, with_gaps])
def test_it_scales_as_scikit_learn_does(with_mean, with_std, weighted, prepare):
    X = prepare(rows())
    weight = weights(len(X)) if weighted else None
    options = {"with_mean": with_mean, "with_std": with_std}
    theirs = preprocessing.StandardScaler(**options).fit(X, sample_weight=weight)
    ours = StandardScaler(**options).fit(X, sample_weight=weight)

    if with_mean or with_std or not weighted:  # where nothing is asked for, theirs counts rows without weights
        assert_same(ours, theirs)
    scaled = ours.transform(X)
    np.testing.assert_allclose(scaled, theirs.transform(X), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(ours.inverse_transform(scaled), X, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", [np.asarray, with_gaps, sparse.csr_array])
def test_the_number_of_parts_changes_nothing_but_rounding(number, weighted, form):
    X = form(rows())
    weight = weights(X.shape[0]) if weighted else None
    theirs = preprocessing.StandardScaler(with_mean=False).fit(X, sample_weight=weight)
    count, mean, deviations = moments(parts_of(X, number, weight), None)

    np.testing.assert_allclose(count, np.broadcast_to(theirs.n_samples_seen_, count.shape), rtol=1e-12)
    np.testing.assert_allclose(mean, theirs.mean_, rtol=1e-12)
    np.testing.assert_allclose(deviations / count, theirs.var_, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("number", [1, 5])
def test_small_deviations_far_from_zero_keep_their_digits(number):
    X = rows(20_000, away=0.0)
    _, mean, deviations = moments(parts_of(X + 2.0**30, number), None)

    expected = (X + 2.0**30) - 2.0**30
    np.testing.assert_allclose(mean - 2.0**30, expected.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(deviations / len(X), expected.var(axis=0), rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9, -1e-9])
@pytest.mark.parametrize("number", [1, 3])
def test_a_feature_of_one_value_is_not_divided(value, number):
    X = rows(30_000, 3)
    X[:, 1] = value
    model = StandardScaler().fit(X[: len(X) // number])
    for start in range(1, number):
        model.partial_fit(X[start * len(X) // number : (start + 1) * len(X) // number])

    assert model.scale_[1] == 1
    np.testing.assert_allclose(model.transform(X)[:, 1], 0, atol=abs(value) * 1e-14)


def test_single_precision_is_summed_in_double_and_stays_single():
    X = rows(50_000, away=1e3, dtype=np.float32)
    theirs = preprocessing.StandardScaler().fit(X)
    ours = StandardScaler().fit(X)

    assert_same(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(ours.mean_, X.mean(axis=0, dtype=np.float64), rtol=1e-13)
    assert ours.transform(X).dtype == ours.inverse_transform(X).dtype == np.float32


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sparse_rows_are_scaled_and_stay_sparse(weighted, dtype):
    X = rows(away=0.0, dtype=dtype)
    X[np.abs(X) < 1] = 0
    X[3, 3] = np.nan
    X = sparse.csr_array(X)
    weight = weights(X.shape[0]) if weighted else None
    theirs = preprocessing.StandardScaler(with_mean=False).fit(X, sample_weight=weight)
    ours = StandardScaler(with_mean=False).fit(X, sample_weight=weight)

    assert_same(ours, theirs, rtol=1e-5 if dtype == np.float32 else 1e-12)
    scaled = ours.transform(X)
    assert sparse.issparse(scaled)
    assert scaled.dtype == dtype
    np.testing.assert_allclose(scaled.toarray(), theirs.transform(X).toarray(), rtol=1e-5)
    np.testing.assert_allclose(ours.inverse_transform(scaled).toarray(), X.toarray(), rtol=1e-5)


def test_entries_that_a_sparse_matrix_has_twice_add_up():
    twice = sparse.csr_array(([1.0, 2.0, 3.0, 5.0], [1, 1, 0, 1], [0, 2, 3, 4]), (3, 2))
    variance = StandardScaler(with_mean=False).fit(twice).var_
    np.testing.assert_allclose(variance, twice.toarray().var(axis=0))
    assert twice.nnz == 4


def test_sparse_rows_are_not_centered():
    X = sparse.csr_array(np.eye(4))
    for use in (StandardScaler().fit, StandardScaler().fit(np.eye(4)).transform):
        with pytest.raises(ValueError, match=r"Cannot center sparse matrices.*with_mean=False"):
            use(X)


@pytest.mark.parametrize("prepare", [np.asarray, with_gaps])
@pytest.mark.parametrize("weighted", [False, True])
def test_fits_of_pieces_come_to_the_fit_of_the_whole(prepare, weighted):
    X = prepare(rows())
    weight = weights(len(X)) if weighted else np.ones(len(X))
    model = StandardScaler()
    for start in range(0, len(X), 700):
        model.partial_fit(X[start : start + 700], sample_weight=weight[start : start + 700])

    assert_same(model, preprocessing.StandardScaler().fit(X, sample_weight=weight))
    assert_same(model.fit(X[-9:]), preprocessing.StandardScaler().fit(X[-9:]))


def test_a_feature_that_is_missing_everywhere_stays_unknown_until_it_comes():
    X = rows(100)
    X[:50, 2] = np.nan
    model = StandardScaler().partial_fit(X[:50])
    assert np.isnan([model.mean_[2], model.var_[2], model.scale_[2]]).all()

    assert_same(model.partial_fit(X[50:]), preprocessing.StandardScaler().fit(X))


def test_moments_of_no_rows_change_nothing():
    some = moments(parts_of(rows(10), 1), None)
    nothing = moments(parts_of(rows(10), 1, np.zeros(10)), None)
    for joined in (join(some, nothing), join(nothing, some)):
        for found, expected in zip(joined, some, strict=True):
            np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_dask_arrays_are_scaled_lazily(dtype):
    X = rows(100).astype(dtype)
    model = StandardScaler().fit(X)
    for method in (model.transform, model.inverse_transform):
        lazy = method(da.from_array(X, chunks=(30, 2)))
        assert lazy.chunks == ((30, 30, 30, 10), (7,))
        assert lazy.dtype == lazy.compute(scheduler="sync").dtype == method(X).dtype
        np.testing.assert_array_equal(lazy.compute(scheduler="sync"), method(X))


def test_chunks_without_rows_are_scaled_as_well():
    X = rows(20)
    lazy = da.from_array(X, chunks=(10, 7))
    some = StandardScaler().fit(X).transform(lazy[lazy[:, 0] > X[10:, 0].max()])
    assert some.compute(scheduler="sync").shape[1] == 7


def test_frames_keep_their_names():
    frame = pd.DataFrame(rows(20, 3), columns=["a", "b", "c"])
    model = StandardScaler().set_output(transform="pandas").fit(frame)

    assert list(model.transform(frame).columns) == ["a", "b", "c"]
    assert list(model.get_feature_names_out()) == ["a", "b", "c"]
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        model.partial_fit(frame.to_numpy())
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    # Scaled rows have no names, and need none.
    scaled = da.from_array(model.transform(frame).to_numpy(), chunks=(9, 3))
    np.testing.assert_allclose(model.inverse_transform(scaled).compute(scheduler="sync"), frame, atol=1e-12)
    with refused.other_features():
        model.partial_fit(frame[["b", "a", "c"]])


def test_a_fitted_scaler_can_be_pickled():
    X = rows(20)
    model = pickle.loads(pickle.dumps(StandardScaler().fit(X)))  # noqa: S301
    np.testing.assert_array_equal(model.transform(X), StandardScaler().fit(X).transform(X))


@pytest.mark.parametrize(
    ("X", "weight", "message"),
    [
        (np.array([[1.0, np.inf]]), None, "Input X contains infinity"),
        (np.ones((3, 2)), -np.ones(3), "[Nn]egative"),
        (np.ones((3, 2)), np.ones(2), "inconsistent|shape"),
        (np.array([["a"]]), None, "could not convert string"),
    ],
)
def test_rows_that_cannot_be_are_refused(X, weight, message):
    for use in (StandardScaler().fit, ScalerChecks("StandardScaler").apply):
        with pytest.raises(ValueError, match=message):
            use(X, None, weight)
