"""What all estimators share: parameters of scikit-learn, copies, engines, and results of the type that is set."""

from __future__ import annotations

import threading

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from workbench.ml import LinearRegression, StandardScaler

X = np.random.default_rng(3).normal(size=(60, 5))


class Curve:
    """A callback that collects what it is called with; its lock cannot be copied."""

    def __init__(self):
        self.records, self.lock = [], threading.Lock()

    def __call__(self, record):
        self.records.append(record)

    def add(self, record):
        self.records.append(record)


@pytest.mark.parametrize("choose", [lambda curve: curve, lambda curve: curve.add], ids=["object", "method"])
def test_a_clone_calls_the_callback_of_the_user(choose):
    curve = Curve()
    model = LinearRegression(callback=choose(curve), verbose=0)

    clone(model).fit(X, X[:, 0])
    assert len(curve.records) == 3
    clone(make_pipeline(StandardScaler(callback=choose(curve)), model)).fit(X, X[:, 0])
    assert len(curve.records) == 7
    assert clone(model).callback == model.callback


def test_rows_are_scaled_in_place_if_they_are_not_to_be_copied():
    given = X.copy()
    found = StandardScaler(copy=False).fit(given).transform(given)

    assert np.shares_memory(found, given)
    np.testing.assert_array_equal(found, StandardScaler().fit_transform(X))
    kept = X.copy()
    StandardScaler().fit(kept).inverse_transform(kept)
    np.testing.assert_array_equal(kept, X)


def test_blocks_are_never_scaled_in_place():
    given = X.copy()
    found = StandardScaler(copy=False).fit(X).transform(da.from_array(given, chunks=(20, 5)))

    np.testing.assert_array_equal(found.compute(scheduler="sync"), StandardScaler().fit_transform(X))
    np.testing.assert_array_equal(given, X)
