"""Fits that are killed and continue from their journal: each process of a cluster, in the middle of a fit."""

from __future__ import annotations

import random

import dask
import numpy as np
import pytest
from distributed import Client
from sklearn.base import clone
from support import saving
from support.processes import kill, launcher_of, until
from support.raised import raises

from workbench import MPICluster, place, run_on_ranks
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.launch import mpi_library
from workbench.launch.mpi_library import has_ulfm
from workbench.ml import PCA, KMeans, LinearRegression, LogisticRegression

# Many iterations, of which none is the last one before the kill.
pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge")

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(30_003, 12))
Y = (X @ np.geomspace(1, 100, 12) + 50 * RANDOM.logistic(size=len(X)) > 0).astype(int)
# Units that differ give L-BFGS many iterations.
SCALED = X * np.geomspace(0.03, 30, 12)
VICTIMS = {
    "a rank": lambda cluster: cluster.ranks[1]["pid"],
    "rank 0": lambda cluster: cluster.ranks[0]["pid"],
    "mpiexec": launcher_of,
    "the head": lambda cluster: cluster.record.process.pid,
}
MODELS = {
    "kmeans": (lambda **options: KMeans(20, tol=0, random_state=1, **options), [X]),
    "runs of kmeans": (
        lambda **options: KMeans(8, tol=0, max_iter=60, n_init=4, init="random", random_state=1, **options),
        [X],
    ),
    "lbfgs": (lambda **options: LogisticRegression(tol=1e-14, max_iter=200, **options), [SCALED, Y]),
    "classes": (
        lambda **options: LogisticRegression(tol=1e-14, max_iter=200, class_weight="balanced", **options),
        [SCALED, Y + (X[:, 0] > 1)],
    ),
}


def on_ranks(columns, client=None):
    """Return placed columns."""
    placed = place(*columns, client=client)
    return placed if len(columns) > 1 else [placed]


def numbers_of(model):
    """Return the numbers of a fitted model, with its labels; of these numbers themselves, too."""
    if isinstance(model, list):
        return model
    found = [np.asarray(value) for name, value in vars(model).items() if name.endswith("_")]
    return [value for value in found if value.dtype.kind in "fi"]


def assert_equal(model, other, rtol=0.0):
    for left, right in zip(numbers_of(model), numbers_of(other), strict=True):
        np.testing.assert_allclose(left, right, rtol=rtol, atol=rtol)


def killed(cluster, victim, name, folder, iteration):
    """Kill a process of the cluster after an iteration of a fit, which fails; return the records that are kept."""
    process, (model, data) = VICTIMS[victim](cluster), MODELS[name]

    def callback(record):
        if record["iteration"] == iteration:
            kill(process)

    with Client(cluster), pytest.raises(WorkbenchError):
        model(callback=callback).fit(*on_ranks(data), checkpoint=folder, every=0)
    return (folder / "journal").read_bytes()


class Renewed:
    """A cluster that is there again after a kill: restarted, or another one after the end of its head."""

    def __init__(self, ranks):
        self.ranks, self.undisturbed = ranks, {}
        self.cluster = self._started()

    def _started(self):
        return MPICluster(self.ranks, preload="workbench.ml", quiet=True)

    def renew(self, victim, starts):
        if victim == "the head":
            self.cluster.close()
            self.cluster = self._started()
        elif victim != "mpiexec" and has_ulfm(mpi_library.find()):
            until("the loss is seen", lambda: self.cluster.refresh().state == "degraded")
            self.cluster.restart()
        else:
            until("the world is there again", lambda: self._is_ready(starts))

    def _is_ready(self, starts):
        record = self.cluster.refresh()
        return record.state == "ready" and record.world.starts > starts


@pytest.fixture(scope="module")
def mortal():
    with dask.config.set({"workbench.world.restarts": 1000}):
        renewed = Renewed(2)
        yield renewed
        renewed.cluster.close()


def kill_and_continue(mortal, victim, name, folder, iteration):
    """Check that a fit that is killed continues, and ends with the model of an undisturbed fit."""
    model, data = MODELS[name]
    if name not in mortal.undisturbed:
        with Client(mortal.cluster):
            mortal.undisturbed[name] = numbers_of(model().fit(*on_ranks(data)))
    undisturbed = mortal.undisturbed[name]
    starts = mortal.cluster.refresh().world.starts
    before = killed(mortal.cluster, victim, name, folder, iteration)
    mortal.renew(victim, starts)
    assert list(folder.glob("state-*"))
    with Client(mortal.cluster):
        continued = model().fit(*on_ranks(data), checkpoint=folder)
        assert_equal(continued, undisturbed)
        assert_equal(model().fit(*on_ranks(data), checkpoint=folder), undisturbed)
    # The answers before the last state are those of the killed fit.
    assert (folder / "journal").read_bytes().startswith(before[: before.rindex(b"the state")])


@pytest.mark.mpi_flavor
@pytest.mark.parametrize(("victim", "name"), list(zip(VICTIMS, MODELS, strict=True)))
def test_a_fit_that_is_killed_continues_to_the_same_model(mortal, tmp_path, victim, name):
    kill_and_continue(mortal, victim, name, tmp_path / "fit", 7)


@pytest.mark.long
def test_a_hundred_kills_at_drawn_moments(mortal, tmp_path):
    for seed in range(100):
        draw = random.Random(seed)
        victim, name = draw.choice(list(VICTIMS)), draw.choice(list(MODELS))
        kill_and_continue(mortal, victim, name, tmp_path / str(seed), draw.randint(1, 20))


@pytest.fixture(scope="module")
def cluster3():
    with MPICluster(3, preload="workbench.ml", quiet=True) as cluster:
        yield cluster


@pytest.fixture
def client3(cluster3):
    with Client(cluster3) as client:
        yield client


class Interrupted(Exception):
    """Raised by a callback."""


def interrupt(record):
    if record.get("iteration", record.get("pass")) == 2:
        raise Interrupted


@pytest.mark.parametrize("engine", ["mpi", "dask"])
@pytest.mark.parametrize(
    "model",
    [
        KMeans(20, tol=0, random_state=1),
        KMeans(8, n_init=3, init="random", random_state=1),
        LogisticRegression(tol=1e-8),
        LogisticRegression(solver="newton-cholesky", class_weight="balanced"),
    ],
    ids=["kmeans", "runs of kmeans", "lbfgs", "newton"],
)
def test_a_fit_continues_on_another_number_of_ranks(client4, client3, tmp_path, engine, model):
    data = [X] if isinstance(model, KMeans) else [X, Y]
    here = clone(model).fit(*data)
    model = clone(model).set_params(engine=engine, callback=interrupt)
    with pytest.raises(Interrupted):
        model.fit(*on_ranks(data, client4), checkpoint=tmp_path / "fit", every=0)
    (state,) = (tmp_path / "fit").glob("state-*")
    assert len(list(state.iterdir())) == 4
    seen = []
    model.set_params(callback=seen.append).fit(*on_ranks(data, client3), checkpoint=tmp_path / "fit")
    assert_equal(model, here, rtol=1e-6)
    assert seen[0]["iteration"] == 1


@pytest.mark.parametrize("engine", ["mpi", "dask"])
@pytest.mark.parametrize(
    "model", [PCA(3, solver="randomized", random_state=0, n_iter=8), LinearRegression()], ids=["pca", "linear"]
)
def test_fits_without_a_state_continue_after_their_last_answer(client4, tmp_path, engine, model):
    columns = on_ranks([X] if isinstance(model, PCA) else [X, Y], client4)
    expected = clone(model).set_params(engine=engine).fit(*columns)
    model = clone(model).set_params(engine=engine, callback=interrupt)
    with pytest.raises(Interrupted):
        model.fit(*columns, checkpoint=tmp_path / "fit")
    before = (tmp_path / "fit" / "journal").read_bytes()
    model.set_params(callback=None).fit(*columns, checkpoint=tmp_path / "fit")
    assert (tmp_path / "fit" / "journal").read_bytes().startswith(before)
    assert_equal(model, expected)


def test_a_full_disk_names_the_folder_and_the_fit_continues_later(client4, tmp_path):
    model, folder, blocks = KMeans(20, tol=0, random_state=1), tmp_path / "fit", on_ranks([X], client4)
    expected = clone(model).fit(*blocks)
    with pytest.raises(Interrupted):
        model.set_params(callback=interrupt).fit(*blocks, checkpoint=folder, every=0)
    run_on_ranks(saving.limited, (folder / "journal").stat().st_size + 2_000, client=client4)
    try:
        with raises(InvalidRequest, option="path", given=str(folder)):
            model.set_params(callback=None).fit(*blocks, checkpoint=folder, every=0)
    finally:
        run_on_ranks(saving.limited, -1, client=client4)
    assert_equal(model.fit(*blocks, checkpoint=folder), expected)
