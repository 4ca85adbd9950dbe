"""K-means against scikit-learn's, on any number of parts in this process."""

from __future__ import annotations

import itertools
import pickle
import tracemalloc

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import cluster
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning
from support import refused
from support.sklearn_checks import accepted_by_scikit_learn

from workbench.errors import RankLost
from workbench.ml import KMeans, checks
from workbench.ml.checks import Checks, make
from workbench.ml.engine import kept_arrays
from workbench.ml.engine.parts import LocalParts
from workbench.ml.kmeans import fit as kmeans_fit
from workbench.ml.kmeans.part import KMeansPart

# Rows for the first centers are drawn by their numbers, and a row that weighs twice as much is not two rows; for
# scikit-learn's own K-means these checks are left out. From given centers they hold.
OF_WEIGHTS = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data")


def blobs(rows=2000, away=0.0, dtype=np.float64):
    X, _ = make_blobs(rows, 6, centers=12, random_state=5)
    return np.ascontiguousarray(X + away, dtype)


def weights(rows):
    return np.random.default_rng(7).uniform(0.1, 2.0, size=rows)


def parts_of(X, number, weight=None):
    starts = [0, *itertools.accumulate(len(piece) for piece in np.array_split(X, number))]
    pieces = np.array_split(X, number)
    of_pieces = [None] * number if weight is None else np.array_split(weight, number)
    return LocalParts([KMeansPart(*each) for each in zip(pieces, [None] * number, of_pieces, starts[:-1], strict=True)])


def settings(X, clusters, **options):
    given = {
        "init": "k-means||",
        "n_init": 1,
        "max_iter": 300,
        "tol": 1e-4,
        "seed": 3,
        "rows": X.shape[0],
    } | options
    return kmeans_fit.Settings(n_clusters=clusters, **given)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@accepted_by_scikit_learn(KMeans(n_clusters=2), but=OF_WEIGHTS)
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def test_given_centers_leave_the_generator_of_numpy_alone():
    before = np.random.get_state(legacy=False)["state"]["pos"]  # noqa: NPY002  (that of the user)
    KMeans(2, init=np.eye(2, 8)).fit(np.eye(8))
    assert np.random.get_state(legacy=False)["state"]["pos"] == before  # noqa: NPY002


@accepted_by_scikit_learn(KMeans(n_clusters=2, init=np.eye(2, 30)), only=OF_WEIGHTS)
def test_from_given_centers_a_weight_of_two_is_a_row_twice(estimator, check):
    check(estimator)


@pytest.mark.parametrize("clusters", [3, 12, 100])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("away", [0.0, 1e4])
def test_from_the_same_centers_it_comes_to_those_of_scikit_learn(clusters, weighted, away):
    X = blobs(away=away)
    weight = weights(len(X)) if weighted else None
    theirs = cluster.KMeans(clusters, init=X[:clusters], n_init=1).fit(X, sample_weight=weight)
    ours = KMeans(clusters, init=X[:clusters]).fit(X, sample_weight=weight)

    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    np.testing.assert_allclose(ours.inertia_, theirs.inertia_, rtol=1e-9)
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), rtol=1e-6, atol=1e-6)
    assert ours.n_iter_ == theirs.n_iter_


# Of 1400 seeds these are the fits in which a cluster loses its last row in a step that counts only the rows that move.
@pytest.mark.parametrize("seed", [710, 895])
def test_a_cluster_of_weighted_rows_that_becomes_empty_is_moved_as_by_scikit_learn(seed):
    random = np.random.default_rng(seed)
    X = random.normal(size=(150, 2))
    weight = random.choice([0.1, 0.2, 0.3, 0.7], 150)
    first = X[random.choice(150, 40, replace=False)]
    theirs = cluster.KMeans(40, init=first, n_init=1, tol=0).fit(X, sample_weight=weight)
    ours = KMeans(40, init=first, tol=0).fit(X, sample_weight=weight)

    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours.inertia_, theirs.inertia_, rtol=1e-10)
    assert ours.n_iter_ == theirs.n_iter_


def test_single_precision_far_from_zero_keeps_its_digits():
    X = blobs(away=1e3, dtype=np.float32)
    theirs = cluster.KMeans(12, init=X[:12], n_init=1).fit(X)
    ours = KMeans(12, init=X[:12]).fit(X)

    assert ours.cluster_centers_.dtype == np.float32
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-5)
    assert (ours.labels_ == theirs.labels_).mean() > 0.999


def test_sparse_rows_give_what_dense_ones_give():
    X = blobs()
    X[np.abs(X) < 4] = 0
    dense = KMeans(5, init=X[:5]).fit(X)
    scarce = KMeans(5, init=X[:5]).fit(sparse.csr_array(X))

    np.testing.assert_allclose(scarce.cluster_centers_, dense.cluster_centers_, rtol=1e-9)
    np.testing.assert_array_equal(scarce.predict(sparse.csr_array(X)), dense.labels_)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("spread", [1e-7, 1e-3, 1.0])
def test_the_inertia_is_sure_however_small_it_is_beside_the_distances_of_the_clusters(spread, weighted):
    random = np.random.default_rng(1)
    places = 10 * random.normal(size=(4, 3))
    X = np.repeat(places, 500, axis=0) + spread * random.normal(size=(2000, 3))
    weight = weights(len(X)) if weighted else None
    theirs = cluster.KMeans(4, init=places, n_init=1).fit(X, sample_weight=weight)
    ours = KMeans(4, init=places).fit(X, sample_weight=weight)

    np.testing.assert_allclose(ours.inertia_, theirs.inertia_, rtol=1e-9)


def test_rows_of_zeros_have_no_inertia():
    part = KMeansPart(np.zeros((50, 3)), None, None, 0)

    assert part.inertia(np.zeros((4, 3))) == 0


def test_random_centers_are_drawn_by_the_weights_of_the_rows():
    X = np.arange(8.0)[:, None]
    weight = np.array([0, 0, 1, 1, 1, 1, 1, 5.0])
    asked = [settings(X, 2, init="random", seed=seed, max_iter=1) for seed in range(2000)]
    drawn = np.array([kmeans_fit.first(parts_of(X, 3, weight), each, 0)[:, 0] for each in asked])

    assert (drawn[:, 0] != drawn[:, 1]).all()
    assert (drawn >= 2).all()
    # Half of them draw it first, and of the others, who have drawn one of weight 1 first, 5 of 9 then.
    assert (drawn == 7).any(axis=1).mean() == pytest.approx(0.5 + 0.5 * 5 / 9, abs=0.04)
    alone = np.array([kmeans_fit.first(parts_of(X, 1, weight), each, 0)[:, 0] for each in asked])
    np.testing.assert_array_equal(drawn, alone)


def test_clusters_become_empty_where_blocks_have_fewer_rows_than_they_are():
    X = np.concatenate([np.zeros(4), [10, 20, 30, 40]])[:, None]
    first = np.array([[0.0], [1e3], [2e3], [3e3], [4e3]])
    found = kmeans_fit.fit(parts_of(X, 8), settings(X, 5, init=first, max_iter=1))

    np.testing.assert_array_equal(np.sort(found.centers[:, 0]), [0, 10, 20, 30, 40])


@pytest.mark.parametrize("number", [2, 5])
@pytest.mark.parametrize("init", ["k-means||", "random"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_number_of_parts_changes_nothing_but_rounding(number, init, weighted):
    X = blobs()
    weight = weights(len(X)) if weighted else None
    asked = settings(X, 12, init=init, n_init=2)
    whole = kmeans_fit.fit(parts_of(X, 1, weight), asked)
    found = kmeans_fit.fit(parts_of(X, number, weight), asked)

    np.testing.assert_allclose(found.centers, whole.centers, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.inertia, whole.inertia, rtol=1e-9)
    assert found.iterations == whole.iterations


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("made", ["float64", "float32", "sparse", "weighted", "anew"])
@pytest.mark.parametrize("away", [0.0, 1e3, 1e6])
def test_its_tolerance_is_a_share_of_the_variance(number, made, away):
    X = blobs(away=away, dtype="float32" if made == "float32" else "float64")
    given = sparse.csr_array(X) if made == "sparse" else X
    bounds = np.linspace(0, len(X), number + 1).astype(int)
    weight = weights(len(X)) if made == "weighted" else None
    pieces = [slice(*each) for each in itertools.pairwise(bounds)]
    weighed = [None if weight is None else weight[piece] for piece in pieces]
    parts = [KMeansPart(given[piece], None, its, piece.start) for piece, its in zip(pieces, weighed, strict=True)]
    if made != "sparse":
        LocalParts(parts).sum("center", X.mean(axis=0, dtype=np.float64))
    for _ in range(2 if made == "anew" else 1):
        _, spread = LocalParts(parts).sum("first_step", X[:5])

    tolerance = 1e-4 if made == "sparse" and away else 1e-9
    np.testing.assert_allclose(kmeans_fit._spread(*spread)[0], X.astype(np.float64).var(axis=0).mean(), rtol=tolerance)


def test_a_fit_asks_all_parts_once_before_the_first_step_and_once_for_each_step():
    X, asked = blobs(), []

    class Asked(LocalParts):
        def each(self, method, *args):
            asked.append(method)
            return super().each(method, *args)

    kmeans_fit.fit(
        Asked([KMeansPart(X - X.mean(axis=0), None, None, 0)] * 2), settings(X, 3, init=X[:3], max_iter=3, tol=0)
    )
    assert asked == ["weight_and_sample", "first_step", "step", "step", "assign"]


@pytest.mark.parametrize("tol", [0.0, 1e-4])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_of_several_runs_each_is_as_by_itself_and_the_best_is_taken(tol):
    X = blobs(400)
    for most in (1, 3, 50):
        asked = settings(X, 5, init="random", n_init=4, max_iter=most, tol=tol)
        parts = parts_of(X, 3)
        each = [kmeans_fit.lloyd(parts, kmeans_fit.first(parts, asked, run), most, tol) for run in range(4)]
        found = kmeans_fit.fit(parts_of(X, 3), asked)

        best = min(each, key=lambda fit: fit.inertia)
        np.testing.assert_allclose(found.inertia, best.inertia, rtol=1e-9)
        assert found.iterations == best.iterations


@pytest.mark.parametrize("away", [0, 3])
def test_ties_are_broken_alike_on_any_number_of_parts(away):
    for seed in range(20):
        X = np.random.default_rng(seed).integers(0, 6, (2001, 2)).astype(float) + away
        asked = settings(X, 4, init=X[:4] + np.arange(4)[:, None] / 8)
        inertia = [kmeans_fit.fit(parts_of(X, number), asked).inertia for number in (1, 2, 3, 7)]
        np.testing.assert_allclose(inertia, inertia[0], rtol=1e-9)


@pytest.mark.parametrize(("made", "clusters"), [("dense", 1), ("dense", 40), ("sparse", 2)])
@pytest.mark.parametrize("init", ["given", "k-means||"])
def test_a_part_takes_the_work_space_that_it_states(clusters, init, made):
    random = np.random.default_rng(0)
    rows = 40_000
    X = random.normal(size=(rows, 32)) + 5
    if made == "sparse":
        X = sparse.random_array((rows, 2000), density=1e-3, rng=random, format="csr")
    dense = X[:clusters].toarray() if made == "sparse" else X[:clusters]
    asked = settings(X, clusters, init=dense + 0.0 if init == "given" else init, rows=rows, max_iter=3, tol=1e-9)
    part = KMeansPart(X, None, None, 0)
    tracemalloc.start()
    kmeans_fit.fit(LocalParts([part]), asked)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    # 250 rows of 2000 features, and beside the part what k-means|| draws, and its centers
    drawn = 10 * clusters * X.shape[1] * 8 * 4
    assert peak < 12 * rows + (8 << 20) + drawn


@pytest.mark.parametrize("number", [1, 4])
def test_empty_clusters_get_the_farthest_rows_as_in_scikit_learn(number):
    X = blobs(500)
    # Three centers that no row is nearest to.
    init = np.vstack([X[:4], X[:3] + 1e6])
    theirs = cluster.KMeans(7, init=init, n_init=1).fit(X)
    found = kmeans_fit.fit(parts_of(X, number), settings(X, 7, init=init))

    np.testing.assert_allclose(found.centers, theirs.cluster_centers_, rtol=1e-9)


def test_its_first_centers_are_as_good_as_those_of_scikit_learn():
    X = blobs()
    theirs = np.median([cluster.KMeans(12, n_init=1, random_state=seed).fit(X).inertia_ for seed in range(9)])
    ours = np.median([KMeans(12, random_state=seed).fit(X).inertia_ for seed in range(9)])

    assert ours < 1.05 * theirs


@pytest.mark.parametrize("data", ["lattice", "heavy tails", "small clusters beside a large one", "ever farther apart"])
def test_its_first_centers_are_as_good_as_those_of_scikit_learn_where_that_is_hard(data):
    random, seeds = np.random.default_rng(2), range(11)
    if data == "lattice":
        X, clusters = random.integers(0, 6, (700, 2)).astype(float), 9
    elif data == "heavy tails":
        X, clusters = random.standard_t(2, size=(700, 4)), 16
    elif data == "ever farther apart":
        far = [random.normal(size=(20, 4)) + 50 * number**2 * random.normal(size=4) for number in range(1, 10)]
        X, clusters = np.concatenate([random.normal(size=(2000, 4)), *far]), 10
    else:
        small = [0.1 * random.normal(size=(20, 4)) + 30 * random.normal(size=4) for _ in range(19)]
        X, clusters = np.concatenate([random.normal(size=(700, 4)), *small]), 20
    theirs = [cluster.KMeans(clusters, n_init=1, random_state=seed).fit(X).inertia_ for seed in seeds]
    ours = [KMeans(clusters, random_state=seed).fit(X).inertia_ for seed in seeds]

    assert np.median(ours) < 1.02 * np.median(theirs)
    assert max(ours) < 1.05 * max(theirs)


def test_its_first_centers_are_as_good_where_rows_are_far_from_zero():
    X = blobs(1500)
    near, far = ([KMeans(12, random_state=seed).fit(X + away).inertia_ for seed in range(9)] for away in (0, 1e9))

    assert np.median(far) < 1.02 * np.median(near)
    assert max(far) < 1.05 * max(near)


@pytest.mark.parametrize("clusters", [10, 100])
def test_first_centers_cost_as_much_as_a_few_iterations(clusters, monkeypatch):
    X, compared = blobs(20_000), []

    def counted(part, centers, scored=KMeansPart._scored):
        # Candidates are compared with centers, too, but these are few.
        compared.append(len(part._X) * len(centers) if len(part._X) > 5 * clusters else 0)
        return scored(part, centers)

    monkeypatch.setattr(KMeansPart, "_scored", counted)
    seeds = range(3)
    for seed in seeds:
        kmeans_fit.first(parts_of(X, 2), settings(X, clusters, seed=seed), 0)

    assert 2 * clusters * len(X) * len(seeds) < sum(compared) < 7 * clusters * len(X) * len(seeds)


def test_many_first_centers_are_found_in_few_iterations_of_one_process(monkeypatch):
    X, steps = np.random.default_rng(1).normal(size=(2500, 3)), []
    monkeypatch.setattr(KMeansPart, "step", lambda *args, step=KMeansPart.step: steps.append(1) or step(*args))
    first = kmeans_fit.first(parts_of(X, 1), settings(X, 301), 0)

    assert first.shape == (301, 3)
    assert len(steps) <= 10


def test_the_same_seed_gives_the_same_centers():
    X = blobs()
    first, again, other = (KMeans(5, random_state=seed).fit(X).cluster_centers_ for seed in (1, 1, 2))

    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("init", ["k-means||", "random", np.eye(4, 2)])
def test_rows_that_agree_are_told_of_once_as_by_scikit_learn(init):
    X = np.repeat([[1.0, 2.0], [3.0, 4.0]], 20, axis=0)
    with pytest.warns(ConvergenceWarning) as told:
        model = KMeans(4, init=init, random_state=0).fit(X)
    with pytest.warns(ConvergenceWarning) as theirs:
        cluster.KMeans(4, n_init=1, random_state=0).fit(X)

    assert [str(warning.message) for warning in told] == [str(warning.message) for warning in theirs]

    assert model.inertia_ == 0
    assert {tuple(center) for center in model.cluster_centers_} <= {(1.0, 2.0), (3.0, 4.0)}


def test_a_fit_that_does_not_converge_warns():
    X = blobs()
    with pytest.warns(ConvergenceWarning):
        assert KMeans(12, random_state=0, max_iter=1).fit(X).n_iter_ == 1


def test_a_callback_is_told_of_each_iteration():
    X, told = blobs(), []
    model = KMeans(12, random_state=0, callback=told.append).fit(X)

    assert [record["iteration"] for record in told] == list(range(1, model.n_iter_ + 1))
    assert told[0]["moved"] == len(X)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"n_clusters": 3000}, r"n_samples=2000 should be >= n_clusters=3000\."),
        ({"n_clusters": 0}, "'n_clusters' parameter .* Got 0 instead"),
        ({"init": "k-means"}, "'init' parameter .* Got 'k-means' instead"),
        ({"n_init": "few"}, "'n_init' parameter .* Got 'few' instead"),
        ({"init": np.zeros((3, 5))}, r"shape of the initial centers \(3, 5\) does not match .* 8 and of features 6"),
        ({"init": np.full((8, 6), np.nan)}, "Input init contains NaN"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_computed(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        KMeans(**options).fit(blobs())


class Passes:
    """Counts how often rows are compared with centers in a fit."""

    def __init__(self, monkeypatch):
        self.number = 0
        nearest = KMeansPart._nearest

        def counted(part, centers):
            self.number += 1
            return nearest(part, centers)

        monkeypatch.setattr(KMeansPart, "_nearest", counted)


@pytest.mark.parametrize("weighted", [False, True])
def test_labels_and_inertia_cost_no_pass_where_no_row_moves_any_more(weighted, monkeypatch):
    X, passes = blobs(), Passes(monkeypatch)
    weight = weights(len(X)) if weighted else None
    monkeypatch.setattr(KMeansPart, "_squared_distances", lambda *_: pytest.fail("the rows were passed over"))
    model = KMeans(12, init=X[:12], tol=0).fit(X, sample_weight=weight)

    assert passes.number == model.n_iter_
    monkeypatch.undo()
    np.testing.assert_array_equal(model.labels_, model.predict(X))
    np.testing.assert_allclose(-model.score(X, sample_weight=weight), model.inertia_, rtol=1e-10)


def test_a_fit_without_labels_makes_no_pass_after_its_last_iteration(monkeypatch):
    X, passes = blobs(), Passes(monkeypatch)
    options = {"init": X[:12], "max_iter": 3, "tol": 0}
    with pytest.warns(ConvergenceWarning):
        bare = KMeans(12, compute_labels=False, **options).fit(X)
    assert passes.number == 3
    assert not hasattr(bare, "labels_")
    assert not hasattr(bare, "inertia_")

    with pytest.warns(ConvergenceWarning):
        model = KMeans(12, **options).fit(X)
    assert passes.number == 3 + 4
    np.testing.assert_array_equal(model.cluster_centers_, bare.cluster_centers_)
    np.testing.assert_array_equal(model.labels_, model.predict(X))
    with pytest.warns(ConvergenceWarning):
        assert not hasattr(model.set_params(compute_labels=False).fit(X), "labels_")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_labels_of_several_runs_are_those_of_the_best():
    X = blobs(400)
    for seed in range(6):
        model = KMeans(5, init="random", n_init=4, max_iter=4, random_state=seed).fit(X)
        np.testing.assert_array_equal(model.labels_, model.predict(X))
        np.testing.assert_allclose(model.inertia_, -model.score(X), rtol=1e-10)


class Left(kept_arrays.Keeps):
    """A part that keeps two arrays."""

    def __init__(self, start):
        self._start = start

    def kept(self):
        return np.array([self._start]), np.array([-self._start])


def test_what_parts_leave_is_taken_once_and_not_left_for_ever():
    for number in range(20):
        for start in (1, 2):
            Left(start).leave(f"fit {number}")
    assert [kept_arrays.take("fit 19", start, which)[0] for start in (1, 2) for which in (1, 0)] == [-1, 1, -2, 2]
    for gone in ("fit 19", "fit 3"):
        with pytest.raises(RankLost):
            kept_arrays.take(gone, 1, 0)
    for number, start, which in itertools.product(range(4, 19), (1, 2), (0, 1)):
        assert abs(kept_arrays.take(f"fit {number}", start, which)[0]) == start
        with pytest.raises(RankLost):
            kept_arrays.take(f"fit {number}", start, which)


def test_a_model_that_travels_takes_no_blocks_along():
    X = blobs()
    model = KMeans(5, random_state=0).fit(X)
    model.labels_ = da.from_array(model.labels_)
    travelled = pickle.loads(pickle.dumps(model))  # noqa: S301

    assert not hasattr(travelled, "labels_")
    assert travelled.inertia_ == model.inertia_
    assert model.labels_.shape == (len(X),)


@pytest.mark.parametrize("init", ["k-means||", "random", np.eye(4, 6)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_numbers_that_are_not_finite_are_found_in_the_first_pass(value, init, dtype, monkeypatch):
    X = blobs(3001, dtype=dtype)
    # A row that is in no sample.
    spoilt = np.where(np.arange(len(X))[:, None] == 1000, value, X)
    good, bad = (
        make(KMeansPart, Checks("KMeans"), start, each.astype(dtype), None, None)
        for start, each in ((0, X), (len(X), spoilt))
    )
    with refused.not_finite("NaN" if np.isnan(value) else "infinity"):
        kmeans_fit.fit(LocalParts([good, bad]), settings(X, 4, init=init, rows=2 * len(X)))

    monkeypatch.setattr(checks, "_is_finite", lambda *_: pytest.fail("the rows were searched"))
    make(KMeansPart, Checks("KMeans"), 0, X, None, None)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("init", ["k-means||", "random", np.eye(4, 6)])
@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e20), ("float64", 1e155), ("float64", 1e300)])
def test_numbers_whose_products_overflow_are_refused(dtype, size, init, form):
    X = form((blobs() * size).astype(dtype))
    with refused.overflow():
        KMeans(4, init=init, random_state=0).fit(X)


def test_labels_of_rows_whose_products_overflow_are_refused():
    X = blobs() * 1e20
    model = KMeans(4, init=X[:4]).fit(X)
    with refused.overflow():
        model.predict(X.astype(np.float32))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_score_is_that_of_scikit_learn_also_far_from_zero(weighted):
    X = blobs(away=1e6)
    weight = weights(len(X)) if weighted else None
    model = KMeans(12, init=X[:12]).fit(X)
    theirs = cluster.KMeans(12, init=X[:12], n_init=1).fit(X)
    expected = theirs.score(X, sample_weight=weight)

    np.testing.assert_allclose(model.score(X, sample_weight=weight), expected, rtol=1e-9)
    lazy = da.from_array(X, chunks=(700, 6))
    its = weight if weight is None else da.from_array(weight, chunks=700)
    np.testing.assert_allclose(model.score(lazy, sample_weight=its), expected, rtol=1e-9)


def test_weights_of_a_score_have_one_number_for_each_row():
    X, weight = blobs(), weights(len(blobs()))
    table, of_table = dd.from_pandas(pd.DataFrame(X), npartitions=3), dd.from_pandas(pd.Series(weight), npartitions=3)
    lazy = da.from_array(X, chunks=(700, 6))
    model = KMeans(4, init=X[:4]).fit(X)
    with dask.config.set(scheduler="synchronous"):
        for rows, its in ((lazy, weight), (lazy, of_table), (table, of_table), (table, weight.tolist())):
            np.testing.assert_allclose(model.score(rows, sample_weight=its), model.score(X, sample_weight=weight))
        np.testing.assert_allclose(model.score(lazy, sample_weight=2), 2 * model.score(X))
        for wrong in (weight[:, None], weight[:1], weight[1:]):
            with pytest.raises(ValueError, match=r"sample_weight.shape == .*, expected \(2000,\)!"):
                model.score(lazy, sample_weight=da.from_array(wrong))


def test_clusters_of_a_fit_without_labels_are_those_of_predict():
    X = blobs()
    model = KMeans(4, init=X[:4], compute_labels=False)
    np.testing.assert_array_equal(model.fit_predict(X), KMeans(4, init=X[:4]).fit_predict(X))


def test_results_for_dask_arrays_have_the_stated_shape_and_dtype():
    X = blobs()
    model = KMeans(4, init=X[:4].astype(np.float32)).fit(X.astype(np.float32)).set_params(n_clusters=9)
    lazy = model.transform(da.from_array(X, chunks=(700, 6)))
    found = lazy.compute(scheduler="sync")
    assert (lazy.shape, lazy.dtype) == (found.shape, found.dtype) == ((2000, 4), np.float64)


def test_a_score_takes_no_room_for_the_distances_to_all_centers():
    X = blobs(40_000)
    model = KMeans(200, init=X[:200], max_iter=300, compute_labels=False).fit(X[:2000])
    tracemalloc.start()
    model.score(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 20 * len(X) + (8 << 20)


def test_its_outputs_are_named_as_by_scikit_learn():
    X = blobs()
    theirs = cluster.KMeans(3, init=X[:3], n_init=1).set_output(transform="pandas").fit(X)
    ours = KMeans(3, init=X[:3]).set_output(transform="pandas").fit(X)

    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out())
    assert list(ours.transform(X).columns) == list(theirs.transform(X).columns)


def test_random_centers_are_drawn_ten_times_unless_that_is_said_otherwise():
    X = blobs(400)
    best = KMeans(9, init="random", random_state=0).fit(X)
    asked = KMeans(9, init="random", n_init=10, random_state=0).fit(X)

    np.testing.assert_array_equal(best.cluster_centers_, asked.cluster_centers_)
    assert best.inertia_ < KMeans(9, init="random", n_init=1, random_state=0).fit(X).inertia_


def test_a_model_travels():
    X = blobs()
    model = KMeans(5, random_state=0).fit(X)

    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.labels_)  # noqa: S301


def test_its_outputs_of_a_dask_array_stay_one_and_are_named():
    X = blobs()
    model = KMeans(3, init=X[:3]).set_output(transform="pandas").fit(X)
    found = model.transform(da.from_array(X, chunks=(700, 6)))

    assert list(found.columns) == ["kmeans0", "kmeans1", "kmeans2"]
    np.testing.assert_allclose(found.compute().to_numpy(), model.transform(X).to_numpy())


@pytest.mark.parametrize("away", [0.0, 1e9])
@pytest.mark.parametrize("init", ["k-means||", "given"])
def test_rows_that_are_all_the_same_come_to_an_end(init, away):
    X = np.repeat(np.random.default_rng(0).normal(size=(1, 8)) + away, 160, axis=0)
    with pytest.warns(ConvergenceWarning) as told:
        model = KMeans(3, init=X[:3] if init == "given" else init, random_state=0).fit(X)

    assert len(told) == 1
    assert model.n_iter_ < 5
    np.testing.assert_allclose(model.cluster_centers_, X[:3], rtol=1e-12)


@pytest.mark.parametrize("number", [1, 3])
def test_a_row_that_weighs_nothing_makes_no_cluster_of_an_empty_one(number):
    X = np.array([0.0, 1, 10, 12, 100])[:, None]
    first = np.array([[0.0], [10], [1e3]])
    found = kmeans_fit.fit(parts_of(X, number, np.array([1.0, 1, 1, 2, 0])), settings(X, 3, init=first))

    np.testing.assert_allclose(np.sort(found.centers[:, 0]), [0.5, 10, 12])
