"""Estimators whose ranks compute on a device, on both engines."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

from workbench import place
from workbench.errors import InvalidRequest
from workbench.ml import PCA, KMeans, LinearRegression, LogisticRegression, Ridge, StandardScaler, TruncatedSVD

RANDOM = np.random.default_rng(23)
X = RANDOM.normal(size=(1003, 5)) @ np.diag([5.0, 4.0, 3.0, 2.0, 1.0]) + RANDOM.normal(size=5)
NUMBERS = X @ RANDOM.normal(size=5) + RANDOM.normal(size=1003)
LABELS = np.digitize(NUMBERS, np.quantile(NUMBERS, [1 / 3, 2 / 3]))
WEIGHT = RANDOM.uniform(0.1, 2.0, size=1003)
# Each estimator with its targets, weights and results.
FITS = {
    "KMeans": (KMeans(4, init=X[:4]), None, WEIGHT, ("cluster_centers_", "inertia_")),
    "LogisticRegression": (LogisticRegression(tol=1e-8), LABELS, WEIGHT, ("coef_", "intercept_")),
    "LinearRegression": (LinearRegression(), NUMBERS, WEIGHT, ("coef_", "intercept_")),
    "Ridge": (Ridge(alpha=2.0), NUMBERS, None, ("coef_", "intercept_")),
    "PCA": (PCA(3), None, None, ("components_", "singular_values_", "mean_")),
    "PCA, tsqr": (PCA(3, solver="tsqr"), None, None, ("components_", "singular_values_")),
    "TruncatedSVD": (TruncatedSVD(3), None, None, ("components_", "singular_values_")),
    "StandardScaler": (StandardScaler(), None, WEIGHT, ("mean_", "var_")),
}


def fitted(name, lazy=None, **options):
    """Return the results of a fit of arrays, or of the collection of each column that `lazy` returns."""
    model, y, weight, attributes = FITS[name]
    columns = [column if column is None or lazy is None else lazy(column) for column in (X, y, weight)]
    given = {} if weight is None else {"sample_weight": columns[2]}
    model = type(model)(**model.get_params() | options).fit(*columns[: 1 if y is None else 2], **given)
    return model, [getattr(model, attribute) for attribute in attributes]


@pytest.mark.parametrize("engine", ["mpi", "dask"])
@pytest.mark.parametrize("name", FITS)
def test_a_fit_on_the_devices_of_ranks_is_that_of_one_process(client4, name, engine, device):
    _, expected = fitted(name)
    model, found = fitted(
        name, lambda column: da.from_array(column, chunks=(300, -1)[: column.ndim]), engine=engine, device=device
    )

    assert model.engine_ == engine
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("engine", ["mpi", "dask"])
def test_a_device_that_ranks_do_not_have_is_an_error_with_a_remedy(client4, engine):
    with pytest.raises(InvalidRequest, match=r"device='cuda:99' cannot be used: .*Pass device=None"):
        StandardScaler(engine=engine, device="cuda:99").fit(place(X))
