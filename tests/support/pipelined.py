"""What tests of pipelines run on ranks, which import this file by its name: functions import PyTorch."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from benchmarks.deep_nets import resnet, transformer
from workbench.errors import WorkbenchError
from workbench.torch import distributed, pipeline

SIZE, MICROBATCHES, STEPS = 16, 8, 3
RATE = 0.05


def make(kind, dtype="float64"):
    """Return a net, the same on each rank, and a batch of 16 rows and labels."""
    import torch

    torch.manual_seed(0)
    source, device = np.random.default_rng(1), torch.get_default_device()
    labels = torch.from_numpy(source.integers(0, 10, SIZE)).to(device)
    if kind in {"transformer", "sparse"}:
        words = torch.from_numpy(source.integers(0, 64, (SIZE, 16))).to(device)
        net = transformer() if kind == "transformer" else sparse()
        return net.to(getattr(torch, dtype)), words, labels
    images = torch.from_numpy(source.normal(size=(SIZE, 3, 8, 8))).to(device, getattr(torch, dtype))
    net = in_place() if kind == "in place" else resnet(20, 4)
    order = torch.channels_last if kind == "channels last" else torch.preserve_format
    return net.to(getattr(torch, dtype), memory_format=order), images, labels


def in_place():
    """Return a net of layers that change their inputs, in its blocks and at its beginning."""
    from torch import nn

    def block(channels):
        return nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)

    class ActsFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.layer = nn.ReLU(inplace=True), nn.Linear(8, 8)

        def forward(self, rows):
            return self.layer(self.act(rows))

    first = nn.ReLU(inplace=True), *block(3), *block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*first, ActsFirst(), ActsFirst(), nn.Linear(8, 10))


def sparse():
    """Return a net whose first weights have sparse gradients."""
    from torch import nn

    return nn.Sequential(
        nn.Embedding(64, 4, sparse=True), nn.Flatten(), *(nn.Linear(64, 64) for _ in range(4)), nn.Linear(64, 10)
    )


def cross_entropy(outputs, labels):
    import torch

    return torch.nn.functional.cross_entropy(outputs, labels)


def of_one_process(kind, dtype="float64"):
    """Return the losses and the weights of a training in this process, microbatch by microbatch."""
    import torch

    net, rows, labels = make(kind, dtype)
    optimizer, losses = torch.optim.SGD(net.parameters(), RATE, momentum=0.9), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for part, its in zip(rows.chunk(MICROBATCHES), labels.chunk(MICROBATCHES), strict=True):
            loss = cross_entropy(net(part), its) / MICROBATCHES
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses, {name: weight.detach() for name, weight in net.named_parameters()}


def part(comm, block):
    """Return the part of this rank of a batch."""
    each = SIZE // comm.size
    return block[comm.rank * each : (comm.rank + 1) * each]


def train(comm, net, rows, labels, steps=STEPS, **options):
    """Return the losses of a pipeline, and the pipeline."""
    import torch

    its = pipeline(net, rows, cross_entropy, size=SIZE, device=torch.get_default_device().type, **options)
    optimizer, losses = torch.optim.SGD(its.parameters(), RATE, momentum=0.9), []
    for _ in range(steps):
        losses.append(its.step(part(comm, rows), part(comm, labels)))
        optimizer.step()
    return losses, its


def in_half(comm):
    """Return the losses of a pipeline that was made and used in half precision, and those of one process."""
    import torch

    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        expected, _ = of_one_process("resnet", "float32")
        with distributed(comm):
            losses, _ = train(comm, *make("resnet", "float32"), stages=2)
    return losses, expected


def in_other_precision(comm, way):
    """Make a pipeline in one precision, and use the pipeline in another one."""
    import torch

    net, rows, labels = make("resnet", "float32")
    half = torch.autocast(torch.get_default_device().type, torch.bfloat16)
    with distributed(comm):
        with half if way == "evaluate" else nullcontext():
            its = pipeline(net, rows, cross_entropy, size=SIZE, stages=2)
        with nullcontext() if way == "evaluate" else half:
            getattr(its, way)(part(comm, rows), part(comm, labels))


def layouts(size):
    """Return the layouts of a number of ranks whose copies have enough of the microbatches."""
    found = [(stages, schedule) for stages in (1, 2, 4) if size % stages == 0 for schedule in ("gpipe", "1f1b")]
    return [*found, *((stages, "bidirectional") for stages in (2, 4) if size % stages == 0)]


def compared(comm, kind):
    """Return for each layout how far losses and weights are from those of one process, and the layers of the stages."""
    expected, weights = of_one_process(kind)
    found = {}
    for stages, schedule in layouts(comm.size):
        with distributed(comm):
            losses, its = train(comm, *make(kind), stages=stages, schedule=schedule)
            state = its.state_dict()
        apart = max(abs(one - other) for one, other in zip(losses, expected, strict=True))
        if comm.rank == 0:
            assert list(state) == list(make(kind)[0].state_dict())
            apart = max(apart, *((state[name] - weight.cpu()).abs().max().item() for name, weight in weights.items()))
        else:
            assert state == {}
        found[stages, schedule] = apart, its.plan.firsts
    return found


def on_meta(comm):
    """Return for each layout the losses of a net whose weights no rank has, and the bytes that this rank holds."""
    import torch

    _, rows, labels = make("resnet")
    found = {}
    for stages in (1, 2, 4):
        with distributed(comm):
            with torch.device("meta"):
                net = resnet(20, 4).double()
            losses, its = train(comm, net, rows, labels, stages=stages)
            held = sum(weight.nbytes for weight in its.parameters())
            found[stages] = losses, held, sum(weight.nbytes for weight in net.parameters() if not weight.is_meta)
    return found


def restored(comm):
    """Return the losses of evaluations before and after a state was loaded, and of the module in this process."""
    import torch

    net, rows, labels = make("transformer")
    expected = cross_entropy(net(rows), labels).item()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    with distributed(comm):
        _, its = train(comm, net, rows, labels, stages=2)
        mine = part(comm, rows), part(comm, labels)
        after = its.evaluate(*mine)
        its.load_state_dict(state)
        again = its.evaluate(*mine)
        try:
            its.load_state_dict({})
        except WorkbenchError as error:
            said = str(error)
    assert torch.is_grad_enabled()
    return expected, after, again, said


def evaluated(comm):
    """Return for each layout the loss without gradients of a trained pipeline, and that of a module with its state."""
    import torch

    found = {}
    for stages, schedule in layouts(comm.size):
        net, rows, labels = make("resnet")
        with distributed(comm):
            _, its = train(comm, net, rows, labels, stages=stages, schedule=schedule)
            state = comm.bcast(its.state_dict())
            loss = its.evaluate(part(comm, rows), part(comm, labels))
        whole, rows, labels = make("resnet")
        whole.load_state_dict(state)
        with torch.no_grad():
            found[stages, schedule] = loss, cross_entropy(whole.eval()(rows), labels).item()
    return found


def modules():
    """Return modules that cannot be cut."""
    from torch import nn

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, rows):
            return self.layer(rows) if rows.sum() > 0 else rows

    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = (nn.Linear(3, 3) for _ in range(3))

        def forward(self, rows):
            first = self.one(rows)
            return self.three(self.two(first).relu() + first)

    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, rows):
            return nn.functional.dropout(self.layer(rows), training=self.training)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.middle, self.scores = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
            self.scores.weight = self.words.weight

        def forward(self, rows):
            return self.scores(self.middle(self.words(rows)).mean(1))

    return {kind.__name__.lower(): kind() for kind in (Branches, Skips, Drops, Tied)}


def refused(comm, what):
    """Ask for what is not valid, and return the words of the error."""
    import torch
    from torch import nn

    net, rows, labels = make("resnet")
    bad = modules()
    few = torch.ones(SIZE, 3)
    ways = {
        "stages": (net, rows, {"stages": 3}),
        "replicas": (net, rows, {"stages": 2, "replicas": 1}),
        "schedule": (net, rows, {"schedule": "1f1"}),
        "microbatches": (net, rows, {"stages": 4, "microbatches": 2}),
        "size": (net, rows, {"microbatches": 5, "stages": 4}),
        "layers": (nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), few, {"stages": 4}),
        "branches": (bad["branches"], few, {}),
        "skips": (bad["skips"], few, {"stages": 4}),
        "dropout": (bad["drops"], few, {}),
        "tied": (bad["tied"], torch.ones(SIZE, 5, dtype=torch.int64), {}),
        "fixed": (nn.Sequential(nn.Linear(3, 3), nn.Unflatten(0, (SIZE, 1))), few, {"stages": 1}),
        "meta": (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).to("meta"), few, {"stages": 1}),
        "rows": (net, rows, {}),
        "shape": (net, rows, {}),
        "outside": (net, rows, {}),
    }
    module, sample, options = ways[what]
    if what == "meta":
        module[1].reset_parameters = None
    try:
        if what == "outside":
            pipeline(module, sample, cross_entropy, size=SIZE)
        with distributed(comm):
            its = pipeline(module, sample, cross_entropy, size=SIZE, **options)
            if what == "rows":
                its.step(rows, labels)
            its.step(part(comm, rows[:, :, :4, :4]), part(comm, labels))
    except WorkbenchError as error:
        return f"{type(error).__name__}: {error}"
    return None


def train_until(comm, way, which, path, schedule="1f1b"):
    """Train for ever, until a layer of a rank does something in a backward pass."""
    net, rows, labels = make("transformer")

    def fail(_):
        if way == "raises":
            raise ValueError("a bad layer", time.time())
        os.kill(os.getpid(), 9)

    with distributed(comm):
        _, its = train(comm, net, rows, labels, 2, stages=comm.size, schedule=schedule)
        Path(f"{path}.{comm.rank}").touch()
        if comm.rank == which:
            next(its.parameters()).register_hook(fail)
        while True:
            its.step(part(comm, rows), part(comm, labels))


def raises_forward(comm):
    """Train with a loss that fails."""

    def loss(outputs, labels):
        raise ZeroDivisionError("a bad loss")

    net, rows, labels = make("transformer")
    with distributed(comm):
        its = pipeline(net, rows, loss, size=SIZE, stages=comm.size)
        its.step(part(comm, rows), part(comm, labels))
