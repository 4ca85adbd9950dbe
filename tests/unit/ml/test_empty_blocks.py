"""A fit on ranks of which some have no rows: the model is that of all rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import preprocessing
from sklearn.impute import SimpleImputer
from support.recipes import ONE_HOT

from workbench.ml import (
    PCA,
    KMeans,
    LinearRegression,
    LogisticRegression,
    NearestNeighbors,
    Recipe,
    Ridge,
    StandardScaler,
    TruncatedSVD,
)
from workbench.ml.algebra.sums import join_triangles
from workbench.ml.engine.parts import LocalParts
from workbench.ml.labels import classes_of_both
from workbench.ml.linear.part import LinearPart
from workbench.placement import pinning, sources

ROWS = 60
RANDOM = np.random.default_rng(1)
X = RANDOM.normal([5.0, 0.0, -3.0], size=(ROWS, 3))
TARGET = X @ [1.0, -2.0, 0.5] + RANDOM.normal(size=ROWS)
LABELS = np.array(["early", "late", "never"])[RANDOM.integers(0, 3, ROWS)]
BOOLEANS = TARGET > 3.5
WEIGHT = RANDOM.uniform(0.5, 2.0, ROWS)
FIRST_EMPTY, LAST_EMPTY = (0, 40, 0, 20), (25, 0, 35, 0)
MODELS = {
    "logistic": (LogisticRegression(tol=1e-8), LABELS, "coef_"),
    "newton": (LogisticRegression(tol=1e-8, solver="newton-cholesky"), BOOLEANS, "coef_"),
    "balanced": (LogisticRegression(tol=1e-8, class_weight="balanced"), LABELS, "coef_"),
    "linear": (LinearRegression(), TARGET, "coef_"),
    "several targets": (Ridge(fit_intercept=False), np.stack([TARGET, BOOLEANS], 1), "coef_"),
    "kmeans": (KMeans(3, random_state=0), None, "cluster_centers_"),
    "random rows": (KMeans(3, init="random", n_init=3, random_state=0), None, "cluster_centers_"),
    "scaler": (StandardScaler(with_mean=False), None, "scale_"),
    "pca": (PCA(2), None, "components_"),
    "tsqr": (PCA(2, solver="tsqr"), None, "components_"),
    "svd": (TruncatedSVD(2, solver="randomized", random_state=0), None, "components_"),
}
CASES = [(name, np.asarray, False, FIRST_EMPTY) for name in MODELS]
CASES += [(name, sparse.csr_array, True, LAST_EMPTY) for name in [*MODELS][:-3]]


SCALED = [(preprocessing.StandardScaler(), [0, 1])]


def laid_out(client, data, sizes):
    """Place data with these numbers of rows on the ranks."""
    pins = [
        pinning.Pin(rank.address, size)
        for rank, size in zip(pinning.target_workers(client, "rank"), sizes, strict=True)
    ]
    return sources.build_blocks(client, sources.inspect_collection("X", data), pins, "rank")


@pytest.mark.parametrize(("name", "kind", "weighted", "sizes"), CASES)
def test_a_model_is_that_of_all_rows(client, name, kind, weighted, sizes):
    model, target, result = MODELS[name]
    rows = kind(X)
    options = {} if target is None else {"y": target}
    if weighted:
        options["sample_weight"] = WEIGHT
    here = getattr(model.fit(rows, **options), result)
    placed, *others = (laid_out(client, value, sizes) for value in (rows, *options.values()))

    np.testing.assert_allclose(
        getattr(model.fit(placed, **dict(zip(options, others, strict=True))), result), here, atol=1e-9
    )
    assert model.engine_ == "dask"
    if isinstance(model, KMeans):
        assert model.labels_.chunks == (sizes,)
        np.testing.assert_array_equal(model.labels_.compute(), model.predict(X))


@pytest.mark.parametrize("sizes", [FIRST_EMPTY, LAST_EMPTY])
def test_neighbors_are_those_of_all_rows(client, sizes):
    here, placed = NearestNeighbors(n_neighbors=4, radius=1.0).fit(X), laid_out(client, X, sizes)
    model = NearestNeighbors(n_neighbors=4, radius=1.0).fit(placed)

    for queries in (None, X[:7]):
        for method in ("kneighbors", "radius_neighbors"):
            for ours, theirs in zip(getattr(model, method)(queries), getattr(here, method)(queries), strict=True):
                for own, other in zip(np.asarray(ours), theirs, strict=True):
                    np.testing.assert_allclose(own, other)
    # The queries of a rank may be none, too.
    np.testing.assert_array_equal(
        model.kneighbors(laid_out(client, X + 0.1, sizes[::-1]))[1].compute(), here.kneighbors(X + 0.1)[1]
    )


@pytest.mark.parametrize("sizes", [FIRST_EMPTY, LAST_EMPTY])
def test_a_table_may_have_blocks_without_rows(client, sizes):
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(label=LABELS)
    placed = laid_out(client, table, sizes)
    recipe = Recipe([([SimpleImputer(strategy="median"), preprocessing.StandardScaler()], ["a"]), (ONE_HOT, ["label"])])

    np.testing.assert_allclose(recipe.fit_transform(placed).compute(), recipe.fit_transform(table), atol=1e-9)
    model = LogisticRegression(tol=1e-8).fit(placed[["a", "b", "c"]], placed["label"])
    np.testing.assert_allclose(model.coef_, LogisticRegression(tol=1e-8).fit(X, LABELS).coef_, atol=1e-9)


@pytest.mark.parametrize("sizes", [FIRST_EMPTY, (0, 0, 3, 0)])
def test_a_target_that_is_computed_from_the_rows_has_their_blocks(client, sizes):
    rows = np.vstack([np.eye(3) + 1, X])[: sum(sizes)]
    placed = laid_out(client, rows, sizes)

    model = LinearRegression(fit_intercept=False).fit(placed, placed[:, 0])
    np.testing.assert_allclose(model.coef_, [1, 0, 0], atol=1e-9)


@pytest.mark.parametrize("labels", [[0, 1], [False, True], ["early", "late"]])
def test_a_block_without_rows_does_not_change_the_type_of_the_classes(labels):
    none, some = np.empty(0), np.array(labels)

    for both in (classes_of_both(none, some), classes_of_both(some, none)):
        np.testing.assert_array_equal(both, some)
        assert both.dtype == some.dtype


def test_a_qr_decomposition_of_no_rows_adds_none():
    none, some = (LinearPart(X[rows], TARGET[rows], None, 0) for rows in (slice(0), slice(None)))
    middle, target, scale = X.mean(axis=0), np.zeros(1), np.ones(3)
    assert none.triangle(middle, target, scale).shape == (0, 4)

    fits = [
        LocalParts(parts).fold(join_triangles, "triangle", middle, target, scale) for parts in ([some], [none, some])
    ]
    np.testing.assert_array_equal(*map(np.abs, fits))


@pytest.mark.parametrize("model", [KMeans(2), StandardScaler(), LinearRegression(), NearestNeighbors(), Recipe(SCALED)])
def test_no_rows_on_all_ranks_are_refused_as_by_scikit_learn(client, model):
    placed = laid_out(client, X[:0], (0, 0, 0, 0))
    target = [laid_out(client, TARGET[:0], (0, 0, 0, 0))] if isinstance(model, LinearRegression) else []

    with pytest.raises(ValueError, match=r"^Found array with 0 sample\(s\) \(shape=\(0, 3\)\) while a minimum of 1 is"):
        model.fit(placed, *target)
