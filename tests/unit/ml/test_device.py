"""Estimators whose rows are on a device. PyTorch's device "cpu" runs the same lines as a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.cluster
import sklearn.decomposition
import sklearn.linear_model
import sklearn.preprocessing
from scipy import sparse
from support.raised import raises

from workbench import ml
from workbench.errors import InvalidRequest
from workbench.gpu.tensors import on_device
from workbench.ml.device_rows import DeviceRows, TensorRows
from workbench.ml.kmeans.device_part import DeviceKMeansPart
from workbench.ml.kmeans.part import KMeansPart
from workbench.ml.logistic.device_part import DeviceLogisticPart
from workbench.ml.logistic.part import LogisticPart
from workbench.ml.scaler.device_part import DeviceScalerPart

ROWS, FEATURES = 3000, 150
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(3)
    return random.normal(size=(ROWS, FEATURES)) @ np.diag(np.linspace(3, 1, FEATURES)) + random.normal(size=FEATURES)


@pytest.fixture(scope="module")
def weight():
    return np.random.default_rng(4).uniform(0.1, 2, ROWS)


def both(device, name, module, *data, attributes, only_ours=None, weight=None, **options):
    """Fit with rows on the device and with scikit-learn, and compare attributes."""
    given = {} if weight is None else {"sample_weight": weight}
    ours = getattr(ml, name)(device=device, **options, **(only_ours or {})).fit(*data, **given)
    theirs = getattr(module, name)(**options).fit(*data, **given)
    for attribute in attributes:
        np.testing.assert_allclose(getattr(ours, attribute), getattr(theirs, attribute), **CLOSE, err_msg=attribute)
    return ours


@pytest.mark.parametrize("weighted", [False, True])
def test_k_means_is_that_of_scikit_learn(device, rows, weight, weighted):
    X = rows[:, :6]
    both(
        device, "KMeans", sklearn.cluster, X, attributes=["cluster_centers_", "inertia_", "labels_", "n_iter_"],
        weight=weight if weighted else None, n_clusters=7, init=X[:7].copy(), n_init=1, tol=0,
    )  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["LinearRegression", "Ridge"])
def test_linear_models_are_those_of_scikit_learn(device, rows, weight, name, weighted):
    y = rows[:, :2] @ [[1.0, 2.0], [3.0, -1.0]] + np.sin(rows[:, 2:4])
    options = {"weight": weight} if weighted else {}
    both(device, name, sklearn.linear_model, rows, y, attributes=["coef_", "intercept_"], **options)


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cholesky"])
@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_regression_is_that_of_scikit_learn(device, rows, weight, classes, solver):
    X = rows[:, :5]
    y = np.digitize(X[:, 0] + np.random.default_rng(5).normal(size=ROWS), np.linspace(-1, 1, classes + 1)[1:-1])
    ours = ml.LogisticRegression(solver="newton-cholesky", tol=1e-13, device=device).fit(X, y, weight)
    theirs = sklearn.linear_model.LogisticRegression(solver="newton-cholesky", tol=1e-13).fit(X, y, weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, **CLOSE)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, **CLOSE)
    # L-BFGS ends with fewer digits, so that the same steps on the host are the reference.
    host, other = (ml.LogisticRegression(solver=solver, device=on).fit(X, y, weight) for on in (None, device))
    np.testing.assert_allclose(other.coef_, host.coef_, **CLOSE)
    assert other.n_iter_ == host.n_iter_


@pytest.mark.parametrize("solver", ["gram", "tsqr", "randomized"])
def test_principal_components_are_those_of_scikit_learn(device, rows, solver):
    # A randomized solver with all vectors is exact.
    options = {"n_oversamples": FEATURES} if solver == "randomized" else {}
    both(
        device, "PCA", sklearn.decomposition, rows, n_components=5, only_ours={"solver": solver, **options},
        attributes=["mean_", "singular_values_", "explained_variance_ratio_"],
    )  # fmt: skip


def test_singular_vectors_are_those_of_scikit_learn(device, rows):
    ours = both(device, "TruncatedSVD", sklearn.decomposition, rows, attributes=[], n_components=4)
    theirs = sklearn.decomposition.TruncatedSVD(4, algorithm="arpack").fit(rows)
    np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_, **CLOSE)
    np.testing.assert_allclose(np.abs(ours.components_), np.abs(theirs.components_), **CLOSE)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_scaler_is_that_of_scikit_learn_with_missing_numbers(device, rows, weight, weighted):
    X = rows[:, :4].copy()
    X[::7, 1] = np.nan
    both(
        device, "StandardScaler", sklearn.preprocessing, X, attributes=["mean_", "var_", "scale_"],
        weight=weight if weighted else None,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["k-means||", "random"])
def test_drawn_first_centers_are_those_of_the_host(device, rows, method):
    X = rows[:, :6].astype(np.float32)
    models = [ml.KMeans(5, init=method, n_init=2, random_state=1, device=on).fit(X) for on in (None, device)]

    assert (models[0].labels_ == models[1].labels_).mean() > 0.999
    np.testing.assert_allclose(models[1].inertia_, models[0].inertia_, rtol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_steps_of_k_means_that_count_changed_rows_only_are_those_of_the_host(device, rows, weight, weighted):
    X, w = rows[:, :6], weight if weighted else None
    parts = [KMeansPart(X, None, w, 0), DeviceKMeansPart(X, None, w, 0, device=device)]
    centers = X[:5].copy()
    for step in range(4):
        host, other = (part.step(centers, step == 0) for part in parts)
        for left, right in zip(host, other, strict=True):
            np.testing.assert_allclose(right, left, **CLOSE)
        if step == 0:
            for left, right in zip(*(part.spread() for part in parts), strict=True):
                np.testing.assert_allclose(right, left, **CLOSE)
        centers = np.where(host[1][:, None] > 0, host[0] / host[1][:, None], centers)
    np.testing.assert_allclose(parts[1].inertia(centers), parts[0].inertia(centers), **CLOSE)


@pytest.mark.parametrize("kind", [np.float32, np.int32, np.bool_])
def test_principal_components_of_other_numbers_are_those_of_the_host(device, rows, kind):
    X = (rows[:, :6] - rows[0, :6]).astype(kind) if kind is not np.bool_ else rows[:, :6] > rows[0, :6]
    host, other = (ml.PCA(3, device=on).fit(X) for on in (None, device))
    np.testing.assert_allclose(other.singular_values_, host.singular_values_, rtol=1e-6)


def test_rows_that_cannot_be_written_and_whole_numbers_are_accepted(device, rows):
    X = np.rint(rows[:, :3]).astype(np.int64)
    X.flags.writeable = False
    number, mean, squares = DeviceScalerPart(X, None, None, 0, device=device).moments()

    np.testing.assert_allclose(mean, X.mean(axis=0), **CLOSE)
    np.testing.assert_allclose(squares / number, X.var(axis=0), **CLOSE)


def test_large_scores_do_not_overflow(device):
    X, y = np.array([[1000.0], [-1000.0], [800.0]]), np.array([0, 1, 1])
    host, other = LogisticPart(X, y, None, 0), DeviceLogisticPart(X, y, None, 0, device=device)
    for part in (host, other):
        part.encode(np.array([0, 1]), None)

    weights = np.array([3.0, 1.0])
    (loss, gradient), expected = other.loss_and_gradient(weights), host.loss_and_gradient(weights)
    np.testing.assert_allclose(loss, expected[0], **CLOSE)
    np.testing.assert_allclose(gradient, expected[1], **CLOSE)


def test_rows_that_are_on_the_device_are_not_copied(device, rows):
    tensor = on_device(rows, device)
    used = DeviceRows(TensorRows(tensor), device)

    assert next(used.slices())[1].data_ptr() == tensor.data_ptr()
    np.testing.assert_array_equal(np.asarray(TensorRows(tensor)), rows)


@pytest.mark.parametrize("device", ["cuda:99", "nowhere"])
def test_a_device_that_is_not_there_is_an_error_with_a_remedy(device, rows):
    with raises(InvalidRequest, option="device", given=device):
        ml.StandardScaler(device=device).fit(rows)


def test_sparse_rows_are_refused(rows):
    with raises(InvalidRequest, option="device", given="cpu"):
        ml.PCA(2, device="cpu").fit(sparse.csr_array(rows))
