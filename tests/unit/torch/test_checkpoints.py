"""The checkpoint of a fit, in one process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import torched

from workbench.errors import InvalidRequest
from workbench.torch.epochs import Alone, Plan, run

KILLED = """
import os, signal, sys
from test_checkpoints import train
synced = []
def fsync(_):
    synced.append(1)
    if len(synced) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
train(sys.argv[1], 5)
"""


def train(path, epochs, module=None, **options):
    X, y = torched.blobs()
    given = {"optimizer": None, "schedule": None, **options}
    plan = Plan(torched.cross_entropy, epochs, 24, *given.values(), None, None, path, 0, "exchange", "")
    return run(Alone(), module or torched.net(), plan, (X, y), validation=(), tell=lambda *_: False)


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
        ({"module": torch.nn.Linear(6, 3).double()}, r"written for another module .*\. Pass the module with which"),
        ({"schedule": torched.shrinking}, "has history, module, optimizer, and the fit needs .*schedule. Pass the opt"),
        ({"optimizer": torch.optim.SGD}, "written for another optimizer .*the file has no dampening, momentum"),
    ],
    ids=["module", "schedule", "optimizer"],
)
def test_a_checkpoint_of_another_fit_is_refused(tmp_path, change, said):
    path = str(tmp_path / "run.pt")
    train(path, 1)
    with pytest.raises(InvalidRequest, match=said):
        train(path, 2, **change)


@pytest.mark.parametrize(("content", "said"), [(b"PK half a file", "is not a checkpoint of fit"), (b"", "remove this")])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content, said):
    file = tmp_path / "run.pt"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest, match=said):
        train(str(file), 1)
    assert file.read_bytes() == content


def test_a_folder_that_does_not_exist_is_refused_before_the_training(tmp_path):
    with pytest.raises(InvalidRequest, match=r"checkpoint .*the folder .* does not exist. Create the folder"):
        train(str(tmp_path / "none" / "run.pt"), 1)
