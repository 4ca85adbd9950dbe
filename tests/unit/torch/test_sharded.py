"""Checkpoints of divided models, in one process, which has all parts."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import platform
import signal
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from support import torched
from support.raised import raises

from workbench.errors import InvalidRequest
from workbench.torch import load_sharded, materialize, save_sharded, sharded
from workbench.torch.epochs import Alone
from workbench.torch.sharded import MANIFEST, METADATA

# Prints for each child the write at which it was killed, its exit code and the epoch that is loaded after it.
KILLED = """
import os, signal, sys
from test_sharded import loaded, saved
folder, fsync = sys.argv[1], os.fsync
for deadly in range(1, 9):
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        print(deadly, os.waitstatus_to_exitcode(status), loaded(folder)["epoch"], flush=True)
        if not status:
            break
        continue
    count = 0
    def killing(file):
        global count
        count += 1
        if count == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(file)
    os.fsync = killing
    saved(folder, deadly)
    os._exit(0)
"""


class Runs:
    """Has a file when it is loaded by pickle."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (self.file, "w")


def saved(folder, epoch):
    """Write a net whose values are those of an epoch."""
    model = torched.net(epoch)
    save_sharded(folder, model, torch.optim.Adam(model.parameters()), epoch=epoch)


def loaded(folder):
    model = torched.net(99)
    values = load_sharded(folder, model, torch.optim.Adam(model.parameters()))
    assert all(map(torch.equal, model.parameters(), torched.net(values["epoch"]).parameters()))
    return values


def shards(folder):
    return [file for file in folder.iterdir() if file.name != MANIFEST]


@pytest.fixture
def folder(tmp_path):
    saved(tmp_path / "run", 1)
    return tmp_path / "run"


def test_a_checkpoint_takes_the_place_of_the_former_one(folder):
    former = shards(folder)
    saved(folder, 2)

    assert loaded(folder) == {"epoch": 2}
    assert len(shards(folder)) == 1
    assert shards(folder) != former
    assert stat.S_IMODE(shards(folder)[0].stat().st_mode) == 0o700


def test_a_process_that_is_killed_at_any_write_leaves_the_former_checkpoint(folder):
    program = f"import sys; sys.path[:] = {[*sys.path, str(Path(__file__).parent)]!r}\n{KILLED}"
    ran = subprocess.run([sys.executable, "-c", program, folder], check=True, capture_output=True, text=True)
    *killed, renamed, last = (tuple(map(int, line.split())) for line in ran.stdout.splitlines())

    assert killed == [(deadly, -signal.SIGKILL, 1) for deadly in range(1, len(killed) + 1)]
    assert len(killed) >= 4  # the tensors, the metadata, the inner folder, the manifest
    written = len(killed) + 1
    assert renamed == (written, -signal.SIGKILL, written)  # the manifest has its name, which is then synced
    assert last == (written + 1, 0, written + 1)
    assert len([*folder.iterdir()]) == 2  # the files of killed processes are removed


def test_a_full_disk_is_an_error_that_keeps_the_former_checkpoint(folder, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InvalidRequest) as caught:
            saved(folder, 2)
    assert "the former checkpoint is unchanged" in str(caught.value)
    assert loaded(folder) == {"epoch": 1}


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def edit(file, **changes):
    entries = json.loads(file.read_text()) | changes
    # As a user who changes the file on purpose, with its checksum.
    del entries["sha256"]
    entries["sha256"] = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
    file.write_text(json.dumps(entries))


def link(file):
    file.rename(file.with_name("elsewhere")).chmod(0o600)
    file.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("__0_0.distcp", flip, r"__0_0.distcp has changed since it was written .*restore the file, or load another"),
        ("__0_0.distcp", Path.unlink, "has no file __0_0.distcp on this node; restore the file"),
        (METADATA, lambda file: file.write_bytes(pickle.dumps(Runs(file.with_name("ran")))), r"\.metadata has changed"),
        (
            "",
            lambda folder: folder.chmod(0o770),
            "other users can change .*shards-.* .mode 770.* can run code.* chmod go-w",
        ),
        (
            MANIFEST,
            lambda file: file.parent.chmod(0o775),
            "other users can change .*run .mode 775.* chmod go-w '.*run'",
        ),
        (MANIFEST, link, "manifest.json must be a file that you can read, and no link"),
        (MANIFEST, lambda file: file.chmod(0o666), "other users can change .*manifest.json .mode 666."),
        (MANIFEST, lambda file: edit(file, files={}), "manifest.json is damaged"),
        (MANIFEST, lambda file: edit(file, shards="../run"), "manifest.json is damaged"),
        (MANIFEST, lambda file: edit(file, format=7), "was written by another version of the workbench; restore"),
        (MANIFEST, lambda file: file.write_text(file.read_text()[:40]), "manifest.json is damaged"),
        (MANIFEST, lambda file: file.write_text(file.read_text().replace("7", "5", 1)), "manifest.json is damaged"),
        (MANIFEST, Path.unlink, r"has no manifest.json, so save_sharded\(\) has completed no checkpoint there"),
    ],
)
def test_a_spoiled_checkpoint_is_refused_before_its_pickles_are_loaded(folder, name, spoil, said):
    [inner] = shards(folder)
    spoil((folder if name == MANIFEST else inner) / name)
    with pytest.raises(InvalidRequest, match=said):
        loaded(folder)
    assert not (inner / "ran").exists()


def test_a_checkpoint_of_another_user_is_refused(folder, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with raises(InvalidRequest, given=os.getuid()):
        loaded(folder)


class LastOfFour(Alone):
    """The communicator of a rank that checks no file but the metadata."""

    rank, size = 3, 4

    def __init__(self, found):
        self.bcast = lambda _: found


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        (METADATA, lambda file: file.write_bytes(pickle.dumps(Runs(file.with_name("ran")))), r"\.metadata has changed"),
        (METADATA, lambda file: file.chmod(0o622), r"other users can change .*\.metadata"),
        ("", lambda inner: inner.chmod(0o770), "other users can change .*shards-"),
        ("", lambda inner: inner.parent.rename(inner.parents[1] / "away"), r"has no file \.metadata on this node"),
        ("", lambda inner: inner.parent.chmod(0o770), "other users can change .*run"),
    ],
)
def test_each_rank_checks_what_it_unpickles_and_the_folders(folder, monkeypatch, name, spoil, said):
    [inner] = shards(folder)
    comm = LastOfFour(sharded.read(folder))
    monkeypatch.setattr(sharded, "_communicator", lambda: comm)
    assert loaded(folder) == {"epoch": 1}
    spoil(inner / name)
    with pytest.raises(InvalidRequest, match=said):
        loaded(folder)
    assert not (inner / "ran").exists()


def test_a_group_that_may_write_by_the_umask_cannot_change_a_checkpoint(tmp_path):
    former = os.umask(0o002)
    try:
        saved(tmp_path / "run", 1)
        assert loaded(tmp_path / "run") == {"epoch": 1}
        (tmp_path / "shared").mkdir()
        with raises(InvalidRequest, given="775"):
            saved(tmp_path / "shared", 1)
    finally:
        os.umask(former)
    assert [*(tmp_path / "shared").iterdir()] == []


def test_a_folder_keeps_what_is_not_of_a_checkpoint(folder):
    (folder / "shards-of-data").mkdir()
    (folder / f".{MANIFEST}.swp").touch()
    saved(folder, 2)
    assert {file.name for file in shards(folder)} > {"shards-of-data", f".{MANIFEST}.swp"}


@pytest.mark.parametrize("target", ["file", "shards"])
def test_a_link_of_another_user_is_refused(folder, target, monkeypatch):
    [inner] = shards(folder)
    linked = next(inner.glob("*.distcp")) if target == "file" else inner
    linked.rename(folder.parent / "elsewhere")
    linked.symlink_to(folder.parent / "elsewhere")
    lstat = Path.lstat

    def foreign(path):
        status = lstat(path)
        return os.stat_result([*status[:4], status.st_uid + (path == linked), *status[5:]])

    monkeypatch.setattr(Path, "lstat", foreign)
    with raises(InvalidRequest, given=os.getuid() + 1):
        loaded(folder)


def wide():
    model = torched.net()
    model[0] = torch.nn.Linear(2, 16)
    return model


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            lambda: torch.nn.Linear(6, 3),
            r"Only the checkpoint has: 0.bias, 0.weight, 2.bias, \.{3}\. Only the model has: bias, weight",
        ),
        (
            lambda: torched.net()[:3],
            "is of another model. Only the checkpoint has: 4.bias, 4.weight. .* model has: none",
        ),
        (
            wide,
            "do not fit the model or the optimizer .*Size mismatch between saved.* Pass the model and the optimizer",
        ),
    ],
    ids=["names", "part", "sizes"],
)
def test_a_checkpoint_of_another_model_is_refused(folder, other, said):
    with pytest.raises(InvalidRequest, match=said):
        load_sharded(folder, other())


@pytest.mark.parametrize("early", [False, True], ids=["before_backward", "after_backward"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9, dampening=0.5)])
def test_a_checkpoint_before_the_first_step_keeps_the_optimizer_and_the_gradients(tmp_path, kind, early):
    def made():
        model = torched.net(dtype="float32")
        return model, kind(model.parameters(), lr=0.1)

    def backward(model):
        model(torch.ones(2, 6)).sum().backward()

    (straight, at_once), (model, optimizer), (other, resumed) = made(), made(), made()
    if early:
        backward(model)
    save_sharded(tmp_path / "run", model, optimizer)
    load_sharded(tmp_path / "run", other, resumed)
    assert not optimizer.state
    assert not resumed.state
    for each in (straight, other) if early else (straight, other, model):
        backward(each)
    for each in (at_once, optimizer, resumed):
        each.step()
        assert str(each.state_dict()) == str(at_once.state_dict())
    for each in (model, other):
        assert all(map(torch.equal, each.parameters(), straight.parameters()))


def branched():
    """Return a module of two layers, and an optimizer."""
    torch.manual_seed(0)
    model = torch.nn.ModuleList([torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)])
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def branched_steps(pair, *used):
    """Take a step for each of these numbers of layers, whose weights alone get gradients; return all weights."""
    model, optimizer = pair
    for number in used:
        optimizer.zero_grad()
        sum(layer(torch.ones(2, 6)).square().sum() for layer in model[:number]).backward()
        optimizer.step()
    return [weight.detach().clone() for weight in model.parameters()]


@pytest.mark.parametrize("before", [(), (1,), (2,)], ids=["new", "used in part", "used"])
@pytest.mark.parametrize("written", [(1, 1), (2, 1)], ids=["in part", "in full"])
def test_weights_without_a_gradient_so_far_have_no_state_in_a_checkpoint_and_after_it(tmp_path, written, before):
    straight, resumed = branched(), branched()
    branched_steps(straight, *written)
    save_sharded(tmp_path / "run", *straight)
    branched_steps(resumed, *before)
    load_sharded(tmp_path / "run", *resumed)

    assert all(map(torch.equal, branched_steps(resumed, 1, 2, 2), branched_steps(straight, 1, 2, 2)))


def test_a_load_that_is_refused_leaves_the_optimizer_of_weights_without_a_gradient(folder):
    model, optimizer = branched()
    branched_steps((model, optimizer), 1)
    before = str(optimizer.state_dict())
    with pytest.raises(InvalidRequest):
        load_sharded(folder, model, optimizer)
    assert str(optimizer.state_dict()) == before


def test_a_load_that_is_refused_leaves_the_optimizer(folder):
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(InvalidRequest):
        load_sharded(folder, model, optimizer)
    assert not optimizer.state


def test_another_number_of_optimizers_is_refused(folder):
    model = torched.net()
    parts = [torch.optim.Adam(layer.parameters()) for layer in (model[0], model[2])]
    with raises(InvalidRequest, option="optimizers"):
        load_sharded(folder, model, parts)


def test_the_model_is_loaded_without_its_optimizer(folder):
    model = torched.net(99)
    assert load_sharded(folder, model) == {"epoch": 1}
    assert all(map(torch.equal, model.parameters(), torched.net(1).parameters()))


@pytest.mark.parametrize(
    ("folder", "values", "said"),
    [
        ("none/run", {}, r"rank 0 on .* cannot create the folder .*/none/run \(No such file.*whose parent exists"),
        ("run", {"model_class": torched}, "some of the values model_class are not plain .* pass numbers, texts"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, folder, values, said):
    with pytest.raises(InvalidRequest, match=said):
        save_sharded(tmp_path / folder, torched.net(), **values)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("exists", "missing"),
    [
        ("local/run", "run/shards-0, .* new folder"),
        ("local", "run, .* \\(a new folder"),
        ("", r"run, .* \(No such file"),
    ],
)
def test_a_folder_that_a_node_does_not_share_is_refused(tmp_path, monkeypatch, exists, missing):
    (tmp_path / exists).mkdir(parents=True, exist_ok=True)
    before = [*tmp_path.rglob("*")]
    # Rank 0 has created the folders on another node.
    monkeypatch.setattr(sharded, "new_shards", lambda folder: folder / "shards-0")
    with pytest.raises(InvalidRequest, match=f"has created the folder .*/{missing}.* all nodes share") as caught:
        save_sharded(tmp_path / "local" / "run", torched.net())
    assert platform.node() in str(caught.value)
    assert [*tmp_path.rglob("*")] == before


def test_a_model_without_memory_gets_the_values_of_one_that_is_made_at_once():
    with torch.device("meta"):
        model = torched.net(dtype="float32")
    state = torch.get_rng_state()
    materialize(model, seed=3)

    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, model.parameters(), torched.net(3, "float32").parameters()))


class Tied(torch.nn.Module):
    """Has one weight in three modules, of which the last one has another weight."""

    def __init__(self):
        super().__init__()
        self.first, self.same = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
        self.last = torch.nn.Linear(3, 5)
        self.same.weight = self.last.weight = self.first.weight

    def reset_parameters(self):
        raise AssertionError("the module has no weight of its own")


def test_a_weight_that_modules_share_remains_one_with_the_values_of_the_first():
    with torch.device("meta"):
        model = Tied()
    materialize(model, seed=3)
    torch.manual_seed(3)
    expected = torch.nn.Embedding(5, 3).weight, torch.nn.Linear(3, 5).bias

    assert model.first.weight is model.same.weight is model.last.weight
    assert torch.equal(model.first.weight, expected[0])
    assert torch.equal(model.last.bias, expected[1])
    assert [name for name, _ in model.named_parameters()] == ["first.weight", "last.bias"]


def test_what_has_memory_keeps_its_values():
    first, second = torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3, device="meta")
    second.running_mean, second.bias = torch.arange(3.0), torch.nn.Parameter(torch.full((3,), 7.0), requires_grad=False)
    model = torch.nn.Sequential(first, second)
    kept = {name: (its, its.clone()) for name, its in model.state_dict(keep_vars=True).items() if not its.is_meta}
    materialize(model)

    assert [*kept] == ["0.weight", "0.bias", "1.bias", "1.running_mean"]
    for name, its in model.state_dict(keep_vars=True).items():
        assert name not in kept or (its is kept[name][0] and torch.equal(its, kept[name][1]))
    assert second.weight.tolist() == second.running_var.tolist() == [1] * 3
    assert second.weight.requires_grad


def test_a_module_that_sets_no_values_is_named():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(3))

    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), Scaled())
    with pytest.raises(InvalidRequest):
        materialize(model)
