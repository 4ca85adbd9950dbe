"""Blocks on a device, and estimators whose ranks compute there."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from support import refused
from support.processes import DEADLINE
from support.raised import raises

from workbench import map_blocks, place, run_on_ranks
from workbench.errors import InvalidRequest, PlacementError
from workbench.gpu.tensors import on_host
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


def fitted(name, spread=lambda column: column, **options):
    """Return the results of a fit of collections, which `spread` returns of arrays."""
    model, y, weight, attributes = FITS[name]
    columns = [spread(column) for column in (X, y) if column is not None]
    given = {} if weight is None else {"sample_weight": spread(weight)}
    model = type(model)(**model.get_params() | options).fit(*columns, **given)
    return model, [getattr(model, attribute) for attribute in attributes]


@pytest.mark.parametrize(("engine", "placed"), [("mpi", False), ("dask", False), ("mpi", True), ("dask", True)])
@pytest.mark.parametrize("name", FITS)
def test_a_fit_on_the_devices_of_ranks_is_that_of_one_process(client4, name, engine, placed, device):
    def spread(column):
        return place(column, device=device) if placed else da.from_array(column, chunks=(300, -1)[: column.ndim])

    _, expected = fitted(name)
    model, found = fitted(name, spread, engine=engine, device=device)

    assert model.engine_ == engine
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-9)


def test_functions_on_ranks_get_tensors_that_stay_where_they_are(client4, device):
    def addressed(comm, rows):
        from workbench.torch import tensor

        rows += 1
        return tensor(rows).device.type, rows.data_ptr(), rows.data_ptr() % 64

    placed = place(da.from_array(X, chunks=(300, 2)), device=device)
    first, second = (run_on_ranks(addressed, placed, timeout=DEADLINE) for _ in range(2))

    assert first == second
    assert [(kind, offset) for kind, _, offset in first] == [(device, 0)] * 4
    np.testing.assert_allclose(placed.map_blocks(on_host, dtype=X.dtype).compute(), X + 2)


def test_a_model_predicts_from_blocks_on_a_device_and_fits_them_on_the_host(client4, device):
    placed, expected = place(X, device=device), KMeans(4, init=X[:4]).fit(X)
    model = KMeans(4, init=X[:4]).fit(placed)

    np.testing.assert_allclose(model.cluster_centers_, expected.cluster_centers_, rtol=1e-9)
    np.testing.assert_array_equal(model.predict(placed).compute(), expected.labels_)


def test_numbers_on_a_device_are_checked_as_those_of_the_host(client4, device):
    gaps = X.copy()
    gaps[700, 2] = np.nan
    placed, y, whole = place(gaps, LABELS, np.rint(X).astype(np.int32), device=device)

    with refused.not_finite("NaN"):
        LogisticRegression(device=device).fit(placed, y)
    np.testing.assert_allclose(StandardScaler(device=device).fit(placed).mean_, np.nanmean(gaps, axis=0), rtol=1e-9)
    for model in (LogisticRegression(tol=1e-8), PCA(3)):
        found = type(model)(**model.get_params() | {"device": device}).fit(whole, y)
        expected = model.fit(np.rint(X), LABELS)
        name = "coef_" if hasattr(model, "coef_") else "singular_values_"
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-8, atol=1e-9)


def test_dask_moves_tensors_of_a_device_between_ranks_and_to_the_notebook(client4, device):
    import torch

    first, last = list(client4.scheduler_info()["workers"])[:2]
    there = client4.submit(torch.arange, 1 << 20, device=device, requires_grad=False, workers=first, pure=False)
    moved = client4.submit(lambda tensor: (tensor.device.type, int(tensor.sum())), there, workers=last)

    assert moved.result(DEADLINE) == (device, (1 << 20) * ((1 << 20) - 1) // 2)
    found = there.result(DEADLINE)
    assert (found.device.type, found.shape, int(found[-1])) == (device, (1 << 20,), (1 << 20) - 1)


@pytest.mark.parametrize("engine", ["mpi", "dask"])
def test_a_device_that_ranks_do_not_have_is_an_error_with_a_remedy(client4, engine):
    with raises(InvalidRequest, option="device", given="cuda:99"):
        StandardScaler(engine=engine, device="cuda:99").fit(place(X))
    with raises(InvalidRequest, option="device", given="cuda:99"):
        client4.gather(map_blocks(len, place(X, device="cuda:99")))


@pytest.mark.parametrize(
    ("other", "kind"), [(pd.DataFrame({"a": X[:, 0]}), "a pandas.DataFrame"), (LABELS.astype(str), "an array of <U")]
)
def test_only_arrays_of_numbers_are_placed_on_a_device(client4, other, kind):
    with pytest.raises(PlacementError):
        place(X, other, device="cpu")
