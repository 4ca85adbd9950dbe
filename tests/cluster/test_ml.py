"""Estimators whose rows lie on the ranks of a cluster: the same on both engines, and what goes wrong."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, Event, LocalCluster
from scipy import sparse
from sklearn.cluster import KMeans as LocalKMeans
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression as LocalLogisticRegression
from support import refused
from support.processes import DEADLINE, until
from support.raised import raises
from threadpoolctl import threadpool_info, threadpool_limits

from workbench import MPICluster, place, run_on_ranks, spmd
from workbench.commands import actions
from workbench.deploy import registry
from workbench.errors import HeadUnreachable, InvalidRequest, RankLost
from workbench.ml import (
    PCA,
    KMeans,
    LinearRegression,
    LogisticRegression,
    NearestNeighbors,
    StandardScaler,
)
from workbench.ml.checks import Checks
from workbench.ml.data import Data
from workbench.ml.engine import fitting
from workbench.ml.engine.mpi_parts import Task
from workbench.placement.sources import futures_in

ROWS, FEATURES = 1003, 5
RANDOM = np.random.default_rng(11)
X = RANDOM.normal(size=(ROWS, FEATURES)) + 0.3
SCORES = X @ RANDOM.normal(size=(FEATURES, 3)) + RANDOM.gumbel(size=(ROWS, 3))
Y = np.array(["early", "late", "never"])[SCORES.argmax(axis=1)]
WEIGHT = RANDOM.uniform(0.1, 2.0, size=ROWS)
# Takes seconds to fit: long enough to interfere.
MANY = RANDOM.normal(size=(50_000, FEATURES))
BOTH = pytest.mark.parametrize("engine", ["mpi", "dask"])
MPI_ON_EVERY_FLAVOR = pytest.mark.parametrize("engine", [pytest.param("mpi", marks=pytest.mark.mpi_flavor), "dask"])


def as_dask(*arrays):
    return [da.from_array(array, chunks=(300, *array.shape[1:])) for array in arrays]


def works(client):
    """Return whether the world is as good as new."""
    return run_on_ranks(ranks, client=client, timeout=DEADLINE) == [0, 1, 2, 3]


def ranks(comm):
    comm.Barrier()
    return comm.rank


@MPI_ON_EVERY_FLAVOR
def test_logistic_regression_finds_the_weights_of_scikit_learn(client4, engine):
    theirs = LocalLogisticRegression(tol=1e-8, class_weight="balanced").fit(X, Y, WEIGHT)
    lazy = as_dask(X, Y, WEIGHT)
    ours = LogisticRegression(tol=1e-8, class_weight="balanced", engine=engine).fit(*lazy)

    assert ours.engine_ == engine
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-9)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    np.testing.assert_array_equal(ours.predict(lazy[0]).compute(), theirs.predict(X))
    np.testing.assert_allclose(ours.predict_proba(lazy[0]).compute(), theirs.predict_proba(X), atol=1e-9)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-9)


@MPI_ON_EVERY_FLAVOR
def test_k_means_finds_the_centers_of_scikit_learn(client4, engine):
    theirs = LocalKMeans(4, init=X[:4], n_init=1).fit(X)
    (lazy,) = as_dask(X)
    ours = KMeans(4, init=X[:4], engine=engine).fit(lazy)

    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-9)
    np.testing.assert_array_equal(ours.labels_.compute(), theirs.labels_)
    assert ours.n_iter_ == theirs.n_iter_


@BOTH
def test_labels_lie_beside_the_rows_and_keep_them_no_longer_than_the_user_does(client4, engine):
    placed = place(X)
    model = KMeans(4, init=X[:4], engine=engine).fit(placed)
    lengths = run_on_ranks(lambda _, rows, labels: (len(rows), labels.shape), placed, model.labels_)
    assert all(labels == (rows,) for rows, labels in lengths)
    keys = {future.key for future in futures_in(placed)}

    def there(dask_scheduler):
        return set(map(str, dask_scheduler.tasks)) & set(map(str, keys))

    assert len(client4.run_on_scheduler(there)) == 4
    del placed
    until("the rows are gone", lambda: not client4.run_on_scheduler(there))
    np.testing.assert_array_equal(model.labels_.compute(), model.predict(X))
    assert "labels_" not in vars(pickle.loads(pickle.dumps(model)))  # noqa: S301


@BOTH
def test_a_fit_that_makes_no_labels_leaves_none(client4, engine):
    model = KMeans(4, init=X[:4], engine=engine, compute_labels=False).fit(as_dask(X)[0])

    assert not hasattr(model, "labels_")
    np.testing.assert_allclose(model.cluster_centers_, KMeans(4, init=X[:4]).fit(X).cluster_centers_, rtol=1e-9)
    np.testing.assert_allclose(model.score(as_dask(X)[0]), model.score(X), rtol=1e-12)


@BOTH
def test_newton_finds_the_same_on_all_ranks_far_from_zero(client4, engine):
    here = LogisticRegression(tol=1e-8, solver="newton-cholesky").fit(X, Y)
    there = LogisticRegression(tol=1e-8, solver="newton-cholesky", engine=engine).fit(*as_dask(X + 1000, Y))

    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-7)
    assert abs(there.n_iter_[0] - here.n_iter_[0]) <= 1


@BOTH
def test_fewer_distinct_rows_than_clusters_are_told_of(client4, engine):
    same = np.repeat([[1.0, 2.0], [3.0, 4.0]], 200, axis=0)
    with pytest.warns(ConvergenceWarning):
        model = KMeans(3, random_state=0, engine=engine).fit(*as_dask(same))
    assert model.inertia_ == 0


@BOTH
def test_sparse_rows_give_what_dense_ones_give(client4, engine):
    scarce = np.where(np.abs(X) < 0.8, 0, X)
    lazy = da.from_array(scarce, chunks=(300, FEATURES)).map_blocks(sparse.csr_array)
    model = LogisticRegression(tol=1e-8, engine=engine).fit(lazy, *as_dask(Y))

    np.testing.assert_allclose(model.coef_, LogisticRegression(tol=1e-8).fit(scarce, Y).coef_, atol=1e-9)
    np.testing.assert_array_equal(model.predict(lazy).compute(), model.predict(scarce))


def test_engines_draw_the_same_first_centers(client4):
    placed = place(X)
    found = [KMeans(4, random_state=5, engine=engine).fit(placed).cluster_centers_ for engine in ("mpi", "dask")]

    np.testing.assert_allclose(*found, rtol=1e-12)
    np.testing.assert_allclose(found[0], KMeans(4, random_state=5).fit(X).cluster_centers_, rtol=1e-12)


def test_auto_is_mpi_on_an_mpi_cluster_and_local_for_arrays(client4):
    placed = place(X)
    # The last two have few passes over the rows.
    for model in (KMeans(4, init=X[:4]), PCA(2), StandardScaler()):
        assert model.fit(placed).engine_ == "mpi"
        assert model.fit(X).engine_ == "local"


def test_on_a_cluster_without_mpi_auto_is_dask():
    with LocalCluster(2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster, Client(cluster):
        ours = KMeans(4, init=X[:4]).fit(as_dask(X)[0])

    assert ours.engine_ == "dask"
    np.testing.assert_allclose(ours.cluster_centers_, KMeans(4, init=X[:4]).fit(X).cluster_centers_, rtol=1e-9)


@BOTH
def test_arrays_of_this_process_go_to_the_ranks_if_an_engine_is_named(client4, engine):
    ours = LogisticRegression(tol=1e-8, engine=engine).fit(X, Y)

    np.testing.assert_allclose(ours.coef_, LogisticRegression(tol=1e-8).fit(X, Y).coef_, atol=1e-9)


def test_dataframes_give_their_names(client4):
    columns = [f"column {number}" for number in range(FEATURES)]
    frame = dd.from_pandas(pd.DataFrame(X, columns=columns), npartitions=3)
    labels = dd.from_pandas(pd.Series(Y, name="label"), npartitions=3)
    ours = LogisticRegression(tol=1e-8).fit(frame, labels)

    assert list(ours.feature_names_in_) == columns
    np.testing.assert_array_equal(ours.predict(frame).compute(), LogisticRegression(tol=1e-8).fit(X, Y).predict(X))
    with refused.other_features():
        ours.predict(frame.rename(columns={"column 0": "another"}))


@BOTH
def test_a_callback_is_told_of_each_iteration_in_this_thread(client4, engine):
    told = []
    model = LogisticRegression(
        engine=engine, callback=lambda record: told.append((record["iteration"], threading.current_thread()))
    ).fit(*place(X, Y))

    assert told == [(number, threading.main_thread()) for number in range(1, model.n_iter_[0] + 1)]


@BOTH
def test_what_a_callback_raises_ends_the_fit(client4, engine):
    def refuse(record):
        raise LookupError("enough")

    with raises(LookupError, args=("enough",)):
        LogisticRegression(engine=engine, callback=refuse).fit(*place(X, Y))
    assert works(client4)


@BOTH
def test_ctrl_c_ends_a_fit_and_the_next_one_works(client4, engine):
    seen = []

    def interrupt(record):
        seen.append(record["iteration"])
        if record["iteration"] == 2:
            signal.raise_signal(signal.SIGINT)

    placed, many = place(X), KMeans(50, init=MANY[:50], tol=0, engine=engine, callback=interrupt)
    with contextlib.suppress(KeyboardInterrupt):
        many.fit(place(MANY))
        pytest.fail(f"no interrupt at iterations {seen}; the handler is {signal.getsignal(signal.SIGINT)}")
    assert works(client4)
    assert KMeans(4, init=X[:4], engine=engine).fit(placed).engine_ == engine


@BOTH
def test_a_rank_whose_rows_all_weigh_nothing_is_no_trouble(client4, engine):
    weight = np.where(np.arange(ROWS) < 300, 0, WEIGHT)
    model = LogisticRegression(tol=1e-8, engine=engine).fit(*as_dask(X, Y, weight))

    np.testing.assert_allclose(model.coef_, LogisticRegression(tol=1e-8).fit(X, Y, weight).coef_, atol=1e-9)
    for estimator in (KMeans(3, engine=engine), LogisticRegression(engine=engine)):
        with refused.no_weight():
            estimator.fit(*as_dask(X, Y, np.zeros(ROWS)))


def threads_of_blas(parts, settings):
    """Return how many threads BLAS may use between two steps of a fit."""
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


class Anything:
    """A part that computes nothing."""

    def __init__(self, *columns):
        pass


def test_between_steps_no_threads_of_the_notebook_wait_in_the_place_of_ranks(client4):
    task = Task(threads_of_blas, None, Anything, Checks("Anything"))
    with threadpool_limits(2, user_api="blas"):
        assert fitting.fit(task, Data(place(X), None, None, distributed=True), "dask", None) == ({1}, "dask")


def spoilt(number, value):
    array = X.copy()
    array[number, 2] = value
    return array


@BOTH
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_told_as_by_scikit_learn(client4, engine, value):
    with refused.not_finite("NaN" if np.isnan(value) else "infinity"):
        KMeans(4, engine=engine).fit(place(spoilt(700, value)))
    assert works(client4)


@BOTH
def test_nothing_is_left_on_the_ranks_of_fits_that_failed(client4, engine):
    placed = place(spoilt(700, np.nan))
    with refused.not_finite("NaN") as caught:
        KMeans(4, engine=engine).fit(placed)

    until("the parts are gone", lambda: not any(client4.run(parts_here).values()))
    assert caught.value is not None


def parts_here(dask_worker):
    return len(dask_worker.state.actors)


@BOTH
def test_one_class_on_all_ranks_is_none_to_tell_apart(client4, engine):
    with pytest.raises(ValueError, match=r"needs samples of at least 2 classes in the data, but .* one class"):
        LogisticRegression(engine=engine).fit(*place(X, np.zeros(ROWS)))
    # One class on each rank is enough.
    model = LogisticRegression(engine=engine).fit(*place(X, np.arange(ROWS) // 300))
    assert model.coef_.shape == (4, FEATURES)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (lambda: (as_dask(X)[0], as_dask(Y[:-1])[0]), r"inconsistent numbers of samples: \[1003, 1002\]"),
        (lambda: (as_dask(X)[0], Y), "y is a numpy.ndarray and X is a dask.Array. Pass only Dask collections"),
        (lambda: (as_dask(X[:, 0])[0], as_dask(Y)[0]), "Expected 2D array, got 1D array instead"),
        (lambda: (as_dask(X)[0], None), "requires y to be passed, but the target y is None"),
        (lambda: (as_dask(X.astype(object))[0], as_dask(np.full(ROWS, None))[0]), r"Unknown label type|NoneType"),
    ],
)
def test_what_does_not_fit_together_is_told_in_a_sentence(client4, arguments, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        LogisticRegression().fit(*arguments())
    assert works(client4)


@pytest.mark.parametrize("engine", ["auto", "mpi", "dask"])
def test_a_fit_on_a_rank_that_would_wait_for_itself_is_refused(client4, engine):
    def fit(comm=None):
        return KMeans(4, init=X[:4], engine=engine).fit(as_dask(X)[0])

    with raises(InvalidRequest, option="engine"):
        client4.submit(fit, pure=False).result(DEADLINE)
    with raises(InvalidRequest, option="engine"):
        run_on_ranks(fit, client=client4, timeout=DEADLINE)
    assert works(client4)


def test_arrays_are_fitted_in_a_task(client4):
    assert client4.submit(lambda: KMeans(4, init=X[:4]).fit(X).engine_, pure=False).result(DEADLINE) == "local"


def test_blocks_without_rows_have_no_predictions(client4):
    lazy, _ = as_dask(X, Y)
    few = lazy[lazy[:, 0] > 2.5]
    model = LogisticRegression().fit(X, Y)

    rows = X[X[:, 0] > 2.5]
    np.testing.assert_array_equal(model.predict(few).compute(), model.predict(rows))
    np.testing.assert_allclose(model.predict_proba(few).compute(), model.predict_proba(rows))


@spmd(result="blocks")
def kept(comm, X, y):
    chosen = X[:, 0] > (0.3 if comm.rank % 2 else np.inf)
    return X[chosen], y[chosen]


@pytest.mark.mpi_flavor
def test_ranks_without_rows_take_part_in_a_fit(client4):
    rows, labels = kept(*place(X, Y))
    here, names = rows.compute(), labels.compute()
    scores = rows[:, 1] * 2

    assert rows.chunks[0][::2] == (0, 0)
    np.testing.assert_allclose(
        LogisticRegression(tol=1e-8).fit(rows, labels).coef_,
        LocalLogisticRegression(tol=1e-8).fit(here, names).coef_,
        atol=1e-8,
    )
    np.testing.assert_allclose(LinearRegression().fit(rows, scores).coef_, [0, 2, 0, 0, 0], atol=1e-9)
    for model in (StandardScaler(), PCA(2), KMeans(3, init=here[:3])):
        result = {StandardScaler: "scale_", PCA: "components_", KMeans: "cluster_centers_"}[type(model)]
        np.testing.assert_allclose(getattr(model.fit(rows), result), getattr(model.fit(here), result), atol=1e-9)
    neighbors = NearestNeighbors(n_neighbors=3)
    np.testing.assert_array_equal(neighbors.fit(rows).kneighbors()[1], neighbors.fit(here).kneighbors()[1])


def test_what_is_not_fitted_says_so(client4):
    (lazy,) = as_dask(X)
    for model, method in ((LogisticRegression(), "predict_proba"), (KMeans(), "transform"), (KMeans(), "predict")):
        with pytest.raises(NotFittedError):
            getattr(model, method)(lazy)


def test_a_restart_before_a_fit_has_its_parts_is_raised_as_the_loss_of_ranks():
    def hold():
        Event("held").set()
        Event("never").wait(DEADLINE)

    def asked(dask_scheduler):
        return any("of a fit" in str(key) for key in dask_scheduler.tasks)

    with MPICluster(1, name="again", quiet=True) as cluster, Client(cluster) as client:
        placed = place(X, client=client)
        held = client.submit(hold, pure=False)
        assert Event("held").wait(DEADLINE)
        with ThreadPoolExecutor(1) as threads:
            fit = threads.submit(StandardScaler(engine="dask").fit, placed)
            until("the fit waits for the rank", lambda: client.run_on_scheduler(asked))
            cluster.restart()
            with pytest.raises(RankLost):
                fit.result(DEADLINE)
        held.release()


def test_all_rows_may_weigh_the_same_number(client4):
    ours = LogisticRegression(tol=1e-8).fit(*as_dask(X, Y), 2.0)
    np.testing.assert_allclose(ours.coef_, LogisticRegression(tol=1e-8).fit(X, Y, 2.0).coef_, atol=1e-9)


def test_rows_of_another_width_are_refused(client4):
    model = KMeans(4, init=X[:4]).fit(X)
    with pytest.raises(ValueError, match="X has 4 features, but KMeans is expecting 5 features as input"):
        model.predict(as_dask(X[:, :4])[0])


@BOTH
def test_a_rank_and_a_head_that_die_in_a_fit_are_told(engine):
    with MPICluster(2, name="mortal", quiet=True) as cluster, Client(cluster) as client:

        def fit_and_kill(pid):
            def kill(record):
                if record["iteration"] == 2:
                    os.kill(pid, signal.SIGKILL)

            placed = place(MANY, client=client)
            KMeans(50, init=MANY[:50], tol=0, engine=engine, callback=kill).fit(placed)

        with pytest.raises(RankLost):
            fit_and_kill(cluster.ranks[1]["pid"])
        cluster.restart()
        with pytest.raises(HeadUnreachable):
            fit_and_kill(cluster.record.process.pid)
    # Which takes the record of a dead head away.
    actions.listing()
    assert "mortal" not in registry.names()


def test_a_client_that_is_not_the_default_fits_by_dask(cluster4):
    random = np.random.default_rng(0)
    with Client(cluster4, set_as_default=False) as client:
        X = place(random.normal(size=(400, 3)), client=client)
        model = KMeans(2, init=np.eye(2, 3), engine="dask").fit(X)

    assert model.cluster_centers_.shape == (2, 3)
