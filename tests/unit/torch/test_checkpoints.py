"""The checkpoint of a fit, in one process."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support import torched
from support.raised import raises

from workbench.errors import InvalidRequest
from workbench.torch.epochs import Alone, Plan, run

KILLED = """
import os, signal, sys
from test_checkpoints import train
synced = []
def fsync(_):
    synced.append(1)
    if len(synced) == 5:  # the third file: each file and then its folder
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
train(sys.argv[1], 5)
"""


def train(path, epochs, module=None, **options):
    X, y = torched.blobs()
    given = {"size": 24, "seed": 0, "loss": torched.cross_entropy, "optimizer": None, "schedule": None, **options}
    plan = Plan(epochs=epochs, patience=None, callback=None, checkpoint=path, shuffle="exchange", name="", **given)
    return run(Alone(), module or torched.net(), plan, (X, y), validation=(), on_epoch=lambda *_: False)


def test_a_fit_that_is_killed_while_it_writes_goes_on_from_the_last_whole_checkpoint(tmp_path):
    file = tmp_path / "run.pt"
    program = f"import sys; sys.path[:] = {[*sys.path, str(Path(__file__).parent)]!r}\n{KILLED}"
    killed = subprocess.run([sys.executable, "-c", program, file], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(torch.load(file, weights_only=True)["history"]) == 2
    assert len([*tmp_path.iterdir()]) == 2  # beside it what was written last

    assert train(str(file), 5) == [pytest.approx(record, abs=1e-12) for record in train(None, 5)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"module": torch.nn.Linear(6, 3).double()},
            r"with module Sequential\( and this fit has Linear\(in_features=6",
        ),
        (
            {"module": torch.nn.Sequential(*torched.net()[:3], torch.nn.Tanh(), torched.net()[4])},
            r"with module \(3\): ReLU\(\) and this fit has \(3\): Tanh\(\)\. Pass the op",
        ),
        ({"optimizer": lambda weights: torch.optim.Adam(weights, lr=0.1)}, "with lr 0.001 and this fit has 0.1. Pass"),
        ({"size": 12}, "with size 24 and this fit has 12. Pass the options with which the file was written"),
        ({"seed": 7}, "with seed 0 and this fit has 7. Pass"),
        ({"loss": torch.nn.MSELoss()}, "with loss cross_entropy and this fit has MSELoss.*. Pass"),
        ({"optimizer": torch.optim.RAdam}, "with optimizer Adam and this fit has RAdam. Pass"),
        (
            {"schedule": torched.shrinking},
            "has history, module, optimizer, options, and the fit needs .*schedule. Pass the opt",
        ),
    ],
    ids=["module", "layer", "rate", "size", "seed", "loss", "optimizer", "schedule"],
)
def test_a_checkpoint_of_another_fit_is_refused(tmp_path, change, said):
    path = str(tmp_path / "run.pt")
    train(path, 1)
    with pytest.raises(InvalidRequest, match=said):
        train(path, 2, **change)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PK half a file", "is not a checkpoint of fit"),
        (b"", "remove this"),
        (b"a text", "is not a checkpoint of fit"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content, said):
    file = tmp_path / "run.pt"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest, match=said):
        train(str(file), 1)
    assert file.read_bytes() == content


def test_a_folder_that_does_not_exist_is_refused_before_the_training(tmp_path):
    with raises(InvalidRequest, option="checkpoint", given=str(tmp_path / "none" / "run.pt")):
        train(str(tmp_path / "none" / "run.pt"), 1)


def test_a_schedule_with_other_options_is_refused_and_one_with_the_same_options_goes_on(tmp_path):
    path = str(tmp_path / "run.pt")
    train(path, 2, schedule=torched.shrinking)
    assert len(train(path, 3, schedule=torched.shrinking)) == 3
    with raises(InvalidRequest, option="schedule gamma"):
        train(path, 4, schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.25))
    with pytest.raises(InvalidRequest):
        train(path, 4, schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1))


def test_a_loss_with_other_values_is_refused_and_the_same_values_in_another_form_are_accepted(tmp_path):
    path = str(tmp_path / "run.pt")
    loss = torch.nn.CrossEntropyLoss(torch.ones(3).double(), label_smoothing=0.2)
    train(path, 1, loss=loss, optimizer=lambda weights: torch.optim.Adam(weights, lr=np.float64(0.1)))
    with raises(InvalidRequest, option="loss"):
        train(path, 2, loss=torch.nn.CrossEntropyLoss(torch.ones(3).double()))
    with pytest.raises(InvalidRequest):
        train(path, 2, loss=torch.nn.CrossEntropyLoss(torch.zeros(3).double(), label_smoothing=0.2))
    assert (
        len(train(path, 2, loss=loss, optimizer=lambda weights: torch.optim.Adam(weights, lr=0.1, foreach=True))) == 2
    )


def test_a_file_with_one_damaged_bit_is_refused_or_gives_the_same_model(tmp_path):
    file = tmp_path / "run.pt"
    trained = torched.net()
    train(str(file), 1, module=trained)
    whole = file.read_bytes()
    refused = 0
    for position in random.Random(3).sample(range(len(whole)), 300):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        file.write_bytes(damaged)
        loaded = torched.net()
        try:
            train(str(file), 1, module=loaded)
        except InvalidRequest as error:
            assert "is not a checkpoint of fit()" in str(error) or "the file has" in str(error), position  # noqa: PT017
            refused += 1
        else:
            assert all(map(torch.equal, loaded.state_dict().values(), trained.state_dict().values())), position
    assert refused > 100
