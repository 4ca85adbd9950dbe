"""What estimators without iterations report of a running fit."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from sklearn import preprocessing
from tqdm import tqdm

from workbench.ml import PCA, LinearRegression, NearestNeighbors, Recipe, Ridge, StandardScaler, TruncatedSVD
from workbench.ml.engine import progress
from workbench.ml.engine.progress import Sender

X = np.random.default_rng(2).normal(size=(60, 5))
y = X @ np.arange(5.0)
LINEAR = ["sample", "products", "pull"]
PASSES = pytest.mark.parametrize(
    ("model", "names"),
    [
        (LinearRegression(), LINEAR),
        (Ridge(), LINEAR),
        (PCA(solver="gram"), ["sample", "gram"]),
        (PCA(solver="tsqr"), ["sums", "triangle"]),
        (TruncatedSVD(solver="gram"), ["gram"]),
        (StandardScaler(), ["moments"]),
        (NearestNeighbors(), ["rows"]),
        (Recipe([(preprocessing.StandardScaler(), [0, 1])]), ["statistics"]),
    ],
    ids=lambda given: type(given).__name__,
)


@PASSES
def test_a_callback_is_told_of_each_pass_over_the_rows(model, names):
    told = []
    model.set_params(callback=told.append, verbose=0).fit(X, y)

    assert told == [{"pass": number, "name": name} for number, name in enumerate(names, 1)]


@PASSES
def test_each_pass_is_a_line(model, names, capsys):
    model.set_params(callback=None, verbose=2).fit(X, y)

    title = type(model).__name__
    lines = [f"{title}: pass {number}, name {name}" for number, name in enumerate(names, 1)]
    assert capsys.readouterr().out.splitlines() == lines


def test_a_bar_counts_the_passes_and_is_full_at_the_end(capsys, monkeypatch):
    # An earlier test of this process may have imported the bar of notebooks, in another IPython.
    monkeypatch.setattr(progress, "tqdm", tqdm)
    LinearRegression(verbose=1).fit(X, y)

    assert "LinearRegression: 100%" in (said := capsys.readouterr().err)
    assert "3/3" in said
    assert "name=pull" in said


def test_iterations_of_random_vectors_are_told_as_such(capsys):
    told = []
    PCA(2, solver="randomized", n_iter=2, random_state=0, callback=told.append, verbose=2).fit(X)

    assert [record["pass"] for record in told] == list(range(1, 8))
    assert [record["iteration"] for record in told[2:5]] == [1, 2, 3]
    assert [record.get("name") for record in told] == ["sums", "squares", None, None, None, "triangle", "normal"]
    assert capsys.readouterr().out.splitlines()[2] == "PCA: iteration 1, pass 3"


def test_a_search_is_a_pass_and_a_lazy_one_is_not_told_of(capsys):
    told = []
    model = NearestNeighbors(2, callback=told.append, verbose=2).fit(X)
    told.clear()
    model.kneighbors(X[:3])
    capsys.readouterr()
    model.kneighbors(da.from_array(X[:4], chunks=(2, 5)))[0].compute(scheduler="sync")

    assert told == [{"pass": 1, "name": "nearest"}]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("model", [LinearRegression, PCA, StandardScaler, NearestNeighbors])
def test_what_cannot_be_told_to_is_refused(model):
    with pytest.raises(ValueError, match="'callback' parameter of"):
        model(callback="print").fit(X, y)


@pytest.mark.parametrize(("listens", "messages"), [(True, [1, 1, 1, 1]), (False, [3, 1])])
def test_without_a_listener_records_are_sent_once_per_second(listens, messages, monkeypatch):
    now, logged, sent = [0.0], [], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "has_listener", lambda: listens)
    monkeypatch.setattr(progress, "send", lambda records: sent.append(len(records)))
    sender = Sender("fit", "KMeans", lambda _, event: logged.append(len(event["records"])))
    for iteration in range(1, 5):
        now[0] = 0.4 * iteration
        sender({"iteration": iteration})
    sender.flush()

    assert logged == sent == messages
