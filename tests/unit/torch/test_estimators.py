"""Neural networks as estimators of scikit-learn, in this process."""

from __future__ import annotations

import functools
import pickle

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from support.raised import raises
from support.sklearn_checks import accepted_by_scikit_learn

from workbench.errors import InvalidRequest
from workbench.torch import NeuralNetClassifier, NeuralNetRegressor
from workbench.torch.epochs import outputs

X = np.random.default_rng(3).normal(size=(90, 4))
Y = np.where(X[:, 0] > 0, "yes", "no")


def net(features, outputs):
    layers = torch.nn.Linear(features, 16), torch.nn.Tanh(), torch.nn.Linear(16, outputs)
    return torch.nn.Sequential(*layers).double()


QUICK = {"module": net, "optimizer": functools.partial(torch.optim.Adam, lr=0.2), "epochs": 12, "size": 1000}


@accepted_by_scikit_learn(NeuralNetClassifier(**QUICK), NeuralNetRegressor(**QUICK))
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def test_a_network_is_a_step_of_a_pipeline_in_a_search():
    pipeline = make_pipeline(StandardScaler(), NeuralNetClassifier(**QUICK))
    optimizers = [functools.partial(torch.optim.SGD, lr=rate) for rate in (1e-6, 1.0)]
    search = GridSearchCV(pipeline, {"neuralnetclassifier__optimizer": optimizers}, cv=3).fit(X, Y)

    assert search.best_params_["neuralnetclassifier__optimizer"].keywords == {"lr": 1.0}
    assert search.score(X, Y) > 0.9


def test_a_score_of_dask_collections_takes_categories_that_are_numbers():
    labels = pd.Series(X[:, 0] > 0).map({True: 2024, False: 2023}).astype("category")
    model = NeuralNetClassifier(**QUICK).fit(X, labels)

    lazy = da.from_array(X, chunks=(30, 4)), dd.from_pandas(labels, npartitions=3)
    assert model.score(*lazy) == model.score(X, labels) > 0.9


def test_a_module_of_the_user_stays_what_it_is_and_each_fit_begins_with_its_weights():
    module = net(4, 2)
    before = {name: weights.clone() for name, weights in module.state_dict().items()}
    model = clone(NeuralNetClassifier(**QUICK | {"module": module}))
    first, second = (model.fit(X, Y).predict_proba(X) for _ in range(2))

    np.testing.assert_array_equal(first, second)
    assert all(torch.equal(before[name], weights) for name, weights in module.state_dict().items())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), first)  # noqa: S301


def test_a_device_computes_the_same_and_the_module_is_on_the_host(device):
    model = NeuralNetClassifier(**QUICK)
    there = clone(model).set_params(device=device).fit(X, Y)

    assert {weights.device.type for weights in there.module_.parameters()} == {"cpu"}
    np.testing.assert_allclose(there.predict_proba(X), model.fit(X, Y).predict_proba(X), atol=1e-9)


def test_a_device_that_this_process_does_not_have_is_refused():
    with raises(InvalidRequest, option="device", given="cuda:99"):
        NeuralNetClassifier(**QUICK, device="cuda:99").fit(X, Y)


def test_an_optimizer_may_pass_through_the_weights_several_times():
    def in_groups(weights):
        matrices, others = ([each for each in weights if (each.dim() > 1) is side] for side in (True, False))
        return torch.optim.AdamW([{"params": matrices}, {"params": others, "weight_decay": 0.0}], lr=0.1)

    module = net(4, 2)
    trained = NeuralNetClassifier(**QUICK | {"module": module, "optimizer": in_groups}).fit(X, Y).module_
    for weights, before in zip(trained.parameters(), module.parameters(), strict=True):
        assert not torch.equal(weights, before)


def test_a_schedule_may_depend_on_the_loss():
    rates = []

    def lower(optimizer):
        # No loss is low enough, so each step of the schedule lowers the rate.
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=1e9)
        optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
        return schedule

    NeuralNetClassifier(**QUICK | {"epochs": 4, "schedule": lower, "validation": 0.2}).fit(X, Y)
    assert rates == [0.2, 0.1, 0.05, 0.025]


def test_a_loss_that_is_no_number_at_first_does_not_end_a_fit_that_improves():
    calls = []

    def loss(outputs, targets):
        calls.append(0)
        return torch.nn.functional.mse_loss(outputs, targets) + (float("nan") if len(calls) == 1 else 0)

    settings = QUICK | {"optimizer": functools.partial(torch.optim.SGD, lr=1e-3), "epochs": 6}
    model = NeuralNetRegressor(**settings, loss=loss, patience=2).fit(X, X[:, 0])
    assert len(model.history_) == 6


def test_the_numbers_that_a_notebook_draws_are_those_without_a_fit():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    NeuralNetClassifier(**QUICK).fit(X, Y)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("model", [NeuralNetClassifier(**QUICK), NeuralNetRegressor(**QUICK)])
def test_a_row_of_weight_two_counts_as_two_rows(model):
    weight = np.arange(90) % 3
    repeated = np.repeat(np.arange(90), weight)
    y = X[:, 0] > 0
    of_weights = model.fit(X, y, weight).module_.state_dict()
    for name, weights in model.fit(X[repeated], y[repeated]).module_.state_dict().items():
        np.testing.assert_allclose(of_weights[name], weights, atol=1e-9)


@pytest.mark.parametrize("loss", [torch.nn.MSELoss(), torch.nn.functional.mse_loss])
def test_weights_of_rows_work_with_losses_of_both_kinds(loss):
    model = NeuralNetRegressor(**QUICK, loss=loss).fit(X, X[:, 0], np.arange(90.0))
    assert model.history_ == NeuralNetRegressor(**QUICK).fit(X, X[:, 0], np.arange(90.0)).history_


def test_a_loss_without_numbers_of_rows_takes_no_weights():
    def loss(outputs, targets, reduction=""):
        return torch.nn.functional.mse_loss(outputs, targets)

    with pytest.raises(InvalidRequest):
        NeuralNetRegressor(**QUICK, loss=loss).fit(X, X[:, 0], np.ones(90))


def test_a_fit_ends_when_the_loss_of_the_validation_does_not_fall():
    still = functools.partial(torch.optim.SGD, lr=0.0)
    model = NeuralNetRegressor(optimizer=still, schedule=still_schedule, validation=0.2, patience=3).fit(X, X[:, 0])
    assert len(model.history_) == 4
    assert sorted(model.history_[0]) == ["loss", "validation_loss"]


def still_schedule(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1)


def test_the_progress_has_a_line_for_each_epoch(capfd):
    NeuralNetRegressor(epochs=2, verbose=2).fit(X, X[:, 0])
    lines = capfd.readouterr().out.splitlines()
    assert [line.partition(", ")[0] for line in lines] == [f"NeuralNetRegressor: iteration {n}" for n in (1, 2)]


def test_the_loss_of_the_validation_does_not_depend_on_the_unit_of_weights():
    losses = [
        [record["validation_loss"] for record in NeuralNetClassifier(**QUICK, validation=0.2).fit(X, Y, w).history_]
        for w in (np.ones(90), np.full(90, 100.0))
    ]
    np.testing.assert_allclose(*losses, rtol=1e-12)


def test_outputs_with_another_axis_are_those_of_the_classes():
    def with_axis(features, outputs):
        return torch.nn.Sequential(net(features, outputs), torch.nn.Unflatten(1, (1, outputs)))

    model = NeuralNetClassifier(**QUICK | {"module": with_axis}).fit(X, Y)
    assert model.predict_proba(X).shape == (90, 2)
    assert model.score(X, Y) > 0.9


class Flat(torch.nn.Module):
    """Refuses a batch without rows, as a reshape to -1 does."""

    def forward(self, rows):
        return rows.reshape(len(rows), -1)


def test_a_block_without_rows_has_outputs_of_the_columns_of_a_module_that_refuses_it():
    assert outputs(None, Flat(), 8, np.empty((0, 2, 5))).shape == (0, 10)
    assert outputs(None, Flat(), 8, np.ones((9, 2, 5))).shape == (9, 10)


def test_a_module_of_bfloat16_predicts_in_float32():
    def short(features, outputs):
        return net(features, outputs).bfloat16()

    model = NeuralNetClassifier(**QUICK | {"module": short}).fit(X, Y)
    lazy = model.predict_proba(da.from_array(X, chunks=(30, 4)))
    assert (model.predict_proba(X).dtype, lazy.dtype, lazy.compute().dtype) == ("float32",) * 3
    assert model.score(X, Y) > 0.9


class Pair(torch.nn.Linear):
    """Returns its result and another value, as recurrent layers do."""

    def forward(self, rows):
        return super().forward(rows), None


def test_a_module_that_returns_no_tensor_is_refused():
    with pytest.raises(InvalidRequest):
        NeuralNetClassifier(**QUICK | {"module": Pair}).fit(X, Y)
    with pytest.raises(InvalidRequest):
        outputs(None, Pair(4, 2), 100, X)


def test_a_module_that_returns_other_rows_than_it_gets_is_refused():
    with pytest.raises(InvalidRequest):
        outputs(
            None,
            torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Flatten(0), torch.nn.Unflatten(0, (1, -1))),
            100,
            X,
        )
