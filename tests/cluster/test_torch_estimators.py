"""Estimators that train on ranks, and checkpoints. One file, so that one world imports PyTorch, once."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from support import refused, torched
from support.raised import raises

from workbench import place, run_on_ranks, spmd
from workbench.errors import InvalidRequest
from workbench.torch import NeuralNetClassifier, NeuralNetRegressor, fit

NAMES = np.array(["ash", "birch", "cedar"])


def double(features, outputs):
    import torch

    layers = torch.nn.Linear(features, 12), torch.nn.Tanh(), torch.nn.Linear(12, outputs)
    return torch.nn.Sequential(*layers).double()


def of_images(shape, outputs):
    import torch

    layers = torch.nn.Conv2d(shape[0], 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, outputs)
    return torch.nn.Sequential(*layers).double()


def assert_same(ours, theirs, apart=1e-12):
    for name, weights in theirs.module_.state_dict().items():
        np.testing.assert_allclose(ours.module_.state_dict()[name], weights, atol=apart, rtol=0)
    assert ours.history_ == [pytest.approx(record, abs=apart) for record in theirs.history_]


@spmd(result="blocks")
def of_odd_ranks(comm, X, y):
    return (X, y) if comm.rank % 2 else (X[:0], y[:0])


def test_ranks_without_rows_take_part_in_a_training(client4):
    X, numbers = torched.blobs()
    rows, labels = of_odd_ranks(*place(X, NAMES[numbers], client=client4))
    there = NeuralNetClassifier(double, epochs=2, size=46, validation=0.13).fit(rows, labels)

    assert there.engine_ == "mpi"
    assert_same(there, NeuralNetClassifier(**there.get_params()).fit(rows.compute(), labels.compute()))


def test_fewer_rows_than_ranks_are_refused_with_their_number(client4):
    X, numbers = torched.blobs()
    rows, labels = of_odd_ranks(*place(X[:4], numbers[:4], client=client4))
    said = "the ranks have 2 rows for 4 ranks, and a batch has a row for each rank. Pass more rows"
    with pytest.raises(InvalidRequest, match=said):
        fit(torched.net(), torched.cross_entropy, rows, labels, size=24)
    with pytest.raises(InvalidRequest):
        NeuralNetRegressor(double, validation=None).fit(rows, labels)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_classifier_on_ranks_is_that_of_one_process(client4, weighted, device):
    X, numbers = torched.blobs()
    y, weight = NAMES[numbers], np.random.default_rng(1).uniform(0.1, 2.0, len(X)) if weighted else None
    # Neither 46 rows of a batch nor the rows for validation are the same number on each rank.
    model = NeuralNetClassifier(double, epochs=3, size=46, validation=0.13)
    here = model.fit(X, y, weight)
    assert here.engine_ == "local"
    blocks = place(X, y, *([weight] if weighted else []), client=client4)
    there = NeuralNetClassifier(**model.get_params() | {"device": device}).fit(*blocks)

    assert there.engine_ == "mpi"
    assert_same(there, here)
    assert there.classes_.tolist() == NAMES.tolist()
    assert sorted(there.history_[0]) == ["loss", "validation_loss"]
    lazy = there.predict_proba(blocks[0])
    assert (type(lazy), lazy.chunks, lazy.dtype) == (da.Array, (blocks[0].chunks[0], (3,)), np.dtype("float64"))
    np.testing.assert_allclose(lazy.compute(), here.predict_proba(X), atol=1e-12)
    assert there.predict(blocks[0]).compute().tolist() == here.predict(X).tolist()


def test_a_regressor_takes_dataframes_and_several_targets(client4):
    X, labels = torched.blobs()
    table = pd.DataFrame(X, columns=list("abcdef"))
    targets = np.column_stack([labels, X[:, 0]])
    model = NeuralNetRegressor(double, epochs=2, size=40)
    here = model.fit(table, targets)
    assert here.feature_names_in_.tolist() == list("abcdef")
    expected = here.predict(table)
    frame = dd.from_pandas(table, npartitions=5)
    there = model.fit(frame, dd.from_pandas(pd.DataFrame(targets), npartitions=5))

    assert (there.engine_, there.feature_names_in_.tolist()) == ("mpi", list("abcdef"))
    np.testing.assert_allclose(there.predict(frame).compute(), expected, atol=1e-12)
    with refused.other_features():
        there.predict(frame[list("fedcba")])


def test_arrays_of_this_process_are_trained_on_ranks_if_the_engine_is_named(client4):
    X, labels = torched.blobs()
    records = []
    model = NeuralNetRegressor(double, epochs=3, engine="mpi", callback=records.append).fit(X, labels)

    assert (model.engine_, model.predict(X).shape) == ("mpi", (240,))
    assert records == [{"iteration": number + 1, **record} for number, record in enumerate(model.history_)]
    assert_same(model, NeuralNetRegressor(double, epochs=3).fit(X, labels))


def test_rows_of_several_axes_stay_what_they_are(client4):
    source = np.random.default_rng(4)
    images, labels = source.normal(size=(40, 2, 4, 4)), source.integers(0, 2, 40)
    model = NeuralNetClassifier(of_images, epochs=2, size=8)
    here = model.fit(images, labels).predict_proba(images)
    lazy = da.from_array(images, chunks=(9, 1, 4, 4))
    there = NeuralNetClassifier(of_images, epochs=2, size=8).fit(lazy, da.from_array(labels, chunks=9))

    assert there.predict(lazy).shape == (40,)
    np.testing.assert_allclose(there.predict_proba(lazy).compute(), here, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"module": functools.partial(double, 6)}, "takes"),
        ({"module": lambda features, _: double(features, 2)}, r"shape \(60, 2\) where \(60, 3\) was expected"),
        ({"module": lambda *_: "a net"}, r"module\(6, 3\) returned str. Return a torch.nn.Module"),
        ({"validation": 0.999}, "validation=0.999 leaves none of 240 rows for the training"),
    ],
)
def test_networks_that_cannot_be_are_refused_on_ranks(client4, options, said):
    X, y = place(*torched.blobs(), client=client4)
    with pytest.raises((InvalidRequest, TypeError), match=said):
        NeuralNetClassifier(**{"module": double, "epochs": 1, "size": 240} | options).fit(X, y)


def test_a_network_is_not_trained_by_dask(client4):
    X, y = place(*torched.blobs(), client=client4)
    with dask.config.set({"workbench.ml.engine": "dask"}), raises(InvalidRequest, option="workbench.ml.engine"):
        NeuralNetClassifier(double, epochs=1).fit(X, y)


def resumed_on(comm, ranks, path, epochs):
    """Continue a fit of `torched.net` and `torched.blobs` on the first ranks; return the records of all epochs."""
    from workbench.torch.epochs import Plan, train

    part = comm.Split(comm.rank // ranks)
    if comm.rank // ranks:
        return None
    X, y = (np.array_split(rows, ranks)[part.rank] for rows in torched.blobs())
    plan = Plan(torched.cross_entropy, epochs, 24, None, None, None, None, path, 0, "exchange", "resumed")
    return train(part, torched.net(), plan, X, y)[1]


def test_a_fit_of_four_ranks_goes_on_with_two_and_then_with_one(client4, tmp_path):
    X, y = place(*torched.blobs(), client=client4)
    path = str(tmp_path / "run.pt")
    whole = fit(torched.net(), torched.cross_entropy, X, y, epochs=5, size=24)
    first = fit(torched.net(), torched.cross_entropy, X, y, epochs=2, size=24, checkpoint=path)
    run_on_ranks(resumed_on, 2, path, 4, client=client4)
    found = run_on_ranks(resumed_on, 1, path, 5, client=client4)[0]

    assert first == [pytest.approx(record, abs=1e-12) for record in whole[:2]]
    assert found == [pytest.approx(record, abs=1e-12) for record in whole]


@pytest.mark.trainers
@pytest.mark.parametrize("library", ["lightning", "accelerate"])
def test_the_cell_of_the_documentation_trains_with_another_library(client4, library):
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    [cell] = re.findall(rf"```python\n([^`]*def train_with_{library}.*?)```", page, re.DOTALL)
    names = {"spmd": spmd}
    exec(cell, names)  # noqa: S102  (of this repository)
    rows = np.random.default_rng(0).normal(size=(1_000, 8)).astype("float32")
    X, y = place(rows, (rows[:, 0] > 0).astype("int64"), client=client4)
    assert names[f"train_with_{library}"](X, y) < 0.6
